// Conversations in IndexedDB. Nothing of them is anywhere else.
//
//   conversations  {id, title, created, updated, leaf, model, system, settings}
//   messages       {id, conversation, parent, role, created, content, ...}: whole, or what an answer began with
//   pieces         {message, n, delta}: what a running answer has been given since, in order; with n = -1 the last words of
//                  a page that was closed, which hold if they fit
//   streams        {conversation, model, message, offset, owner, beat}: the one answer that is being made
//
// The text of a running answer and the offset that it reaches to are written in one transaction, so that they always fit.

import { add, emptyAnswer } from "./answers.js";
import { newId } from "./dom.js";

const STORES = ["conversations", "messages", "pieces", "streams"];
/** A writer that wasn't heard of for so long is dead. */
export const STALE_MS = 3000;

let opening = null;
let opened = null;

function database() {
  opening ??= new Promise((resolve, reject) => {
    const request = indexedDB.open("imp", 1);
    request.onupgradeneeded = () => {
      const db = request.result;
      db.createObjectStore("conversations", { keyPath: "id" });
      db.createObjectStore("messages", { keyPath: "id" }).createIndex("conversation", "conversation");
      db.createObjectStore("pieces", { keyPath: ["message", "n"] });
      db.createObjectStore("streams", { keyPath: "conversation" });
    };
    request.onsuccess = () => resolve((opened = request.result));
    request.onerror = () => reject(request.error);
  });
  return opening;
}

/**
 * Runs `work` in one transaction; what it returned, once that is on disk. `work` awaits requests of it only. Begun before
 * this returns, as a page that is being closed has no later.
 */
function transaction(mode, work) {
  return opened ? inside(opened, mode, work) : database().then((db) => inside(db, mode, work));
}

function inside(db, mode, work) {
  return new Promise((resolve, reject) => {
    const tx = db.transaction(STORES, mode);
    const stores = Object.fromEntries(STORES.map((name) => [name, tx.objectStore(name)]));
    let result;
    let fault = null;
    tx.oncomplete = () => resolve(result);
    tx.onabort = () => reject(fault ?? tx.error ?? new Error("the browser's storage is full or closed"));
    Promise.resolve(work(stores)).then(
      (value) => (result = value),
      (error) => {
        fault = error;
        try {
          tx.abort();
        } catch {
          reject(error);
        }
      },
    );
  });
}

function done(request) {
  return new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });
}

const piecesOf = (message) => IDBKeyRange.bound([message, 0], [message, Infinity]);
const allOf = (message) => IDBKeyRange.bound([message, -1], [message, Infinity]);

/** All, the newest first. */
export async function conversations() {
  const all = await transaction("readonly", (s) => done(s.conversations.getAll()));
  return all.sort((a, b) => b.updated - a.updated);
}

/** {conversation, messages: Map by id, stream}; null if it isn't there. */
export function load(id) {
  return transaction("readonly", async (s) => {
    const conversation = await done(s.conversations.get(id));
    if (!conversation) return null;
    const messages = new Map((await done(s.messages.index("conversation").getAll(id))).map((one) => [one.id, one]));
    const stream = (await done(s.streams.get(id))) ?? null;
    const running = stream && messages.get(stream.message);
    if (running) await addPieces(s, running);
    return { conversation, messages, stream };
  });
}

async function addPieces(s, message) {
  const pieces = await done(s.pieces.getAll(piecesOf(message.id)));
  for (const { delta } of pieces) add(message, delta);
  message.pieces = (pieces.at(-1)?.n ?? -1) + 1;
}

export function newConversation(more = {}) {
  const now = Date.now();
  return { id: newId(), title: "New conversation", created: now, updated: now, leaf: null, model: "", system: "", settings: {}, ...more };
}

export function newMessage(conversation, role, parent, more = {}) {
  const answer = role === "assistant" ? emptyAnswer() : {};
  return { id: newId(), conversation, role, parent, created: Date.now(), content: "", ...answer, ...more };
}

