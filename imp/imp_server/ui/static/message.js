// One message on the page: what is said, and what may be done with it.

import { prettyJson } from "./answers.js";
import { copyButton, h, icon, tool } from "./dom.js";
import { Article } from "./markdown.js";
import { withFiles } from "./requests.js";

const seconds = (ms) => (ms < 10_000 ? (ms / 1000).toFixed(1) : Math.round(ms / 1000)) + " s";
const number = (value) => Math.round(value).toLocaleString();

/** Speed and counts under an answer, in words. */
export function statistics(message) {
  const { usage, timings } = message;
  const parts = [];
  if (timings?.predicted_per_second) parts.push(`${timings.predicted_per_second.toFixed(1)} tokens/s`);
  if (usage) parts.push(`${number(usage.completion_tokens)} tokens`);
  if (usage) {
    const cached = usage.prompt_tokens_details?.cached_tokens ?? 0;
    parts.push(`prompt ${number(usage.prompt_tokens)}${cached ? `, ${number(cached)} from cache` : ""}`);
  }
  const drafted = usage?.completion_tokens_details?.imp_spec_drafted;
  if (drafted) parts.push(`${number(usage.completion_tokens_details.imp_spec_accepted)} of ${number(drafted)} drafts right`);
  return parts.join(" · ");
}

const ENDS = {
  length: "Cut: it reached the longest answer allowed.",
  stopped: "Stopped.",
};

class Shell {
  /** `actions`: what the view does on a click; `versions`: {at, of}. */
  constructor(message, actions, versions) {
    this.message = message;
    this.actions = actions;
    this.element = h("article", { class: `message ${message.role}`, "data-id": message.id });
    this.bar = h("div", { class: "bar", role: "group", "aria-label": "Message" });
    this.versions = versions;
  }

  branches() {
    const { at, of } = this.versions;
    if (of < 2) return null;
    return h(
      "span",
      { class: "branches" },
      tool("left", "Previous version", () => this.actions.turn(this.message, -1), { disabled: at === 0 }),
      h("span", { "aria-live": "polite" }, `${at + 1} / ${of}`),
      tool("right", "Next version", () => this.actions.turn(this.message, 1), { disabled: at === of - 1 }),
    );
  }
}

export class Question extends Shell {
  constructor(message, actions, versions) {
    super(message, actions, versions);
    this.element.setAttribute("aria-label", message.role === "tool" ? "Result of a tool" : "You");
    const files = (message.files ?? []).map((file) =>
      h("details", { class: "file" }, h("summary", {}, icon("clip"), file.name), h("pre", { tabindex: "0" }, file.text)),
    );
    const head = message.role === "tool" ? h("div", { class: "call-head" }, "Result of the tool") : null;
    this.body = h("div", { class: "said" }, head, ...files, h("div", { class: "text" }, message.content));
    this.bar.append(
      ...[
        this.branches(),
        copyButton(() => withFiles(message), "Copy message"),
        message.role === "user" && tool("edit", "Edit message", () => this.edit()),
      ].filter(Boolean),
    );
    this.element.append(this.body, this.bar);
  }

  edit() {
    const field = h("textarea", { "aria-label": "Edit message", rows: "3", value: this.message.content });
    const back = () => {
      box.replaceWith(this.body);
      this.bar.hidden = false;
    };
    const send = () => this.actions.resend(this.message, field.value);
    const box = h(
      "div",
      { class: "editing" },
      field,
      h(
        "div",
        { class: "buttons" },
        h("button", { type: "button", class: "plain", onclick: back }, "Cancel"),
        h("button", { type: "button", class: "primary", onclick: send }, "Send"),
      ),
    );
    field.addEventListener("keydown", (event) => {
      if (event.key === "Escape") {
        event.stopPropagation();
        back();
      } else if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
        event.preventDefault();
        send();
      }
    });
    this.body.replaceWith(box);
    this.bar.hidden = true;
    field.focus();
  }
}

export class Answer extends Shell {
  #thinkingArticle = null;
  #timer = null;

  constructor(message, actions, versions) {
    super(message, actions, versions);
    this.element.setAttribute("aria-label", "Answer");
    this.thought = this.#newThought();
    this.text = h("div", { class: "text prose" });
    this.article = new Article(this.text);
    this.calls = h("div", { class: "calls" });
    this.status = h("div", { class: "status", role: "status" });
    this.problem = h("div", { class: "problem", role: "alert" });
    this.element.append(this.thought, this.text, this.calls, this.status, this.problem, this.bar);
    this.isRunning = false;
    this.show(message, false);
  }

  /** All of it anew. */
  show(message, isRunning, isThinking = false) {
    this.message = message;
    this.isRunning = isRunning;
    this.article.clear();
    this.#thinkingArticle = null;
    this.thoughtText.replaceChildren();
    this.thought.hidden = !message.thinking;
    if (this.thought.open) this.#openThought();
    this.#showContent();
    this.#showCalls();
    this.#showState(isThinking);
  }

  /** More of it: `delta` is in `message` already. */
  grow(message, delta, isThinking) {
    this.message = message;
    if (delta.content) this.article.append(delta.content);
    if (delta.thinking) {
      this.thought.hidden = false;
      this.#thinkingArticle?.append(delta.thinking);
    }
    if (delta.calls) this.#showCalls();
    if (delta.progress) this.#showProgress(delta.progress);
    else if (delta.content || delta.thinking || delta.calls) this.status.textContent = "";
    this.#showThought(isThinking);
  }

