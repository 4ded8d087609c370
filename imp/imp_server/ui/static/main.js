// The page: sidebar, header and the views; what the address says; keys that work everywhere.

import { call, words } from "./api.js";
import { Chat } from "./chat.js";
import { ask, debug, h, icon, notify, tool } from "./dom.js";
import { models } from "./models.js";
import { Picker } from "./picker.js";
import { editSettings } from "./settings.js";
import { Sidebar } from "./sidebar.js";
import { Streams } from "./streams.js";

const THEME = "imp.theme";
const THEMES = { auto: "as the system", light: "light", dark: "dark" };
const HEALTH_MS = 10_000;

const streams = new Streams();
const chat = new Chat(streams, changed);
const sidebar = new Sidebar(streams, { open, fresh, removed, renamed: () => chat.conversation.id && reopen() });
const picker = new Picker(() => chat.model, chooseModel);
const title = h("h1", { class: "page-title" });
const health = h("div", { class: "health", role: "status", hidden: true });
const view = h("div", { class: "view" });
const loaded = new Map([["chat", chat.element]]);
let current = "";

// --- the frame ------------------------------------------------------------------------------

const TABS = [
  ["chat", "Chat", "chat"],
  ["playground", "Playground", "flask"],
  ["status", "Status", "pulse"],
];

const tabs = h(
  "nav",
  { class: "tabs", "aria-label": "Parts of this page" },
  ...TABS.map(([name, label, drawing]) => h("a", { href: name === "chat" ? "#/" : `#/${name}`, "data-tab": name }, icon(drawing), label)),
  h("a", { href: "docs" }, icon("book"), "API"),
);
const theme = tool("sun", "Colours", nextTheme);
const settings = tool("sliders", "Settings of this conversation", openSettings);
const menu = tool("menu", "Conversations", toggleSide, { class: "tool menu-button", "aria-expanded": "false" });
const veil = h("div", { class: "veil", onclick: toggleSide });
const aside = h(
  "aside",
  { class: "side", id: "side", "aria-label": "Conversations and parts" },
  h("div", { class: "brand" }, h("span", { class: "mark", "aria-hidden": "true" }), "imp", theme),
  sidebar.element,
  tabs,
);
document.body.prepend(
  h("a", { href: "#view", class: "to-content", onclick: toContent }, "To the content"),
  aside,
  veil,
  h("main", { class: "main", id: "view", tabindex: "-1" }, h("header", { class: "head" }, menu, title, h("span", { class: "fill" }), picker.element, settings), health, view),
);

function toContent(event) {
  event.preventDefault();
  document.getElementById("view").focus();
}

function toggleSide() {
  const isOpen = document.body.classList.toggle(innerWidth < 760 ? "side-open" : "side-closed");
  menu.setAttribute("aria-expanded", String(isOpen));
  if (isOpen && innerWidth < 760) sidebar.search.focus();
}

function closeSide() {
  document.body.classList.remove("side-open");
  menu.setAttribute("aria-expanded", "false");
}

function showTheme() {
  const name = localStorage.getItem(THEME) ?? "auto";
  document.documentElement.dataset.theme = name;
  theme.title = `Colours: ${THEMES[name]}`;
  theme.setAttribute("aria-label", theme.title);
}

function nextTheme() {
  const names = Object.keys(THEMES);
  const at = names.indexOf(localStorage.getItem(THEME) ?? "auto");
  localStorage.setItem(THEME, names[(at + 1) % names.length]);
  showTheme();
}

async function openSettings() {
  if (await editSettings(chat.conversation, chat.isNew)) streams.tellChanged(chat.conversation.id);
}

function chooseModel(id) {
  models.chosen = id;
  chat.conversation.model = id;
  chat.showContext();
}

// --- conversations --------------------------------------------------------------------------

function open(id) {
  location.hash = `#/c/${id}`;
  closeSide();
}

function fresh() {
  if (location.hash === "#/" || location.hash === "") chat.fresh();
  location.hash = "#/";
  closeSide();
}

async function changed(conversation) {
  history.replaceState(null, "", `#/c/${conversation.id}`);
  await sidebar.load();
  sidebar.select(conversation.id);
  showTitle();
}

function removed(id) {
  if (chat.conversation.id === id) fresh();
}

async function reopen() {
  if (!chat.isNew) await chat.open(chat.conversation.id);
  showTitle();
}

function showTitle() {
  const name = current === "chat" ? (chat.isNew ? "New chat" : chat.conversation.title) : TABS.find(([key]) => key === current)[1];
  title.textContent = name;
  document.title = chat.isNew || current !== "chat" ? `${name} · imp` : `${chat.conversation.title} · imp`;
  settings.hidden = current !== "chat";
}

