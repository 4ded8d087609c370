// The models of this server: one list for all parts of the page, kept true by /models/sse where there are several.

import { call, callJson } from "./api.js";
import { EventBytes } from "./sse.js";

const CHOSEN = "imp.model";

class Models extends EventTarget {
  #loading = null;
  list = [];
  /** By model: progress of a load (0 to 1) or of a download ({done, total}). */
  progress = new Map();

  /** The list; fetched once, whoever asks. `anew`: fetched again. `quiet`: without asking for a key. */
  load({ anew = false, quiet = anew } = {}) {
    if (anew) this.#loading = null;
    this.#loading ??= callJson(anew ? "v1/models?reload=true" : "v1/models", { quiet }).then(
      ({ data }) => {
        this.list = data;
        this.#told();
        if (this.areSeveral && !this.#following) this.#follow();
        return data;
      },
      (error) => {
        this.#loading = null;
        throw error;
      },
    );
    return this.#loading;
  }

  #following = false;

  get areSeveral() {
    return this.list.some((one) => one.status);
  }

  find(name) {
    return this.list.find((one) => one.id === name) ?? null;
  }

  /** The name that new conversations use; it persists. */
  get chosen() {
    const kept = localStorage.getItem(CHOSEN);
    if (kept && this.find(kept)) return kept;
    const loaded = this.list.find((one) => one.loaded) ?? this.list[0];
    return loaded?.id ?? "";
  }

  set chosen(name) {
    localStorage.setItem(CHOSEN, name);
    this.#told();
  }

  stateOf(model) {
    return model.status?.value ?? (model.loaded ? "loaded" : "loading");
  }

  change(action, model) {
    if (action === "fetch") return callJson("models", { method: "POST", json: { model } });
    return callJson(`models/${action}`, { method: "POST", json: { model } });
  }

  async #follow() {
    this.#following = true;
    for (;;) {
      try {
        const response = await call("models/sse", { quiet: true });
        const reader = response.body.getReader();
        const bytes = new EventBytes();
        for (;;) {
          const { done, value } = await reader.read();
          if (done) break;
          for (const { data } of bytes.feed(value)) await this.#happened(JSON.parse(data));
        }
      } catch {
        // asked again below
      }
      await new Promise((resolve) => setTimeout(resolve, 3000));
    }
  }

  async #happened({ model, data }) {
    const found = this.find(model);
    const { status, progress, error } = data;
    this.progress.delete(model);
    if (status === "loading" && progress) this.progress.set(model, { done: progress.value, total: 1 });
    if (status === "downloading" && progress) {
      const files = Object.values(progress);
      const sum = (key) => files.reduce((all, file) => all + (file[key] ?? 0), 0);
      this.progress.set(model, { done: sum("done"), total: sum("total") });
    }
    if (found && status !== "downloaded" && status !== "removed") {
      found.status = { value: status, failed: Boolean(error), ...(error ? { error } : {}) };
      found.loaded = status === "loaded";
    } else if (status === "downloaded" || status === "removed" || (!found && status !== "downloading")) {
      await this.load({ anew: true }).catch(() => {});
    }
    if (status === "loaded" && found && !found.max_model_len) await this.load({ anew: true }).catch(() => {});
    this.#told();
  }

  #told() {
    this.dispatchEvent(new Event("change"));
  }
}

export const models = new Models();
