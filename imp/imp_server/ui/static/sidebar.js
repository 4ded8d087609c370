// The list of conversations: search, rename, delete, files; and which of them have an answer under way.

import { ask, h, icon, notify, tool } from "./dom.js";
import * as store from "./store.js";

const DAY_MS = 86_400_000;

export class Sidebar {
  #list = [];
  #found = null;

  /** `actions`: open(id), fresh(), removed(id). */
  constructor(streams, actions) {
    this.streams = streams;
    this.actions = actions;
    this.current = null;
    this.search = h("input", { type: "search", placeholder: "Search", "aria-label": "Search conversations" });
    this.search.addEventListener("input", () => this.#find());
    this.items = h("div", { class: "conversations", role: "list", "aria-label": "Conversations" });
    this.picker = h("input", { type: "file", accept: ".json,application/json", hidden: true, "aria-hidden": "true" });
    this.picker.addEventListener("change", () => this.#import());
    this.element = h(
      "div",
      { class: "side-chats" },
      h("button", { type: "button", class: "new", onclick: () => actions.fresh() }, icon("plus"), "New chat"),
      h("label", { class: "search" }, icon("search"), this.search),
      this.items,
      h(
        "div",
        { class: "files" },
        h("button", { type: "button", class: "plain", onclick: () => this.#export() }, "Export"),
        h("button", { type: "button", class: "plain", onclick: () => this.picker.click() }, "Import"),
        this.picker,
      ),
    );
    streams.addEventListener("running", () => this.#draw());
    for (const type of ["end", "changed"]) streams.addEventListener(type, () => this.load());
  }

  async load() {
    this.#list = await store.conversations();
    this.#draw();
  }

  select(id) {
    this.current = id;
    this.#draw();
  }

  async #find() {
    const words = this.search.value;
    this.#found = words.trim() ? await store.search(words) : null;
    if (words === this.search.value) this.#draw();
  }

  #draw() {
    const shown = this.#list.filter((one) => !this.#found || this.#found.has(one.id));
    const nodes = [];
    let group = "";
    for (const one of shown) {
      const name = ageOf(one.updated);
      if (name !== group) nodes.push(h("h2", {}, (group = name)));
      nodes.push(this.#item(one));
    }
    const nothing = this.#found ? "Nothing found." : "Conversations appear here.";
    this.items.replaceChildren(...(nodes.length ? nodes : [h("p", { class: "none" }, nothing)]));
  }

  #item(one) {
    const isRunning = this.streams.isRunning(one.id);
    const link = h(
      "a",
      { href: `#/c/${one.id}`, "aria-current": one.id === this.current ? "page" : null, onclick: (event) => this.#open(event, one.id) },
      isRunning && h("span", { class: "spinner", role: "img", "aria-label": "An answer is being written" }),
      h("span", { class: "title" }, one.title),
    );
    const rename = tool("edit", `Rename ${one.title}`, () => this.#rename(one));
    const remove = tool("trash", `Delete ${one.title}`, () => this.#remove(one));
    return h("div", { class: "item", role: "listitem" }, link, h("span", { class: "item-tools" }, rename, remove));
  }

  #open(event, id) {
    if (event.metaKey || event.ctrlKey || event.shiftKey) return;
    event.preventDefault();
    this.actions.open(id);
  }

  async #rename(one) {
    const field = h("input", { type: "text", "aria-label": "Title", value: one.title, maxlength: "200" });
    if (!(await ask("Rename conversation", [field], { confirm: "Rename" })) || !field.value.trim()) return;
    await store.update(one.id, { title: field.value.trim() });
    this.streams.tellChanged(one.id);
    await this.load();
    this.actions.renamed(one.id);
  }

  async #remove(one) {
    const text = h("p", {}, `“${one.title}” and all its answers will be gone.`);
    if (!(await ask("Delete conversation?", [text], { confirm: "Delete", danger: true }))) return;
    await this.streams.drop(one.id);
    await store.remove(one.id);
    this.streams.tellChanged(one.id);
    await this.load();
    this.actions.removed(one.id);
  }

  async #export() {
    const text = JSON.stringify(await store.exported(), null, 1);
    const url = URL.createObjectURL(new Blob([text], { type: "application/json" }));
    const link = h("a", { href: url, download: `imp-conversations-${new Date().toISOString().slice(0, 10)}.json` });
    link.click();
    setTimeout(() => URL.revokeObjectURL(url), 10_000);
  }

  async #import() {
    const [file] = this.picker.files;
    this.picker.value = "";
    if (!file) return;
    try {
      const n = await store.imported(await file.text());
      notify(n === 1 ? "One conversation came in." : `${n} conversations came in.`);
    } catch (error) {
      notify(error.message);
    }
    await this.load();
  }
}

function ageOf(time) {
  const midnight = new Date().setHours(0, 0, 0, 0);
  if (time >= midnight) return "Today";
  if (time >= midnight - DAY_MS) return "Yesterday";
  return time >= midnight - 7 * DAY_MS ? "Last week" : "Earlier";
}
