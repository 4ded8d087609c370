// One answer that this tab receives and writes down: from the POST, over broken connections, to its end.

import { ApiError, call, words } from "./api.js";
import { add, deltaOf, merged } from "./answers.js";
import { EventBytes } from "./sse.js";
import * as store from "./store.js";

const WRITE_MS = 250;
const AGAIN_MS = 2000;
const PATIENCE_MS = 300_000;
const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

class Kicked extends Error {}
class OffsetLost extends Error {}

/** How the server knows the stream: by the model that it began with, whatever is chosen now. */
export function nameOf({ conversation, model }) {
  return model ? `${conversation}::${model}` : conversation;
}

const pathOf = (stream, more = "") => `v1/stream?conv_id=${encodeURIComponent(nameOf(stream))}${more}`;

/** Ends the answer on the server, whoever reads it. */
export function stopOnServer(stream) {
  return call(pathOf(stream), { method: "DELETE" });
}

export class Reader {
  #owner;
  #tell;
  #bytes;
  #pending = null;
  #n;
  #writing = Promise.resolve();
  #timer = null;
  #abort = new AbortController();
  #isStopped = false;
  #isGone = false;

  /** `tell(kind, more)`: delta, reset, state, end. `message` holds what was written so far. */
  constructor(stream, message, owner, tell) {
    this.stream = stream;
    this.message = message;
    this.isThinking = false;
    this.heardAt = performance.now();
    this.#owner = owner;
    this.#tell = tell;
    this.#bytes = new EventBytes(stream.offset);
    this.#n = message.pieces ?? 0;
  }

