// Answers as they are written: the block that is being written is plain text, each finished block is rendered by the
// server once, as nodes that pass the list below a second time, and kept.

import { callJson } from "./api.js";
import { copyButton, debug, h } from "./dom.js";

/** The server takes 64 kB; a longer block stays as it was written. */
const LONGEST = 60_000;
/** An open block is laid out anew with each piece of it, so a long one is cut into elements. */
const CUT = 8_000;
const BATCH = 8_000;
const PAUSE_MS = 200;
const KEPT = 400;
/** Blocks of one group: what is laid out again, and what is out of sight, is a group. */
const GROUP = 40;

const ELEMENTS = new Set(
  "p h1 h2 h3 h4 h5 h6 ul ol li blockquote pre code em strong s a hr br table thead tbody tr th td span".split(" "),
);
const ATTRIBUTES = new Set(["class", "href", "start", "rel", "target"]);

/** The element of a node (text | [name, attributes, ...nodes]); what isn't on the list stays text. */
export function build(node) {
  if (typeof node === "string") return document.createTextNode(node);
  const [name, attributes, ...children] = node;
  const element = document.createElement(ELEMENTS.has(name) ? name : "span");
  for (const [key, value] of Object.entries(attributes)) {
    if (!ATTRIBUTES.has(key) || (key === "href" && !/^(https?:\/\/|mailto:)/i.test(value))) continue;
    element.setAttribute(key, value);
  }
  element.append(...children.map(build));
  if (name === "pre") return codeBox(element);
  return name === "table" ? h("div", { class: "wide", tabindex: "0", role: "region", "aria-label": "Table" }, element) : element;
}

function codeBox(pre) {
  const language = pre.firstChild?.className?.replace("language-", "") ?? "";
  pre.tabIndex = 0;
  const head = h("div", { class: "code-head" }, h("span", {}, language || "text"), copyButton(() => pre.textContent, "Copy code"));
  return h("div", { class: "code" }, head, pre);
}

// --- asking the server, at most five times a second -----------------------------------------

const known = new Map();
const queue = [];
let isAsking = false;

function wantRender(text, apply) {
  const found = known.get(text);
  if (found) {
    apply(found);
    return;
  }
  queue.push({ text, apply });
  if (!isAsking) askAll();
}

async function askAll() {
  isAsking = true;
  while (queue.length) {
    const batch = nextBatch();
    const begun = performance.now();
    try {
      await askFor(batch);
    } catch (error) {
      debug("render", error); // these blocks stay plain
      if (error.status === 429 || error.status === 503) queue.push(...batch.filter((one) => (one.tries = (one.tries ?? 0) + 1) < 4));
    }
    await new Promise((resolve) => setTimeout(resolve, Math.max(0, PAUSE_MS - (performance.now() - begun))));
  }
  isAsking = false;
}

/** The newest first: what was asked for last is what is looked at. */
function nextBatch() {
  const batch = [queue.pop()];
  let size = batch[0].text.length;
  while (!batch[0].alone && queue.length && batch.length < 64) {
    size += queue.at(-1).text.length;
    if (size > BATCH || queue.at(-1).alone) break;
    batch.push(queue.pop());
  }
  return batch;
}

async function askFor(batch) {
  const answer = await callJson("ui/render", { method: "POST", json: { blocks: batch.map((one) => one.text) }, quiet: true });
  batch.forEach((one, i) => {
    const nodes = answer.blocks[i];
    if (nodes) {
      keep(one.text, nodes);
      one.apply(nodes);
    } else if (batch.length > 1) {
      queue.push({ ...one, alone: answer.ended });
    }
  });
}

function keep(text, nodes) {
  if (text.length > 20_000) return;
  known.set(text, nodes);
  if (known.size > KEPT) known.delete(known.keys().next().value);
}

// --- blocks ---------------------------------------------------------------------------------

