// Where a message is written: text, attached files, send or stop, and how full the context is.

import { h, icon, notify, tool } from "./dom.js";

const LARGEST = 1 << 20;
const PASTED = 8000;

export class Composer {
  #files = [];

  /** `actions`: send(text, files), stop(), editLast(). */
  constructor(actions) {
    this.actions = actions;
    this.field = h("textarea", { rows: "1", placeholder: "Write a message", "aria-label": "Message", enterkeyhint: "send" });
    this.chips = h("ul", { class: "chips", "aria-label": "Attached files" });
    this.button = h("button", { type: "button", class: "send", "aria-label": "Send", title: "Send (Enter)", onclick: () => this.#press() });
    this.picker = h("input", { type: "file", multiple: true, hidden: true, "aria-hidden": "true" });
    this.picker.addEventListener("change", () => this.#take([...this.picker.files]));
    this.meter = h("meter", { min: "0", max: "1", low: "0.7", high: "0.9", optimum: "0", "aria-label": "Context used" });
    this.used = h("span", {});
    this.context = h("div", { class: "context", hidden: true }, this.meter, this.used);
    this.element = h(
      "div",
      { class: "composer" },
      h(
        "div",
        { class: "box" },
        this.chips,
        this.field,
        h("div", { class: "row" }, tool("clip", "Attach text files", () => this.picker.click()), this.context, this.button),
      ),
      this.picker,
    );
    this.#listen();
    this.running = false;
  }

  #listen() {
    this.field.addEventListener("input", () => this.#fit());
    this.field.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
        event.preventDefault();
        if (!this.isRunning) this.#press();
      } else if (event.key === "ArrowUp" && !this.field.value) {
        event.preventDefault();
        this.actions.editLast();
      }
    });
    this.field.addEventListener("paste", (event) => this.#pasted(event));
    this.element.addEventListener("dragover", (event) => event.preventDefault());
    this.element.addEventListener("drop", (event) => {
      event.preventDefault();
      this.#take([...event.dataTransfer.files]);
    });
  }

  set running(value) {
    this.isRunning = value;
    this.button.replaceChildren(icon(value ? "stop" : "send"));
    this.button.setAttribute("aria-label", value ? "Stop" : "Send");
    this.button.title = value ? "Stop (Esc)" : "Send (Enter)";
    this.button.classList.toggle("stops", value);
  }

  focus() {
    this.field.focus();
  }

  fill(text) {
    this.field.value = text;
    this.#fit();
    this.focus();
  }

  /** What couldn't be sent. */
  putBack(text, files) {
    this.#files = files;
    this.#showFiles();
    this.fill(text);
  }

  showContext(used, most) {
    this.context.hidden = !used || !most;
    if (!used || !most) return;
    this.meter.value = Math.min(1, used / most);
    this.used.textContent = `${used.toLocaleString()} of ${most.toLocaleString()} tokens`;
  }

  #fit() {
    this.field.style.height = "auto";
    this.field.style.height = `${Math.min(this.field.scrollHeight, innerHeight * 0.4)}px`;
  }

  #press() {
    if (this.isRunning) {
      this.actions.stop();
      return;
    }
    const text = this.field.value.trim();
    if (!text && !this.#files.length) return;
    const files = this.#files;
    this.#files = [];
    this.fill("");
    this.#showFiles();
    this.actions.send(text, files);
  }

  #pasted(event) {
    const files = [...(event.clipboardData?.files ?? [])];
    const text = event.clipboardData?.getData("text/plain") ?? "";
    if (files.length) {
      event.preventDefault();
      this.#take(files);
    } else if (text.length > PASTED) {
      event.preventDefault();
      this.#files.push({ name: "pasted.txt", text });
      this.#showFiles();
    }
  }

  async #take(files) {
    this.picker.value = "";
    for (const file of files) {
      if (file.size > LARGEST) {
        notify(`${file.name} is larger than 1 MB.`);
        continue;
      }
      try {
        const text = new TextDecoder("utf-8", { fatal: true }).decode(await file.arrayBuffer());
        if (text.includes("\0")) throw new TypeError();
        this.#files.push({ name: file.name, text });
      } catch {
        notify(`${file.name} isn't a text; models here read text only.`);
      }
    }
    this.#showFiles();
    this.focus();
  }

  #showFiles() {
    this.chips.replaceChildren(
      ...this.#files.map((file, i) => {
        const drop = () => {
          this.#files.splice(i, 1);
          this.#showFiles();
        };
        return h("li", {}, icon("clip"), h("span", {}, file.name), tool("close", `Remove ${file.name}`, drop));
      }),
    );
    this.chips.hidden = !this.#files.length;
  }
}
