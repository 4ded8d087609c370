// All running answers: those that this tab writes, and those that it reads along while another tab writes.
//
// Events of the target: `delta` {conversation, message, delta}, `reset`, `state`, `end` {conversation, message},
// `running` (which conversations run has changed), `changed` {conversation} (another tab changed it).

import { callJson } from "./api.js";
import { add } from "./answers.js";
import { debug, newId } from "./dom.js";
import { Reader, nameOf, stopOnServer } from "./reader.js";
import * as store from "./store.js";

const GRACE_MS = 1000;
const LOOK_MS = 1000;
const AT_ONCE = 3;

const NAME = "imp.tab";

/** A page that is loaded again is the same writer. The name lies there only in between, so a copy of a tab has none. */
function ownName() {
  const name = sessionStorage.getItem(NAME) ?? newId();
  sessionStorage.removeItem(NAME);
  return name;
}

export class Streams extends EventTarget {
  #me = ownName();
  #channel = new BroadcastChannel("imp");
  #readers = new Map();
  #followed = new Map();
  #running = new Set();
  #discovering = null;
  #counts = new Map();

  constructor() {
    super();
    this.#channel.onmessage = (event) => this.#heard(event.data);
    document.addEventListener("visibilitychange", () => this.#seen());
    addEventListener("pagehide", () => this.#leave());
    addEventListener("pageshow", (event) => {
      sessionStorage.removeItem(NAME);
      if (event.persisted) this.discover();
    });
    setInterval(() => this.#look(), LOOK_MS);
  }

  // --- asked by the views -------------------------------------------------------------------

  /** Conversations whose answer is being made, wherever it is read. */
  get running() {
    return this.#running;
  }

  isRunning(conversation) {
    return this.#running.has(conversation);
  }

  /** The message that is being written, as this tab knows it; null for none. */
  live(conversation) {
    return this.#readers.get(conversation)?.message ?? this.#followed.get(conversation)?.message ?? null;
  }

  isThinking(conversation) {
    return (this.#readers.get(conversation) ?? this.#followed.get(conversation))?.isThinking ?? false;
  }

  /** Ask for an answer. `messages`: those that are new, the answer's own among them. */
  async start(conversation, messages, answer, body) {
    const stream = {
      conversation: conversation.id,
      model: body.model,
      message: answer.id,
      offset: 0,
      owner: this.#me,
      beat: Date.now(),
      began: Date.now(),
    };
    await store.begin(conversation, messages, stream);
    this.#post({ type: "begin", conversation: conversation.id });
    this.#read(stream, { ...answer }, body);
  }

  async stop(conversation) {
    const reader = this.#readers.get(conversation);
    if (reader) return reader.stop();
    const stream = this.#followed.get(conversation)?.stream ?? (await this.#row(conversation));
    if (!stream) return undefined;
    this.#post({ type: "stop", conversation });
    return stopOnServer(stream);
  }

  /** Before a conversation is deleted. */
  async drop(conversation) {
    await this.stop(conversation)?.catch?.(() => {});
    this.#followed.delete(conversation);
    this.#mark(conversation, false);
  }

  tellChanged(conversation) {
    this.#post({ type: "changed", conversation });
  }

  /** Read on, or read along, if an answer of the conversation is being made. */
  async attach(conversation) {
    if (this.#readers.has(conversation)) return;
    const taken = await store.takeOver(conversation, this.#me);
    if (this.#readers.has(conversation)) return;
    if (taken) {
      this.#followed.delete(conversation);
      this.#read(taken.stream, taken.message, null);
      return;
    }
    const stream = await this.#row(conversation);
    if (!stream) {
      this.#followed.delete(conversation);
      this.#mark(conversation, false);
      return;
    }
    if (!this.#followed.has(conversation)) {
      const loaded = await store.load(conversation);
      const message = loaded?.messages.get(stream.message);
      if (!message) return;
      this.#followed.set(conversation, { stream, message, n: -1, isThinking: false, heardAt: performance.now() });
    }
    this.#mark(conversation, true);
    this.#post({ type: "sync?", conversation });
  }

  /** Which answers are being made: first what is known here, then what the server says. One at a time. */
  discover() {
    this.#discovering ??= this.#discover().finally(() => (this.#discovering = null));
    return this.#discovering;
  }

  // --- within -------------------------------------------------------------------------------

  async #row(conversation) {
    return (await store.streams()).find((row) => row.conversation === conversation) ?? null;
  }

  async #discover() {
    const rows = await store.streams();
    for (const row of rows) this.#mark(row.conversation, true);
    const others = rows.filter((row) => !this.#readers.has(row.conversation)).sort((a, b) => b.began - a.began);
    if (!others.length) return;
    const found = await callJson("v1/streams/lookup", {
      method: "POST",
      json: { conversation_ids: others.slice(0, 1000).map((row) => row.conversation) },
      quiet: true,
    }).catch(() => null);
    if (!found) return;
    const known = new Set(found.map((one) => one.conversation_id));
    const ended = new Set(found.filter((one) => one.is_done).map((one) => one.conversation_id));
    // What has ended is fetched before its bytes go; of what runs only a few, as connections are few.
    let places = AT_ONCE - this.#readers.size;
    for (const row of others) {
      const name = nameOf(row);
      if (!known.has(name) || ended.has(name) || places-- > 0) await this.attach(row.conversation);
    }
  }

  #read(stream, message, body) {
    const { conversation } = stream;
    const reader = new Reader(stream, message, this.#me, (kind, more) => this.#told(reader, kind, more));
    this.#readers.set(conversation, reader);
    this.#counts.set(conversation, 0);
    this.#mark(conversation, true);
    reader.run(body).catch((error) => debug("reader", error)).finally(() => {
      if (this.#readers.get(conversation) !== reader) return;
      this.#readers.delete(conversation);
      this.attach(conversation).catch(() => this.#mark(conversation, false));
    });
  }

  /** A reader has something new: for the views here, and for other tabs. */
  #told(reader, kind, more) {
    const { conversation, message } = reader.stream;
    if (this.#readers.get(conversation) !== reader) return;
    const n = (this.#counts.get(conversation) ?? 0) + 1;
    this.#counts.set(conversation, n);
    if (kind === "end") {
      this.#readers.delete(conversation);
      this.#mark(conversation, false);
    }
    this.#emit(kind, { conversation, message: more.message ?? message, ...more });
    if (kind === "reset") this.#sync(conversation);
    else this.#post({ type: kind, conversation, n, isThinking: reader.isThinking, ...more });
  }

  #sync(conversation) {
    const reader = this.#readers.get(conversation);
    if (!reader) return;
    const n = this.#counts.get(conversation) ?? 0;
    this.#post({ type: "sync", conversation, n, isThinking: reader.isThinking, message: reader.message });
  }

  /** Another tab says something. */
  #heard(told) {
    const { type, conversation } = told;
    const follow = this.#followed.get(conversation);
    if (follow) follow.heardAt = performance.now();
    if (type === "sync?") this.#sync(conversation);
    else if (type === "stop") this.#readers.get(conversation)?.stopped();
    else if (type === "changed") this.#emit("changed", { conversation });
    else if (type === "begin") {
      this.#followed.delete(conversation);
      this.#mark(conversation, true);
      this.#emit("changed", { conversation });
    } else if (type === "free") this.attach(conversation);
    else if (type === "end") {
      this.#followed.delete(conversation);
      this.#mark(conversation, false);
      this.#emit("end", { conversation, message: told.message });
    } else if (follow && !this.#readers.has(conversation)) this.#along(follow, told);
  }

  #along(follow, told) {
    const { type, conversation, n } = told;
    if (type === "sync") {
      Object.assign(follow, { message: told.message, n, isThinking: told.isThinking });
      this.#emit("reset", { conversation });
    } else if (type === "delta" && follow.n >= 0) {
      if (n !== follow.n + 1) {
        follow.n = -1;
        this.#post({ type: "sync?", conversation });
        return;
      }
      follow.n = n;
      follow.isThinking = told.isThinking;
      add(follow.message, told.delta);
      this.#emit("delta", { conversation, message: follow.message.id, delta: told.delta });
    } else if (type === "state" && follow.n >= 0) {
      follow.n = n;
      this.#emit("state", told);
    }
  }

  /** Once a second: the tabs that are read along may have died; who reads along knows that this one lives. */
  #look() {
    for (const conversation of this.#readers.keys()) this.#post({ type: "beat", conversation });
    for (const [conversation, follow] of this.#followed) {
      if (performance.now() - follow.heardAt > store.STALE_MS) {
        follow.heardAt = performance.now();
        this.attach(conversation);
      }
    }
  }

  /** Back in sight: a connection that died meanwhile gets a moment to show that it lives. */
  #seen() {
    if (document.visibilityState !== "visible") {
      return;
    }
    const since = performance.now();
    setTimeout(() => {
      for (const reader of this.#readers.values()) if (reader.heardAt < since) reader.kick();
    }, GRACE_MS);
    this.discover();
  }

  #leave() {
    sessionStorage.setItem(NAME, this.#me);
    for (const [conversation, reader] of this.#readers) {
      reader.leaveAtOnce();
      this.#post({ type: "free", conversation });
    }
  }

  #mark(conversation, runs) {
    if (this.#running.has(conversation) === runs) return;
    if (runs) this.#running.add(conversation);
    else this.#running.delete(conversation);
    this.#emit("running", { conversation });
  }

  #post(told) {
    this.#channel.postMessage(told);
  }

  #emit(type, detail) {
    this.dispatchEvent(new CustomEvent(type, { detail }));
  }
}