const FENCE = /^ {0,3}(`{3,}|~{3,})/;
const BLANK = /^\s*$/;
const GOES_ON = /^(\s{2,}|\t)/;
const ITEM = /^\s{0,3}([-*+]|\d{1,9}[.)])\s/;

/** One text that grows. Its work grows with what is added, not with what is there. */
export class Article {
  #element;
  #line = "";
  #block = [];
  #size = 0;
  #lines = 0;
  #fence = null;
  #afterBlank = false;
  #isList = false;
  #open = null;
  #text = null;
  #shown = 0;

  /** `element` becomes the owner of the blocks. */
  constructor(element) {
    this.#element = element;
  }

  append(text) {
    let start = 0;
    for (let at = text.indexOf("\n"); at >= 0; at = text.indexOf("\n", start)) {
      this.#add(text.slice(start, at + 1));
      start = at + 1;
    }
    if (start < text.length) this.#add(text.slice(start));
  }

  /** No more comes. */
  end() {
    if (this.#line) this.#lineEnds();
    this.#close();
  }

  clear() {
    this.#element.replaceChildren();
    this.#line = "";
    this.#block = [];
    this.#size = this.#lines = 0;
    this.#fence = null;
    this.#afterBlank = this.#isList = false;
    this.#open = null;
  }

  #add(piece) {
    const isNew = !this.#line;
    if (isNew && this.#afterBlank && this.#isNewBlock(piece)) this.#close();
    if (this.#line.length < 4096) this.#line += piece.slice(0, 4096);
    this.#show(piece);
    if (piece.endsWith("\n")) this.#lineEnds();
  }

  /** Behind a blank line: indented text and further items belong to the block before. */
  #isNewBlock(piece) {
    if (BLANK.test(piece)) return false;
    if (GOES_ON.test(piece)) return !this.#isList;
    return !(this.#isList && ITEM.test(piece.padEnd(12, " ")) && this.#size < BATCH);
  }

  #lineEnds() {
    const line = this.#line;
    this.#line = "";
    const mark = FENCE.exec(line)?.[1];
    if (!BLANK.test(line)) this.#lines += 1;
    if (this.#fence) {
      if (mark && mark[0] === this.#fence[0] && mark.length >= this.#fence.length && /^\s*[`~]+\s*$/.test(line)) {
        this.#fence = null;
        if (!this.#isList) this.#close();
      }
      return;
    }
    if (mark) {
      this.#fence = mark;
      this.#afterBlank = false;
    } else {
      if (this.#lines === 1) this.#isList = ITEM.test(line);
      this.#afterBlank = BLANK.test(line) && this.#size > 0;
    }
  }

  #show(piece) {
    this.#open ??= this.#newElement();
    this.#size += piece.length;
    if (this.#size <= LONGEST) this.#block.push(piece);
    if (this.#shown > CUT) {
      this.#text = document.createTextNode("");
      this.#open.append(h("div", { class: "part" }, this.#text));
      this.#shown = 0;
    }
    this.#text.appendData(piece);
    this.#shown += piece.length;
  }

  #newElement() {
    this.#text = document.createTextNode("");
    this.#shown = 0;
    const element = h("div", { class: "block open" }, h("div", { class: "part" }, this.#text));
    let group = this.#element.lastChild;
    if (!group || group.childElementCount >= GROUP) this.#element.append((group = h("div", { class: "group" })));
    group.append(element);
    return element;
  }

  #close() {
    const element = this.#open;
    if (!element) return;
    const text = this.#block.join("");
    const isWhole = this.#size <= LONGEST;
    this.#open = null;
    this.#block = [];
    this.#size = this.#lines = 0;
    this.#fence = null;
    this.#afterBlank = this.#isList = false;
    if (!text.trim()) {
      element.remove();
      return;
    }
    if (!isWhole) {
      element.className = "block open";
      return;
    }
    wantRender(text, (nodes) => {
      element.className = "block";
      element.replaceChildren(...nodes.map(build));
    });
  }
}