export function save(conversation, messages = []) {
  return transaction("readwrite", (s) => {
    s.conversations.put(conversation);
    for (const message of messages) s.messages.put(message);
  });
}

/** Changes fields of a conversation that may have changed meanwhile; nothing if it is gone. */
export function update(id, fields) {
  return transaction("readwrite", async (s) => {
    const found = await done(s.conversations.get(id));
    if (found) s.conversations.put({ ...found, ...fields });
    return found ? { ...found, ...fields } : null;
  });
}

export function remove(id) {
  return transaction("readwrite", async (s) => {
    for (const message of await done(s.messages.index("conversation").getAllKeys(id))) {
      s.messages.delete(message);
      s.pieces.delete(allOf(message));
    }
    s.streams.delete(id);
    s.conversations.delete(id);
  });
}

/** Ids of the conversations whose title or text has `words`. */
export async function search(words) {
  const wanted = words.trim().toLowerCase();
  return transaction("readonly", async (s) => {
    const found = new Set();
    for (const one of await done(s.conversations.getAll())) if (one.title.toLowerCase().includes(wanted)) found.add(one.id);
    for (const one of await done(s.messages.getAll())) {
      if (one.content.toLowerCase().includes(wanted)) found.add(one.conversation);
    }
    return found;
  });
}

// --- the running answer ---------------------------------------------------------------------

export function streams() {
  return transaction("readonly", (s) => done(s.streams.getAll()));
}

/** Before a request is sent: what is asked, and that an answer is on its way. */
export function begin(conversation, messages, stream) {
  return transaction("readwrite", (s) => {
    s.conversations.put(conversation);
    for (const message of messages) s.messages.put(message);
    s.pieces.delete(allOf(stream.message));
    s.streams.put(stream);
  });
}

/** More of an answer and how far it reaches. False if the stream belongs to another tab by now, or to nobody. */
export function write(conversation, owner, { message, n, delta, offset }) {
  return transaction("readwrite", async (s) => {
    const row = await done(s.streams.get(conversation));
    if (!row || row.owner !== owner || row.message !== message) return false;
    if (delta) s.pieces.put({ message, n, delta });
    s.streams.put({ ...row, offset, beat: Date.now() });
    return true;
  });
}

/** As write, by a page that is being closed: nothing can be asked any more, so whether it fits is seen by takeOver. */
export function writeLast(owner, { message, n, delta, offset }) {
  if (!opened) return;
  const tx = opened.transaction("pieces", "readwrite");
  tx.objectStore("pieces").put({ message, n: -1, next: n, owner, delta, offset });
  tx.commit();
}

async function readLast(s, row) {
  const last = await done(s.pieces.get([row.message, -1]));
  const n = await done(s.pieces.count(piecesOf(row.message)));
  s.pieces.delete([row.message, -1]);
  if (!last || last.owner !== row.owner || last.next !== n || last.offset <= row.offset) return row;
  s.pieces.put({ message: row.message, n, delta: last.delta });
  return { ...row, offset: last.offset };
}

/** {stream, message} for the tab `owner`, which writes from now on; null if another one does, or nothing runs. */
export function takeOver(conversation, owner) {
  return transaction("readwrite", async (s) => {
    const row = await done(s.streams.get(conversation));
    if (!row) return null;
    if (row.owner && row.owner !== owner && Date.now() - row.beat < STALE_MS) return null;
    const message = await done(s.messages.get(row.message));
    if (!message) {
      s.streams.delete(conversation);
      return null;
    }
    const stream = { ...(await readLast(s, row)), owner, beat: Date.now() };
    await addPieces(s, message);
    s.streams.put(stream);
    return { stream, message };
  });
}

/** Begin again: what was streamed so far goes, what the answer began with stays. Its message, or null. */
export function restart(conversation, owner) {
  return transaction("readwrite", async (s) => {
    const row = await done(s.streams.get(conversation));
    if (row?.owner !== owner) return null;
    s.pieces.delete(allOf(row.message));
    s.streams.put({ ...row, offset: 0, beat: Date.now() });
    return done(s.messages.get(row.message));
  });
}