  ended(message) {
    this.message = message;
    this.isRunning = false;
    this.#thinkingArticle?.end();
    const pretty = prettyJson(message.content);
    if (pretty) {
      this.article.clear();
      this.article.append("```json\n" + pretty + "\n```\n");
    }
    this.article.end();
    this.#showCalls();
    this.#showState(false);
  }

  told({ waiting, broken }) {
    if (waiting) this.status.textContent = "Waiting for the model…";
    if (broken) this.status.textContent = "The connection broke; reading on as soon as it is back…";
  }

  #showContent() {
    const pretty = this.isRunning ? null : prettyJson(this.message.content);
    this.article.append(pretty ? "```json\n" + pretty + "\n```\n" : this.message.content);
    if (!this.isRunning) this.article.end();
  }

  #newThought() {
    this.thoughtTitle = h("span", {}, "Thinking");
    this.skip = h("button", { type: "button", class: "skip", onclick: () => this.#skip() }, icon("skip"), "Skip thinking");
    this.thoughtText = h("div", { class: "prose" });
    const details = h("details", { class: "thought" }, h("summary", {}, this.thoughtTitle), this.thoughtText);
    details.addEventListener("toggle", () => details.open && this.#openThought());
    // Beside the fold, not within its summary: a button in a button is none for screen readers.
    const box = h("div", { class: "thinking", hidden: true }, details, this.skip);
    Object.defineProperty(box, "open", { get: () => details.open });
    return box;
  }

  /** What is folded isn't rendered. */
  #openThought() {
    if (this.#thinkingArticle) return;
    this.#thinkingArticle = new Article(this.thoughtText);
    this.#thinkingArticle.append(this.message.thinking);
    if (!this.isRunning) this.#thinkingArticle.end();
  }

  #showThought(isThinking) {
    this.skip.hidden = !isThinking;
    this.element.classList.toggle("is-thinking", isThinking);
    if (isThinking) {
      this.#timer ??= setInterval(() => this.#tick(), 500);
      this.#tick();
    } else {
      clearInterval(this.#timer);
      this.#timer = null;
      if (this.message.thinking) this.thoughtTitle.textContent = this.message.thinkMs ? `Thought for ${seconds(this.message.thinkMs)}` : "Thought";
    }
  }

  #tick() {
    if (!this.element.isConnected) {
      clearInterval(this.#timer);
      this.#timer = null;
      return;
    }
    const from = this.message.thoughtFrom;
    this.thoughtTitle.textContent = from ? `Thinking for ${seconds(Date.now() - from)}` : "Thinking…";
  }

  async #skip() {
    this.skip.disabled = true;
    this.status.textContent = await this.actions.skip(this.message);
    this.skip.disabled = false;
  }

  #showCalls() {
    const { calls } = this.message;
    this.calls.hidden = !calls.length;
    this.calls.replaceChildren(...calls.filter(Boolean).map((call) => this.#call(call)));
  }

  #call(call) {
    const box = h(
      "section",
      { class: "call", "aria-label": "Tool call" },
      h("div", { class: "call-head" }, icon("flask"), "Calls ", h("code", {}, call.name)),
      h("pre", { tabindex: "0" }, prettyJson(call.text) ?? call.text),
    );
    if (!this.isRunning && this.message.finish === "tool_calls" && !this.actions.isAnswered(call.id)) {
      const field = h("textarea", { rows: "2", "aria-label": "Result of the tool", placeholder: "Result of the tool" });
      const send = () => this.actions.result(this.message, call, field.value);
      box.append(field, h("button", { type: "button", class: "plain", onclick: send }, "Send result"));
    }
    return box;
  }

  #showProgress({ total, cache, processed }) {
    if (processed >= total) {
      this.status.textContent = "";
      return;
    }
    const part = total > cache ? Math.round((100 * (processed - cache)) / (total - cache)) : 0;
    this.status.textContent = `Reading the prompt: ${part} % of ${number(total - cache)} tokens`;
  }

  #showState(isThinking) {
    const { message } = this;
    this.element.classList.toggle("running", this.isRunning);
    this.element.setAttribute("aria-busy", String(this.isRunning));
    this.status.textContent = this.isRunning ? "" : (ENDS[message.finish] ?? "");
    this.problem.textContent = message.error ?? "";
    this.problem.hidden = !message.error;
    this.#showThought(isThinking);
    this.bar.hidden = this.isRunning;
    if (!this.isRunning) this.bar.replaceChildren(...this.#tools().filter(Boolean));
  }

  #tools() {
    const { message, actions } = this;
    const canGoOn = message.content && (message.error || ["stopped", "length", "error"].includes(message.finish));
    return [
      this.branches(),
      copyButton(() => message.content, "Copy answer"),
      tool("again", "Answer again", () => actions.again(message)),
      canGoOn && tool("forward", "Continue this answer", () => actions.goOn(message)),
      h("span", { class: "numbers" }, [message.model, statistics(message)].filter(Boolean).join(" · ")),
    ];
  }
}
