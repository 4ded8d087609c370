// The playground: an answer bound to a schema, a pattern or a grammar; how likely its tokens were; what the model sees.

import { call, callJson, words } from "./api.js";
import { prettyJson } from "./answers.js";
import { h } from "./dom.js";
import { models } from "./models.js";
import { EventBytes } from "./sse.js";

const KINDS = {
  none: ["No constraint", ""],
  schema: ["JSON schema", '{\n  "type": "object",\n  "properties": {\n    "name": {"type": "string"},\n    "age": {"type": "integer"}\n  },\n  "required": ["name", "age"]\n}'],
  regex: ["Regex", "(yes|no), because [a-z ]{5,60}\\."],
  gbnf: ["GBNF", 'root ::= item+\nitem ::= "- " [a-z ]+ "\\n"'],
};
const FIELDS = { schema: "guided_json", regex: "guided_regex", gbnf: "guided_grammar" };
const WAIT_MS = 350;

export function create() {
  const texts = Object.fromEntries(Object.entries(KINDS).map(([kind, [, text]]) => [kind, text]));
  let kind = "schema";
  let asking = null;
  let timer = null;

  const prompt = h("textarea", { rows: "3", "aria-label": "Prompt", value: "Invent a person." });
  const constraint = h("textarea", { rows: "9", class: "mono", spellcheck: "false", "aria-label": "Constraint", value: texts.schema });
  const verdict = h("div", { class: "verdict", role: "status" });
  const choices = h(
    "div",
    { class: "choices", role: "radiogroup", "aria-label": "Kind of constraint" },
    ...Object.entries(KINDS).map(([key, [label]]) => {
      const radio = h("input", { type: "radio", name: "kind", onchange: () => choose(key) });
      radio.checked = key === kind;
      return h("label", {}, radio, label);
    }),
  );
  const run = h("button", { type: "button", class: "primary", onclick: () => (asking ? asking.abort() : generate()) }, "Run");
  const output = h("div", { class: "tokens shaded", role: "region", "aria-label": "Answer", "aria-live": "off" });
  const detail = h("div", { class: "detail", role: "status" }, h("p", {}, "Point at a token to see what else it might have been."));
  const view = h("button", { type: "button", class: "plain", onclick: () => showPrompt() }, "Show");
  const count = h("span", { role: "status" });
  const tokens = h("div", { class: "tokens borders", role: "region", "aria-label": "Prompt as the model sees it" });

  function choose(key) {
    texts[kind] = constraint.value;
    kind = key;
    constraint.value = texts[kind];
    constraint.hidden = kind === "none";
    check();
  }

  function body() {
    const asked = { model: models.chosen, messages: [{ role: "user", content: prompt.value }] };
    if (kind !== "none") asked[FIELDS[kind]] = kind === "schema" ? JSON.parse(constraint.value) : constraint.value;
    return asked;
  }

  function say(ok, text) {
    verdict.dataset.ok = String(ok);
    verdict.textContent = text;
    constraint.setAttribute("aria-invalid", String(!ok));
  }

  /** Whether the constraint can be kept: JSON here, the rest is asked of the server, which generates nothing for it. */
  function check() {
    clearTimeout(timer);
    if (kind === "none") return say(true, "");
    timer = setTimeout(async () => {
      const [asked, text] = [kind, constraint.value];
      const isOld = () => asked !== kind || text !== constraint.value;
      try {
        await models.load();
        const json = { ...body(), messages: [{ role: "user", content: "-" }], n_predict: 0 };
        await callJson("v1/chat/completions", { method: "POST", json });
        if (!isOld()) say(true, `Valid ${KINDS[asked][0]}`);
      } catch (error) {
        if (!isOld()) say(false, error instanceof SyntaxError ? `Not JSON: ${error.message}` : words(error));
      }
    }, WAIT_MS);
    return undefined;
  }

  async function generate() {
    asking = new AbortController();
    run.textContent = "Stop";
    output.replaceChildren();
    try {
      await models.load();
      const json = { ...body(), stream: true, logprobs: true, top_logprobs: 5, max_tokens: 512 };
      const response = await call("v1/chat/completions", { method: "POST", json, signal: asking.signal });
      const reader = response.body.getReader();
      const bytes = new EventBytes();
      for (;;) {
        const { done, value } = await reader.read();
        if (done) break;
        for (const event of bytes.feed(value)) if (event.data !== "[DONE]") take(JSON.parse(event.data));
      }
      const pretty = prettyJson(output.textContent);
      if (pretty) output.title = pretty;
    } catch (error) {
      if (error.name !== "AbortError") output.append(h("p", { class: "problem" }, words(error)));
    }
    asking = null;
    run.textContent = "Run";
  }

  function take(chunk) {
    if (chunk.error) throw chunk.error;
    output.append(...(chunk.choices[0]?.logprobs?.content ?? []).map(shaded));
  }

  function shaded(token) {
    const show = () => detail.replaceChildren(alternatives(token));
    const shade = shadeOf(token.logprob);
    const name = `${token.token}, ${percent(token.logprob)}`;
    return h("span", { class: `token shade-${shade}`, tabindex: "0", role: "img", "aria-label": name, onpointerenter: show, onfocus: show }, token.token);
  }

  async function showPrompt() {
    try {
      await models.load();
      const { messages, model } = body();
      const { prompt: text } = await callJson("apply-template", { method: "POST", json: { model, messages } });
      const { tokens: found } = await callJson("tokenize", { method: "POST", json: { model, content: text, with_pieces: true } });
      count.textContent = `${found.length.toLocaleString()} tokens`;
      tokens.replaceChildren(...found.map(bordered));
    } catch (error) {
      count.textContent = "";
      tokens.replaceChildren(h("p", { class: "problem" }, error instanceof SyntaxError ? "The schema isn't JSON." : words(error)));
    }
  }

  constraint.addEventListener("input", check);
  check();
  return h(
    "section",
    { class: "page", "aria-label": "Playground" },
    h(
      "div",
      {},
      h("p", {}, "Bind an answer to a form, and see how sure the model was of every token."),
      h(
        "div",
        { class: "columns" },
        h("div", { class: "card" }, h("h2", {}, "Ask"), prompt, choices, constraint, verdict, h("div", { class: "buttons" }, run)),
        h("div", { class: "card" }, h("h2", {}, "Answer"), output, detail),
      ),
      h("div", { class: "card" }, h("h2", {}, "What the model sees"), h("p", {}, "The prompt as the model's template writes it, with the borders of its tokens."), h("div", { class: "row" }, view, count), tokens),
    ),
  );
}

const percent = (logprob) => `${(100 * Math.exp(logprob)).toFixed(1)} %`;

/** 0 for a token that was nearly certain, to 4 for a surprise. */
export function shadeOf(logprob) {
  const p = Math.exp(logprob);
  return p > 0.9 ? 0 : p > 0.6 ? 1 : p > 0.3 ? 2 : p > 0.1 ? 3 : 4;
}

function alternatives(token) {
  const others = token.top_logprobs.some((one) => one.token === token.token) ? token.top_logprobs : [token, ...token.top_logprobs];
  const rows = others.map((one) =>
    h(
      "tr",
      {},
      h("td", {}, h("code", {}, JSON.stringify(one.token)), one.token === token.token ? " ✓" : ""),
      h("td", {}, percent(one.logprob)),
      h("td", {}, h("meter", { min: "0", max: "1", value: String(Math.exp(one.logprob)), "aria-hidden": "true" })),
    ),
  );
  return h("table", { class: "alternatives" }, ...rows);
}

function bordered({ id, piece }) {
  const text = typeof piece === "string" ? piece : piece.map((byte) => `<${byte.toString(16).padStart(2, "0")}>`).join("");
  return h("span", { class: "token", title: `token ${id}` }, text);
}