// --- where we are ---------------------------------------------------------------------------

const MODULES = { playground: () => import("./playground.js"), status: () => import("./status.js") };

async function route() {
  const [, name = "", id = ""] = location.hash.split("/");
  const tab = name in MODULES ? name : "chat";
  if (!loaded.has(tab)) {
    const module = await MODULES[tab]();
    loaded.set(tab, module.create());
  }
  if (current !== tab) {
    loaded.get(current)?.dispatchEvent(new Event("hide"));
    current = tab;
    view.replaceChildren(loaded.get(tab));
    loaded.get(tab).dispatchEvent(new Event("show"));
  }
  for (const link of tabs.children) {
    if (link.dataset.tab === tab) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  if (tab === "chat") await showConversation(name === "c" ? id : "");
  picker.show();
  showTitle();
  if (tab !== "chat") closeSide();
}

async function showConversation(id) {
  if (!id) {
    if (!chat.isNew) chat.fresh();
  } else if (chat.isNew || chat.conversation.id !== id) {
    if (!(await chat.open(id))) {
      notify("This conversation isn't in this browser.");
      history.replaceState(null, "", "#/");
      chat.fresh();
    }
  }
  sidebar.select(chat.isNew ? null : chat.conversation.id);
}

// --- the server -----------------------------------------------------------------------------

const STATES = {
  no_model: "The server has no model.",
  loading: "The model is loading.",
  restarting: "The engine is being restarted.",
  draining: "The server is shutting down.",
  stopped: "The engine has stopped.",
  failed: "The model can't be loaded.",
  sleeping: "The model sleeps; a message wakes it.",
  suspended: "The model was put to sleep by the operator.",
};

/** Errors of the server in words, before somebody writes into the void. */
async function lookAtServer() {
  if (document.visibilityState !== "visible") return;
  let text = "";
  let again = HEALTH_MS;
  try {
    const { state, loading } = await (await call("health")).json();
    text = STATES[state] ?? "";
    if (loading?.value) text += ` ${Math.round(loading.value * 100)} % of ${loading.stage}.`;
    if (!text && !models.list.length) await models.load({ quiet: true });
  } catch (error) {
    const isLoading = error.status === 503;
    text = isLoading ? `${words(error).replace(/\.?$/, ".")}` : error.status === 0 ? "The server can't be reached." : words(error);
    again = 1500;
  }
  health.textContent = text;
  health.hidden = !text;
  clearTimeout(lookAtServer.timer);
  lookAtServer.timer = setTimeout(lookAtServer, again);
}

// --- keys -----------------------------------------------------------------------------------

const KEYS = [
  ["Ctrl Shift O", "New chat"],
  ["Ctrl K", "Search conversations"],
  ["Ctrl B", "Show or hide the sidebar"],
  ["Ctrl Shift E", "Edit the last message"],
  ["Esc", "Stop the answer"],
  ["/", "Write a message"],
  ["?", "This list"],
];

addEventListener("keydown", (event) => {
  const mod = event.ctrlKey || event.metaKey;
  const name = event.key.toLowerCase();
  const isWriting = /^(input|textarea|select)$/i.test(event.target.tagName ?? "");
  if (document.querySelector("dialog[open]")) return;
  if (mod && event.shiftKey && name === "o") fresh();
  else if (mod && event.shiftKey && name === "e") chat.editLast();
  else if (mod && !event.shiftKey && name === "k") {
    document.body.classList.remove("side-closed");
    if (innerWidth < 760) document.body.classList.add("side-open");
    sidebar.search.focus();
  } else if (mod && !event.shiftKey && name === "b") toggleSide();
  else if (name === "escape" && document.body.classList.contains("side-open")) closeSide();
  else if (name === "escape" && current === "chat" && streams.isRunning(chat.conversation.id)) chat.stop();
  else if (name === "/" && !isWriting && current === "chat") chat.composer.focus();
  else if (event.key === "?" && !isWriting) showKeys();
  else return;
  event.preventDefault();
});

function showKeys() {
  const rows = KEYS.map(([keys, what]) => h("tr", {}, h("td", {}, what), h("td", {}, ...keys.split(" ").map((one) => h("kbd", {}, one)))));
  ask("Keys", [h("table", { class: "keys" }, ...rows)], { confirm: "Close", cancel: "" });
}

// --- begin ----------------------------------------------------------------------------------

showTheme();
addEventListener("hashchange", route);
document.addEventListener("visibilitychange", lookAtServer);
await route();
chat.composer.focus();
sidebar.load().catch((error) => notify(`This browser keeps no conversations here: ${words(error)}`));
models.load().then(() => picker.show(), (error) => debug("models", error));
streams.discover().catch((error) => debug("discover", error));
lookAtServer();