/** The answer is whole, or won't be. False if it was another tab's to say. */
export function finish(conversation, owner, message) {
  return transaction("readwrite", async (s) => {
    const row = await done(s.streams.get(conversation));
    if (row?.owner !== owner || row.message !== message.id) return false;
    s.streams.delete(conversation);
    s.pieces.delete(allOf(message.id));
    const { pieces, ...kept } = message;
    s.messages.put(kept);
    const own = await done(s.conversations.get(conversation));
    if (own) s.conversations.put({ ...own, updated: Date.now() });
    return true;
  });
}

// --- files ----------------------------------------------------------------------------------

const FORMAT = "imp-conversations";

export function exported() {
  return transaction("readonly", async (s) => {
    const all = await done(s.conversations.getAll());
    const messages = new Map(all.map((one) => [one.id, []]));
    for (const one of await done(s.messages.getAll())) messages.get(one.conversation)?.push(one);
    return { format: FORMAT, version: 1, conversations: all.map((one) => ({ ...one, messages: messages.get(one.id) })) };
  });
}

/** The number of conversations that came in. Ids are new, so nothing is written over. Raises Error in words. */
export async function imported(text) {
  let file;
  try {
    file = JSON.parse(text);
  } catch {
    throw new Error("This file isn't JSON.");
  }
  if (file?.format !== FORMAT || !Array.isArray(file.conversations)) {
    throw new Error("This file wasn't exported from here: it has no conversations.");
  }
  const found = file.conversations.map(readConversation).filter(Boolean);
  await transaction("readwrite", (s) => {
    for (const { conversation, messages } of found) {
      s.conversations.put(conversation);
      for (const message of messages) s.messages.put(message);
    }
  });
  return found.length;
}

const ROLES = ["user", "assistant", "tool"];
const textOf = (value) => (typeof value === "string" ? value : "");
const numberOf = (value) => (Number.isFinite(value) ? value : Date.now());

/** Field by field: whatever else a file holds stays outside. */
function readConversation(raw) {
  if (!raw || typeof raw !== "object" || !Array.isArray(raw.messages)) return null;
  const settings = raw.settings && typeof raw.settings === "object" ? raw.settings : {};
  const conversation = newConversation({
    title: textOf(raw.title).slice(0, 200) || "Imported conversation",
    created: numberOf(raw.created),
    updated: numberOf(raw.updated),
    model: textOf(raw.model),
    system: textOf(raw.system),
    settings: Object.fromEntries(Object.entries(settings).filter(([, v]) => ["string", "number", "boolean"].includes(typeof v))),
  });
  const ids = new Map(raw.messages.map((one) => [one?.id, newId()]));
  const messages = raw.messages.filter((one) => ROLES.includes(one?.role)).map((one) => readMessage(one, conversation.id, ids));
  conversation.leaf = ids.get(raw.leaf) ?? messages.at(-1)?.id ?? null;
  return { conversation, messages };
}

function readMessage(raw, conversation, ids) {
  const message = newMessage(conversation, raw.role, ids.get(raw.parent) ?? null, {
    id: ids.get(raw.id),
    created: numberOf(raw.created),
    content: textOf(raw.content),
  });
  if (raw.role === "tool") message.call = textOf(raw.call);
  if (raw.role === "user" && Array.isArray(raw.files)) {
    message.files = raw.files.map((file) => ({ name: textOf(file?.name), text: textOf(file?.text) }));
  }
  if (raw.role !== "assistant") return message;
  message.thinking = textOf(raw.thinking);
  message.thinkMs = Number.isFinite(raw.thinkMs) ? raw.thinkMs : 0;
  message.model = textOf(raw.model);
  message.finish = textOf(raw.finish) || "stop";
  if (Array.isArray(raw.calls)) {
    message.calls = raw.calls.map((call) => ({ id: textOf(call?.id), name: textOf(call?.name), text: textOf(call?.text) }));
  }
  return message;
}
