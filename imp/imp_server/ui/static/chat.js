// The chat: one conversation, its messages, and where the next one is written.

import { callJson, words } from "./api.js";
import { Composer } from "./composer.js";
import { h, notify } from "./dom.js";
import { Answer, Question } from "./message.js";
import { models } from "./models.js";
import { bodyOf } from "./requests.js";
import * as store from "./store.js";
import { deepest, path, siblings, titleOf } from "./tree.js";

const EXAMPLES = [
  ["Explain", "Explain how a hash table works, with a small example in Python."],
  ["Write", "Write a polite e-mail that moves a meeting from Tuesday to Thursday."],
  ["Structure", "List five rivers of Europe as a table with length and countries."],
];

export class Chat {
  #streams;
  #shown = new Map();
  #messages = new Map();
  #grown = new Map();
  #isDrawing = false;
  #turn = 0;
  #follows = true;

  /** `onchange`: the conversation's title or its place changed. */
  constructor(streams, onchange) {
    this.#streams = streams;
    this.onchange = onchange;
    this.conversation = store.newConversation();
    this.isNew = true;
    this.log = h("div", { class: "log", role: "log", "aria-label": "Conversation", "aria-live": "off" });
    this.empty = this.#emptyState();
    this.scroller = h("div", { class: "scroller", tabindex: "-1" }, this.empty, this.log);
    this.composer = new Composer({
      send: (text, files) => this.send(text, files),
      stop: () => this.stop(),
      editLast: () => this.editLast(),
    });
    this.told = h("p", { class: "off-screen", role: "status" });
    this.element = h("section", { class: "chat", "aria-label": "Chat" }, this.scroller, this.told, this.composer.element);
    this.scroller.addEventListener("scroll", () => this.#noteScroll(), { passive: true });
    for (const type of ["delta", "reset", "state", "end", "changed", "running"]) {
      streams.addEventListener(type, ({ detail }) => detail.conversation === this.conversation.id && this.#happened(type, detail));
    }
    models.addEventListener("change", () => this.showContext());
  }

  get model() {
    return this.conversation.model && models.find(this.conversation.model) ? this.conversation.model : models.chosen;
  }

  // --- which conversation -------------------------------------------------------------------

  fresh() {
    this.#turn += 1;
    this.conversation = store.newConversation();
    this.isNew = true;
    this.#messages = new Map();
    this.#draw();
    this.composer.focus();
  }

  /** False if there is no such conversation any more. */
  async open(id) {
    const turn = ++this.#turn;
    const loaded = await store.load(id);
    if (turn !== this.#turn) return true;
    if (!loaded) return false;
    this.conversation = loaded.conversation;
    this.isNew = false;
    this.#messages = loaded.messages;
    this.#follows = true;
    await this.#showLoaded(loaded.stream);
    return true;
  }

  // --- what is asked ------------------------------------------------------------------------

  async send(text, files) {
    const parent = this.conversation.leaf;
    const question = store.newMessage(this.conversation.id, "user", parent, files.length ? { content: text, files } : { content: text });
    if (this.isNew) this.conversation.title = titleOf(text || files[0].name);
    if (!(await this.#ask([question], question.id))) this.composer.putBack(text, files);
  }

  /** The question as it is now, beside the one that it was. */
  async resend(message, text) {
    const changed = store.newMessage(this.conversation.id, "user", message.parent, { content: text, ...(message.files ? { files: message.files } : {}) });
    await this.#ask([changed], changed.id);
  }

  async again(message) {
    await this.#ask([], message.parent);
  }

  async result(message, call, text) {
    const told = store.newMessage(this.conversation.id, "tool", this.#lastResult(message), { call: call.id, content: text });
    this.#messages.set(told.id, told);
    this.conversation.leaf = told.id;
    if (message.calls.every((one) => this.isAnswered(one.id))) await this.#ask([told], told.id);
    else {
      await store.save(this.conversation, [told]);
      this.#draw();
    }
  }

  /** Whether a call of a tool has its result, on the path that is shown. */
  isAnswered(call) {
    return path(this.#messages, this.conversation.leaf).some((one) => one.role === "tool" && one.call === call);
  }

  #lastResult(message) {
    const leaf = this.conversation.leaf;
    return path(this.#messages, leaf).includes(message) ? leaf : message.id;
  }

  /** The same message goes on: what it has is the beginning of the answer. It is found by its id, wherever it stands. */
  async goOn(message) {
    const target = this.#messages.get(message.id);
    const beginning = { ...target, finish: null, error: undefined, usage: null, timings: null };
    await this.#begin(beginning, path(this.#messages, target.id), [beginning]);
  }

  /** Whether it was sent; else nothing has changed. */
  async #ask(questions, parent) {
    for (const one of questions) this.#messages.set(one.id, one);
    const answer = store.newMessage(this.conversation.id, "assistant", parent, { model: this.model });
    answer.created += 1;
    const isSent = await this.#begin(answer, path(this.#messages, parent), [...questions, answer]);
    if (!isSent) for (const one of questions) this.#messages.delete(one.id);
    return isSent;
  }

  async #begin(answer, asked, changed) {
    const { conversation } = this;
    if (this.#streams.isRunning(conversation.id)) {
      notify("An answer is being written; stop it first.");
      return false;
    }
    let body;
    try {
      await models.load();
      body = bodyOf(conversation, asked, answer.model || this.model);
    } catch (error) {
      notify(error instanceof SyntaxError ? "The tools in the settings aren't JSON." : words(error));
      return false;
    }
    answer.model = body.model;
    const begun = { ...conversation, model: body.model, leaf: answer.id, updated: Date.now() };
    try {
      await this.#streams.start(begun, changed, answer, body);
    } catch (error) {
      notify(`This can't be kept: ${words(error)}`);
      return false;
    }
    Object.assign(conversation, begun);
    if (this.conversation !== conversation) return true;
    this.#messages.set(answer.id, answer);
    this.isNew = false;
    this.#follows = true;
    this.onchange(conversation);
    this.#draw();
    return true;
  }

  async stop() {
    await this.#streams.stop(this.conversation.id);
  }

  /** What became of the wish, in words. */
  async skip(message) {
    if (!message.completion) return "This answer has no id yet, so its thinking can't be skipped.";
    try {
      const told = await callJson("v1/chat/completions/control", {
        method: "POST",
        json: { id: message.completion, action: "reasoning_end", model: message.model },
      });
      return told.success ? "" : `Nothing was skipped: ${told.message ?? "it wasn't thinking any more"}`;
    } catch (error) {
      return `Nothing was skipped: ${words(error)}`;
    }
  }

  async turn(message, step) {
    const versions = siblings(this.#messages, message);
    const next = versions[versions.indexOf(message) + step];
    if (!next) return;
    this.conversation.leaf = deepest(this.#messages, next.id);
    this.#follows = false;
    this.#draw();
    this.log.querySelector(`[data-id="${next.id}"] .branches button:not([disabled])`)?.focus();
    await store.update(this.conversation.id, { leaf: this.conversation.leaf });
  }

  editLast() {
    const last = path(this.#messages, this.conversation.leaf).findLast((one) => one.role === "user");
    this.#shown.get(last?.id)?.edit();
  }

  // --- what is shown ------------------------------------------------------------------------

  #draw() {
    const shown = path(this.#messages, this.conversation.leaf);
    const live = this.#streams.live(this.conversation.id);
    this.#shown.clear();
    this.#grown.clear();
    const views = shown.map((message) => {
      const versions = siblings(this.#messages, message);
      const place = { at: versions.indexOf(message), of: versions.length };
      const view = message.role === "assistant" ? new Answer(message, this, place) : new Question(message, this, place);
      this.#shown.set(message.id, view);
      return view;
    });
    this.log.replaceChildren(...views.map((view) => view.element));
    if (live) this.#shown.get(live.id)?.show(live, true, this.#streams.isThinking(this.conversation.id));
    this.empty.hidden = shown.length > 0;
    this.#showRunning();
    this.showContext();
    this.#scroll();
  }

  #happened(type, detail) {
    if (type === "running") this.#showRunning();
    else if (type === "changed") this.#reload();
    else if (type === "delta") this.#note(detail);
    else if (type === "reset") this.#grown.clear(), this.#draw();
    else if (type === "state") this.#shown.get(detail.message)?.told(detail);
    else {
      this.#flush();
      this.#messages.set(detail.message.id, detail.message);
      const view = this.#shown.get(detail.message.id);
      if (view) view.ended(detail.message);
      else this.#reload();
      this.#showRunning();
      this.showContext();
      this.#scroll();
    }
  }

  async #reload() {
    const { id } = this.conversation;
    const loaded = await store.load(id);
    if (id !== this.conversation.id) return;
    if (!loaded) {
      location.hash = "#/"; // another tab has deleted it
      return;
    }
    this.conversation = loaded.conversation;
    this.#messages = loaded.messages;
    await this.#showLoaded(loaded.stream);
  }

  /** An answer that is being made is taken up before it is drawn, so that it never looks as if it had ended. */
  async #showLoaded(stream) {
    const { id } = this.conversation;
    try {
      if (stream) await this.#streams.attach(id);
    } finally {
      if (this.conversation.id === id) this.#draw();
    }
  }

  /** Drawn once per frame, however fast tokens come. */
  #note({ message, delta }) {
    const list = this.#grown.get(message) ?? [];
    list.push(delta);
    this.#grown.set(message, list);
    if (this.#isDrawing) return;
    this.#isDrawing = true;
    const draw = () => {
      this.#isDrawing = false;
      this.#flush();
    };
    if (document.visibilityState === "visible") requestAnimationFrame(draw);
    else setTimeout(draw, 250);
  }

  #flush() {
    const id = this.conversation.id;
    const live = this.#streams.live(id);
    for (const [message, deltas] of this.#grown) {
      const view = this.#shown.get(message);
      const all = { calls: null, progress: null, content: "", thinking: "" };
      for (const delta of deltas) {
        all.content += delta.content ?? "";
        all.thinking += delta.thinking ?? "";
        all.calls ??= delta.calls ?? null;
        all.progress = delta.content || delta.thinking ? null : (delta.progress ?? all.progress);
      }
      const isThinking = this.#streams.isThinking(id);
      if (view && !view.isRunning && live?.id === message) view.show(live, true, isThinking);
      else view?.grow(live?.id === message ? live : view.message, all, isThinking);
    }
    this.#grown.clear();
    this.#scroll();
  }

  #showRunning() {
    const isRunning = this.#streams.isRunning(this.conversation.id);
    if (this.composer.isRunning && !isRunning) this.told.textContent = "The answer has ended.";
    else if (isRunning) this.told.textContent = "An answer is being written.";
    this.composer.running = isRunning;
  }

  showContext() {
    const last = path(this.#messages, this.conversation.leaf).findLast((one) => one.usage);
    const most = models.find(this.model)?.max_model_len;
    const used = last ? last.usage.prompt_tokens + last.usage.completion_tokens : 0;
    this.composer.showContext(used, most);
  }

  #noteScroll() {
    const { scrollTop, scrollHeight, clientHeight } = this.scroller;
    this.#follows = scrollHeight - scrollTop - clientHeight < 60;
  }

  #scroll() {
    if (this.#follows) this.scroller.scrollTop = this.scroller.scrollHeight;
  }

  #emptyState() {
    const examples = EXAMPLES.map(([name, text]) =>
      h("button", { type: "button", class: "example", onclick: () => this.composer.fill(text) }, h("b", {}, name), h("span", {}, text)),
    );
    return h(
      "div",
      { class: "empty" },
      h("h1", {}, "What shall we work on?"),
      h("p", {}, "Everything you write stays between this browser and this server."),
      h("div", { class: "examples" }, ...examples),
    );
  }
}