  /** Until the answer has ended, or belongs to another tab. `body`: a request to send first; null to read on. */
  async run(body) {
    const beat = setInterval(() => this.#write(), 1000);
    try {
      const error = body ? await this.#begun(body) : await this.#readOn();
      if (!this.#isGone) await this.#end(error);
    } finally {
      clearInterval(beat);
      clearTimeout(this.#timer);
    }
  }

  /** The button. The answer keeps what it has. */
  stop() {
    this.#isStopped = true;
    this.#abort.abort();
    return stopOnServer(this.stream).catch(() => {});
  }

  /** Another tab has told the server. */
  stopped() {
    this.#isStopped = true;
    this.#abort.abort();
  }

  /** The connection is silent: ask again for what comes behind the last whole event. */
  kick() {
    this.#abort.abort(new Kicked());
  }

  /** The page is being closed. */
  leaveAtOnce() {
    if (!this.#pending || this.#isOver) return;
    store.writeLast(this.#owner, { message: this.message.id, n: this.#n, delta: this.#pending, offset: this.#bytes.offset });
  }

  // --- connections --------------------------------------------------------------------------

  async #begun(body) {
    try {
      const response = await call("v1/chat/completions", {
        method: "POST",
        json: body,
        headers: { "X-Conversation-Id": nameOf(this.stream) },
        signal: this.#abort.signal,
      });
      if (await this.#consumed(response)) return null;
    } catch (error) {
      if (this.#isOver) return null;
      if (error instanceof ApiError && error.status) return error;
      if (error instanceof ApiError && !(await this.#isKnown())) return error;
    }
    return this.#readOn();
  }

  /** Whether the server has the request, although its answer didn't arrive. */
  async #isKnown() {
    try {
      await call(pathOf(this.stream, `&from=${this.#bytes.offset}`), { method: "HEAD" });
      return true;
    } catch (error) {
      return error.status === 503;
    }
  }

  /** Asks for what comes next, again and again. The error that it ended with, or null. */
  async #readOn() {
    let nothingNew = 0;
    const since = () => performance.now() - this.heardAt;
    while (!this.#isOver) {
      const begun = this.#bytes.offset;
      try {
        this.#abort = new AbortController();
        const from = `&from=${this.#bytes.offset}`;
        const response = await call(pathOf(this.stream, from), { signal: this.#abort.signal });
        if (await this.#consumed(response)) return null;
        nothingNew = this.#bytes.offset > begun ? 0 : nothingNew + 1;
        if (nothingNew > 1) return new Error("The answer broke off.");
      } catch (error) {
        if (this.#isOver) return null;
        if (error instanceof OffsetLost || error.code === "stream_offset_lost") {
          if (!(await this.#again())) return this.#isGone ? null : new Error("Parts of this answer are lost.");
        } else if (error.status === 503) {
          this.heardAt = performance.now();
          this.#tell("state", { waiting: true });
          await pause(AGAIN_MS);
        } else if (error.status) {
          return error.status === 404 ? new Error("The server no longer has this answer.") : error;
        } else if (!(error instanceof Kicked)) {
          if (since() > PATIENCE_MS) return error;
          this.#tell("state", { broken: true });
          await pause(AGAIN_MS);
        }
      }
    }
    return null;
  }

  /** Anew from the first byte. False where that is gone, too; then the message keeps what it has. */
  async #again() {
    await this.#writing;
    if (this.#bytes.offset === 0) return false;
    try {
      await call(pathOf(this.stream, "&from=0"), { method: "HEAD" });
    } catch (error) {
      if (error.status === 400) return false;
    }
    const fresh = await store.restart(this.stream.conversation, this.#owner);
    if (!fresh) {
      this.#isGone = true;
      return false;
    }
    this.#pending = null;
    this.#n = 0;
    this.#bytes = new EventBytes(0);
    this.message = fresh;
    this.isThinking = false;
    this.#tell("reset", {});
    return true;
  }

  /** Whether the answer came to its end. */
  async #consumed(response) {
    const body = response.body.getReader();
    const abort = this.#abort.signal;
    for (;;) {
      const { done, value } = await body.read();
      if (abort.aborted) throw abort.reason;
      if (done) return false;
      this.heardAt = performance.now();
      const events = this.#bytes.feed(value);
      let delta = null;
      for (const event of events) {
        if (event.data === "[DONE]") {
          this.#take(delta);
          return true;
        }
        const chunk = JSON.parse(event.data);
        if (chunk.error) {
          this.#take(delta);
          if (chunk.error.code === "stream_offset_lost") throw new OffsetLost();
          this.message.error = words(chunk.error);
          return true;
        }
        const next = deltaOf(chunk);
        delta = delta ? merged(delta, next) : next;
      }
      this.#take(delta);
      this.#writeSoon();
    }
  }

  #take(delta) {
    if (!delta) return;
    const { progress, ...kept } = delta;
    this.#timeThought(kept);
    add(this.message, kept);
    if (Object.keys(kept).length) this.#pending = this.#pending ? merged(this.#pending, kept) : kept;
    this.#tell("delta", { delta });
  }

  /** Thinking begins with its first text, and ends with the first of the answer or of a call. */
  #timeThought(delta) {
    if (delta.thinking && !this.message.thinking) this.message.thoughtFrom = Date.now();
    if (delta.content || delta.calls || delta.finish) {
      if (this.isThinking || delta.thinking) delta.thinkMs = Date.now() - (this.message.thoughtFrom ?? Date.now());
      this.isThinking = false;
    } else if (delta.thinking) {
      this.isThinking = true;
    }
  }

  // --- what is kept -------------------------------------------------------------------------

  #writeSoon() {
    this.#timer ??= setTimeout(() => this.#write(), WRITE_MS);
  }

  #write() {
    clearTimeout(this.#timer);
    this.#timer = null;
    const delta = this.#pending;
    const offset = this.#bytes.offset;
    this.#pending = null;
    const n = this.#n;
    if (delta) this.#n += 1;
    const { conversation } = this.stream;
    // Begun at once: a page that is being closed carries out what it has begun.
    const write = store.write(conversation, this.#owner, { message: this.message.id, n, delta, offset });
    this.#writing = Promise.all([this.#writing, write]).then(([, isOurs]) => {
      if (!isOurs && !this.#isOver) this.#lose();
    }, () => {});
  }

  /** Another tab has taken it, or the conversation is deleted. */
  #lose() {
    this.#isGone = true;
    this.#abort.abort();
  }

  get #isOver() {
    return this.#isStopped || this.#isGone;
  }

  async #end(error) {
    clearTimeout(this.#timer);
    await this.#writing;
    if (this.#isGone) return;
    const message = this.message;
    this.isThinking = false;
    if (this.#isStopped) message.finish ??= "stopped";
    else if (error) message.error = words(error);
    if (message.error) message.finish ??= "error";
    delete message.thoughtFrom;
    await store.finish(this.stream.conversation, this.#owner, message).catch((fault) => (message.error = words(fault)));
    this.#tell("end", { message });
  }
}
