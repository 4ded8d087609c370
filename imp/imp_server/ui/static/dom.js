// Elements without HTML: texts only ever become text nodes.

const SVG = "http://www.w3.org/2000/svg";

/** h("button", {class: "x", onclick: f, "aria-label": "y"}, "text", node, null) */
export function h(name, attributes = {}, ...children) {
  return fill(document.createElement(name), attributes, children);
}

export function svg(name, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, name), attributes, children);
}

function fill(element, attributes, children) {
  for (const [key, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else if (key === "value") element.value = value;
    else element.setAttribute(key, value === true ? "" : String(value));
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

const PATHS = {
  plus: "M12 5v14M5 12h14",
  send: "M12 19V5M6 11l6-6 6 6",
  stop: "M7 7h10v10H7z",
  copy: "M9 9h10v10H9zM5 15V5h10",
  check: "M5 13l4 4L19 7",
  edit: "M4 20h4L19 9l-4-4L4 16z",
  again: "M4 12a8 8 0 1 1 2.3 5.7M4 20v-5h5",
  forward: "M5 5l7 7-7 7M13 5l7 7-7 7",
  left: "M14 6l-6 6 6 6",
  right: "M10 6l6 6-6 6",
  down: "M6 10l6 6 6-6",
  menu: "M4 7h16M4 12h16M4 17h16",
  search: "M11 4a7 7 0 1 1 0 14 7 7 0 0 1 0-14M16 16l4 4",
  trash: "M5 7h14M10 7V4h4v3M7 7l1 13h8l1-13",
  more: "M5 12h.01M12 12h.01M19 12h.01",
  clip: "M8 12l6-6a3 3 0 0 1 4 4l-8 8a5 5 0 0 1-7-7l8-8",
  sliders: "M4 7h10M18 7h2M4 17h2M10 17h10M14 4v6M6 14v6",
  chat: "M4 5h16v11H9l-5 4z",
  flask: "M9 4h6M10 4v6l-5 9h14l-5-9V4",
  pulse: "M3 12h4l3-7 4 14 3-7h4",
  book: "M5 4h10a3 3 0 0 1 3 3v13H8a3 3 0 0 1-3-3zM5 17a3 3 0 0 1 3-3h10",
  sun: "M12 8a4 4 0 1 1 0 8 4 4 0 0 1 0-8M12 2v2M12 20v2M2 12h2M20 12h2M5 5l1.4 1.4M17.6 17.6L19 19M5 19l1.4-1.4M17.6 6.4L19 5",
  close: "M6 6l12 12M18 6L6 18",
  skip: "M6 5l8 7-8 7zM18 5v14",
};

/** A drawing of the interface; hidden from screen readers, as its button has a name. */
export function icon(name) {
  return svg("svg", { viewBox: "0 0 24 24", class: "icon", "aria-hidden": "true" }, svg("path", { d: PATHS[name] }));
}

/** A button that is only a drawing. */
export function tool(name, label, onclick, more = {}) {
  return h("button", { type: "button", class: "tool", title: label, "aria-label": label, onclick, ...more }, icon(name));
}

/** Text to the clipboard, also on pages that a browser doesn't trust with its own interface for it (plain http). */
export async function copyText(text) {
  try {
    if (!navigator.clipboard || !window.isSecureContext) throw new Error("no clipboard");
    await navigator.clipboard.writeText(text);
  } catch {
    const field = h("textarea", { class: "off-screen", "aria-hidden": "true", value: text });
    const host = document.querySelector("dialog[open]") ?? document.body;
    const before = document.activeElement;
    host.append(field);
    field.select();
    const done = document.execCommand("copy");
    field.remove();
    before?.focus?.();
    if (!done) throw new Error("the browser allows no copying here");
  }
}

/** A button that copies what `text()` gives, and shows that it did. */
export function copyButton(text, label = "Copy") {
  const button = tool("copy", label, async () => {
    try {
      await copyText(text());
      button.replaceChildren(icon("check"));
    } catch {
      button.replaceChildren(icon("close"));
    }
    setTimeout(() => button.replaceChildren(icon("copy")), 1200);
  });
  return button;
}

const notes = () => document.getElementById("notes");

/** A short line at the edge of the page, told to screen readers, too. */
export function notify(text) {
  const note = h("div", { class: "note" }, text);
  notes().append(note);
  setTimeout(() => note.remove(), 6000);
}

/** Ask in a dialog. `fields`: nodes between title and buttons. Resolves to whether it was confirmed. */
export function ask(title, fields, { confirm = "OK", danger = false, cancel = "Cancel" } = {}) {
  return new Promise((resolve) => {
    const ok = h("button", { type: "button", class: danger ? "danger" : "primary", onclick: () => end(true) }, confirm);
    const no = cancel && h("button", { type: "button", class: "plain", onclick: () => end(false) }, cancel);
    const dialog = h(
      "dialog",
      { class: "dialog", "aria-label": title },
      h("h2", {}, title),
      ...fields,
      h("div", { class: "buttons" }, no, ok),
    );
    const end = (value) => {
      dialog.close();
      dialog.remove();
      resolve(value);
    };
    dialog.addEventListener("cancel", (event) => {
      event.preventDefault();
      end(false);
    });
    dialog.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && event.target.tagName === "INPUT" && !event.isComposing) {
        event.preventDefault();
        end(true);
      }
    });
    document.body.append(dialog);
    dialog.showModal();
    (dialog.querySelector("input, textarea, select") ?? ok).focus();
  });
}

/** Random and unguessable, also over plain http, where crypto.randomUUID isn't there. */
export function newId() {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

const DEBUG = new URLSearchParams(location.search).has("debug");

export function debug(...words) {
  if (DEBUG) console.debug(...words);
}
