// The model picker: which model answers, and, where there are several, what is in memory and what is fetched.

import { words } from "./api.js";
import { ask, h, icon, notify } from "./dom.js";
import { models } from "./models.js";

const STATES = { unloaded: "not in memory", loading: "loading", loaded: "in memory", sleeping: "asleep", downloading: "downloading" };

export class Picker {
  /** `current()`: the model of the conversation; `choose(id)`: another one from now on. */
  constructor(current, choose) {
    this.current = current;
    this.choose = choose;
    this.name = h("span", { class: "model-name" }, "…");
    this.button = h(
      "button",
      { type: "button", class: "model", "aria-haspopup": "true", "aria-expanded": "false", "aria-label": "Model", onclick: () => this.#toggle() },
      h("span", { class: "dot" }),
      this.name,
      icon("down"),
    );
    this.menu = h("div", { class: "menu", hidden: true, role: "dialog", "aria-label": "Models" });
    this.element = h("div", { class: "picker" }, this.button, this.menu);
    this.menu.addEventListener("keydown", (event) => {
      if (event.key === "Escape") {
        event.stopPropagation();
        this.#close();
      } else if (event.key === "ArrowDown" || event.key === "ArrowUp") this.#move(event);
    });
    document.addEventListener("pointerdown", ({ target }) => this.element.contains(target) || target.closest?.("dialog") || this.#close(false));
    models.addEventListener("change", () => this.show());
  }

  show() {
    const id = this.current();
    const model = models.find(id);
    this.name.textContent = id || "No model";
    const state = model ? models.stateOf(model) : "unloaded";
    this.button.dataset.state = state;
    this.button.title = id ? `${id}: ${STATES[state] ?? state}` : "The server has no model";
    this.button.setAttribute("aria-label", `Model ${this.button.title}`);
    if (!this.menu.hidden) this.#draw();
  }

  #toggle() {
    if (!this.menu.hidden) {
      this.#close();
      return;
    }
    this.menu.hidden = false;
    this.button.setAttribute("aria-expanded", "true");
    this.#draw();
    this.menu.querySelector('button[aria-pressed="true"], button')?.focus();
  }

  #close(focus = true) {
    if (this.menu.hidden) return;
    this.menu.hidden = true;
    this.button.setAttribute("aria-expanded", "false");
    if (focus) this.button.focus();
  }

  #move(event) {
    event.preventDefault();
    const all = [...this.menu.querySelectorAll("button:not([disabled])")];
    const step = event.key === "ArrowDown" ? 1 : -1;
    all[(all.indexOf(document.activeElement) + step + all.length) % all.length]?.focus();
  }

  #draw() {
    const focused = document.activeElement?.dataset?.key;
    const rows = models.list.map((model) => this.#row(model));
    const fetched = [...models.progress].filter(([name]) => !models.find(name)).map(([name, part]) => this.#download(name, part));
    const more = models.areSeveral
      ? h("button", { type: "button", class: "plain", "data-key": "fetch", onclick: () => this.#fetch() }, "Download a model…")
      : null;
    this.menu.replaceChildren(...rows, ...fetched, ...(more ? [more] : []));
    if (focused) this.menu.querySelector(`[data-key="${CSS.escape(focused)}"]`)?.focus();
  }

  #row(model) {
    const state = models.stateOf(model);
    const isChosen = model.id === this.current();
    const part = models.progress.get(model.id);
    const size = model.meta?.n_params ? `${(model.meta.n_params / 1e9).toFixed(1)} B` : "";
    const pick = h(
      "button",
      { type: "button", class: "pick", "aria-pressed": String(isChosen), "data-key": `pick ${model.id}`, onclick: () => this.#choose(model.id) },
      h("span", { class: "model-name" }, model.id),
      h("small", {}, [size, model.meta?.quantisation, model.status?.error ?? (model.status ? STATES[state] : "")].filter(Boolean).join(" · ")),
      part && h("progress", { max: String(part.total || 1), value: part.done, "aria-label": `${model.id}: ${STATES[state]}` }),
    );
    if (!model.status) return h("div", { class: "model-row" }, pick);
    const isUp = state === "loaded" || state === "loading" || state === "downloading";
    const action = isUp ? "unload" : "load";
    const label = state === "downloading" ? "Cancel" : isUp ? "Unload" : "Load";
    const button = h(
      "button",
      { type: "button", class: "plain", "aria-label": `${label} ${model.id}`, "data-key": `act ${model.id}`, onclick: () => this.#change(action, model.id) },
      label,
    );
    return h("div", { class: "model-row" }, pick, button);
  }

  #download(name, { done, total }) {
    const text = total ? `${Math.round((100 * done) / total)} %` : "";
    return h(
      "div",
      { class: "model-row" },
      h("div", { class: "pick" }, h("span", { class: "model-name" }, name), h("small", {}, `downloading ${text}`), h("progress", { max: String(total || 1), value: done, "aria-label": `Download of ${name}` })),
      h("button", { type: "button", class: "plain", "aria-label": `Cancel ${name}`, onclick: () => this.#change("unload", name) }, "Cancel"),
    );
  }

  #choose(id) {
    this.choose(id);
    this.show();
    this.#close();
  }

  async #change(action, id) {
    try {
      await models.change(action, id);
    } catch (error) {
      notify(words(error));
    }
  }

  async #fetch() {
    const field = h("input", { type: "text", "aria-label": "Name of the model", placeholder: "smollm2, or org/repo:Q4_K_M" });
    if ((await ask("Download a model", [field], { confirm: "Download" })) && field.value.trim()) await this.#change("fetch", field.value.trim());
  }
}
