// How the server is doing: rows, queue, cache, drafts, and tokens per second over time, drawn from /metrics.

import { call, callJson, words } from "./api.js";
import { h, svg } from "./dom.js";
import { models } from "./models.js";

const EVERY_MS = 2000;
const POINTS = 90;
const WIDTH = 600;
const HEIGHT = 150;

/** Sums over labels, by name, of Prometheus' text format. */
export function readMetrics(text) {
  const found = {};
  for (const line of text.split("\n")) {
    const match = /^([A-Za-z_:][\w:]*)(?:\{.*\})?\s+(-?[\d.]+(?:e[+-]?\d+)?)\s*$/i.exec(line);
    if (match) found[match[1]] = (found[match[1]] ?? 0) + Number(match[2]);
  }
  return found;
}

export function create() {
  const facts = h("div", { class: "facts" });
  const points = { made: [], read: [] };
  const chart = svg("svg", { class: "chart", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img" });
  const scale = h("p", {});
  const rows = h("tbody");
  const problem = h("p", { role: "status" });
  let last = null;
  let timer = null;

  async function look() {
    clearTimeout(timer);
    try {
      const metrics = readMetrics(await (await call("metrics")).text());
      draw(metrics);
      await drawRows();
      problem.textContent = "";
    } catch (error) {
      problem.textContent = words(error);
    }
    if (page.isConnected && document.visibilityState === "visible") timer = setTimeout(look, EVERY_MS);
  }

  function draw(metrics) {
    const now = performance.now();
    if (last) {
      const seconds = (now - last.now) / 1000;
      const rate = (name) => Math.max(0, (metrics[name] - last.metrics[name]) / seconds || 0);
      push(points.made, rate("imp_tokens_completion_total"));
      push(points.read, rate("imp_tokens_prompt_total"));
    }
    last = { now, metrics };
    const shown = factsOf(metrics, points.made.at(-1));
    facts.replaceChildren(...shown.map(([value, name]) => h("div", { class: "fact" }, h("b", {}, value), h("span", {}, name))));
    drawChart(chart, scale, points.made);
  }

  async function drawRows() {
    const loaded = models.list.filter((one) => one.loaded);
    const names = models.areSeveral ? loaded.map((one) => one.id) : [""];
    const all = [];
    for (const name of names) {
      const slots = await callJson(name ? `slots?model=${encodeURIComponent(name)}` : "slots").catch(() => []);
      all.push(...slots.map((slot) => row(name, slot)));
    }
    rows.replaceChildren(...all);
  }

  const page = h(
    "section",
    { class: "page", "aria-label": "Status" },
    h(
      "div",
      {},
      problem,
      facts,
      h("div", { class: "card" }, h("h2", {}, "Tokens per second"), chart, scale),
      h(
        "div",
        { class: "card" },
        h("h2", {}, "Rows"),
        h("div", { class: "wide" }, h("table", { class: "rows" }, h("thead", {}, h("tr", {}, ...["Row", "State", "Prompt", "Written"].map((name) => h("th", {}, name)))), rows)),
      ),
    ),
  );
  page.addEventListener("show", () => setTimeout(look, 0));
  page.addEventListener("hide", () => clearTimeout(timer));
  document.addEventListener("visibilitychange", () => page.isConnected && look());
  return page;
}

function push(list, value) {
  list.push(value);
  if (list.length > POINTS) list.shift();
}

const whole = (value) => Math.round(value ?? 0).toLocaleString();
const share = (part, all) => (all > 0 ? `${Math.round((100 * part) / all)} %` : "–");

function factsOf(m, rate) {
  return [
    [rate === undefined ? "–" : rate.toFixed(1), "tokens/s now"],
    [whole(m.imp_queue_running), "rows at work"],
    [whole(m.imp_queue_waiting), "requests waiting"],
    [share(m.imp_tokens_cached_total, m.imp_tokens_prompt_total), "of prompt tokens from the cache"],
    [whole(m.imp_prefix_cache_pinned_blocks), "blocks pinned"],
    [share(m["vllm:kv_cache_usage_perc"], 1), "of the cache in use"],
    [whole(m.imp_kv_host_spill_blocks), "blocks in the lower tier"],
    [whole(m.imp_kv_host_spill_hits_total), "blocks found there again"],
    [share(m["llamacpp:spec_decode_num_accepted_tokens_total"], m["llamacpp:spec_decode_num_draft_tokens_total"]), "of drafts accepted"],
    [whole(m.imp_tokens_completion_total), "tokens written in all"],
  ];
}

function drawChart(chart, scale, values) {
  const most = Math.max(1, ...values);
  const x = (i) => WIDTH - (values.length - 1 - i) * (WIDTH / (POINTS - 1));
  const y = (value) => HEIGHT - 4 - (value / most) * (HEIGHT - 14);
  const curve = values.map((value, i) => `${i ? "L" : "M"}${x(i).toFixed(1)} ${y(value).toFixed(1)}`).join("");
  const rules = [0.25, 0.5, 0.75].map((part) => svg("line", { class: "rule", x1: 0, x2: WIDTH, y1: HEIGHT * part, y2: HEIGHT * part }));
  const area = values.length > 1 ? [svg("path", { class: "area", d: `${curve}L${WIDTH} ${HEIGHT}L${x(0)} ${HEIGHT}Z` }), svg("path", { class: "curve", d: curve })] : [];
  chart.replaceChildren(...rules, ...area);
  const now = values.at(-1) ?? 0;
  chart.setAttribute("aria-label", `Tokens per second over the last ${Math.round((POINTS * EVERY_MS) / 60_000)} minutes: now ${now.toFixed(1)}, at most ${most.toFixed(1)}`);
  scale.textContent = values.length > 1 ? `The last three minutes; the top is ${most.toFixed(1)} tokens/s.` : "The curve begins in a moment.";
}

function row(model, slot) {
  const name = model ? `${model} ${slot.id}` : String(slot.id);
  const cells = [name, slot.is_processing ? "at work" : "free", whole(slot.n_prompt_tokens), whole(slot.next_token?.[0]?.n_decoded ?? 0)];
  return h("tr", {}, ...cells.map((text) => h("td", {}, text)));
}
