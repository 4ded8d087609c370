// Every route of this server, made from its own contract, with a form to try it.

import { ApiError, call, callJson, words } from "./api.js";
import { copyButton, h } from "./dom.js";

document.documentElement.dataset.theme = localStorage.getItem("imp.theme") ?? "auto";

const main = h("main", { id: "main" });
const nav = h("nav", { "aria-label": "Documents" });
const filter = h("input", { type: "search", placeholder: "Filter routes", "aria-label": "Filter routes" });
document.body.prepend(h("header", { class: "top" }, h("a", { href: "./", class: "home" }, "imp"), h("h1", {}, "API"), filter, nav), main);

try {
  show(await callJson("openapi.json"));
} catch (error) {
  main.append(h("p", { role: "alert" }, words(error)));
}

function show(contract) {
  const groups = new Map();
  for (const [path, item] of Object.entries(contract.paths)) {
    for (const [method, operation] of Object.entries(item)) {
      if (!operation?.operationId) continue;
      const name = operation["x-document"] ?? "other";
      if (!groups.has(name)) groups.set(name, []);
      groups.get(name).push(route(contract, path, method, item, operation));
    }
    const socket = item["x-websocket"];
    if (socket) [...groups.values()].at(-1).push(webSocket(contract, path, socket));
  }
  const head = h("p", {}, "Made from the server's own contract, ", h("a", { href: "openapi.json" }, "openapi.json"), ". Nothing here leaves this server.");
  main.append(head);
  for (const [name, routes] of groups) {
    main.append(h("section", { id: name, "aria-label": name }, h("h2", {}, name), ...routes));
    nav.append(h("a", { href: `#${name}` }, name));
  }
  filter.addEventListener("input", () => {
    for (const one of main.querySelectorAll("details.route")) one.hidden = !one.dataset.words.includes(filter.value.toLowerCase());
    for (const section of main.querySelectorAll("section")) section.hidden = !section.querySelector("details.route:not([hidden])");
  });
}

function route(contract, path, method, item, operation) {
  const box = h(
    "details",
    { class: "route", "data-words": `${method} ${path} ${operation.summary ?? ""}`.toLowerCase(), "data-operation": operation.operationId },
    h("summary", {}, h("span", { class: `method ${method}` }, method.toUpperCase()), h("code", {}, path), h("span", { class: "what" }, operation.summary ?? "")),
  );
  // Most routes are never opened, so what is in them is made when they are.
  box.addEventListener("toggle", () => box.childElementCount === 1 && box.append(...inside(contract, path, method, item, operation)));
  return box;
}

function webSocket(contract, path, socket) {
  return h(
    "details",
    { class: "route", "data-words": `ws ${path} ${socket.summary}`.toLowerCase() },
    h("summary", {}, h("span", { class: "method" }, "WS"), h("code", {}, path), h("span", { class: "what" }, socket.summary)),
    h("p", {}, socket.description),
    fields(contract, socket.message),
  );
}

function inside(contract, path, method, item, operation) {
  const content = operation.requestBody?.content?.["application/json"];
  const parts = [operation.description && h("p", {}, operation.description)];
  if (content?.schema) parts.push(fields(contract, content.schema));
  const answers = Object.entries(operation.responses ?? {}).map(([status, told]) => [status, follow(contract, told).description ?? ""]);
  parts.push(form(contract, path, method, [...(item.parameters ?? []), ...(operation.parameters ?? [])], content));
  parts.push(h("details", { class: "answers" }, h("summary", {}, "Answers"), h("table", {}, ...answers.map(([status, text]) => h("tr", {}, h("td", {}, h("code", {}, status)), h("td", {}, text))))));
  return parts.filter(Boolean);
}

// --- trying it --------------------------------------------------------------------------------

function form(contract, path, method, parameters, content) {
  const inputs = parameters.map((one) => follow(contract, one)).map((parameter) => {
    const field = h("input", { type: "text", placeholder: kind(contract, parameter.schema ?? {}), "aria-label": parameter.name });
    const text = `${parameter.name}${parameter.required ? " *" : ""} (${parameter.in})`;
    return { parameter, field, row: h("label", { class: "field" }, h("span", { title: parameter.description ?? "" }, text), field) };
  });
  const examples = Object.entries(content?.examples ?? {});
  const first = JSON.stringify(examples[0]?.[1].value ?? {}, null, 2);
  const body = content && h("textarea", { rows: String(Math.min(16, first.split("\n").length + 1)), class: "mono", spellcheck: "false", "aria-label": "Body", value: first });
  const pick = examples.length > 1 && h("select", { "aria-label": "Example" }, ...examples.map(([name]) => h("option", { value: name }, name)));
  if (pick) pick.addEventListener("change", () => (body.value = JSON.stringify(content.examples[pick.value].value, null, 2)));
  const send = h("button", { type: "button", class: "primary" }, "Send");
  const status = h("span", { class: "result-status", role: "status" });
  const result = h("pre", { class: "result", tabindex: "0", hidden: true, "aria-label": "Reply" });
  let running = null;
  send.addEventListener("click", async () => {
    if (running) {
      running.abort();
      return;
    }
    running = new AbortController();
    send.textContent = "Stop";
    result.hidden = false;
    result.textContent = "";
    status.textContent = "…";
    await tried(request(path, method, inputs, body), running.signal, status, result);
    running = null;
    send.textContent = "Send";
  });
  const shell = copyButton(() => curl(request(path, method, inputs, body)), "Copy as curl");
  return h(
    "div",
    { class: "form" },
    inputs.length ? h("div", { class: "grid" }, ...inputs.map((one) => one.row)) : null,
    pick || null,
    body,
    h("div", { class: "line" }, send, shell, status),
    result,
  );
}

function request(path, method, inputs, body) {
  let url = path;
  const query = new URLSearchParams();
  const headers = {};
  for (const { parameter, field } of inputs) {
    if (parameter.in === "path") url = url.replace(`{${parameter.name}}`, encodeURIComponent(field.value));
    else if (field.value && parameter.in === "query") query.set(parameter.name, field.value);
    else if (field.value) headers[parameter.name] = field.value;
  }
  return { url: url.slice(1) + (query.size ? `?${query}` : ""), method: method.toUpperCase(), headers, text: body?.value };
}

async function tried({ url, method, headers, text }, signal, status, result) {
  try {
    const json = text === undefined ? undefined : JSON.parse(text);
    const response = await call(url || "./", { method, json, headers, signal });
    status.textContent = `${response.status} ${response.headers.get("content-type") ?? ""}`;
    await read(response, result);
  } catch (error) {
    if (error.name === "AbortError") status.textContent = "stopped";
    else if (error instanceof SyntaxError) status.textContent = `The body isn't JSON: ${error.message}`;
    else {
      status.textContent = error instanceof ApiError && error.status ? String(error.status) : "";
      result.textContent = words(error);
    }
  }
}

const MOST = 200_000;

async function read(response, result) {
  const decoder = new TextDecoder();
  const reader = response.body?.getReader();
  let all = "";
  while (reader && all.length < MOST) {
    const { done, value } = await reader.read();
    if (done) break;
    const piece = decoder.decode(value, { stream: true });
    all += piece;
    result.append(piece);
  }
  await reader?.cancel();
  if (!(response.headers.get("content-type") ?? "").includes("json")) return;
  try {
    result.textContent = JSON.stringify(JSON.parse(all), null, 2);
  } catch {
    result.append("\n…");
  }
}

function curl({ url, method, headers, text }) {
  const quoted = (value) => `'${value.replaceAll("'", "'\\''")}'`;
  const parts = ["curl", quoted(new URL(url, new URL(".", location.href)).href)];
  if (method !== "GET") parts.push("-X", method);
  for (const [name, value] of Object.entries(headers)) parts.push("-H", quoted(`${name}: ${value}`));
  if (text !== undefined) parts.push("-H", quoted("content-type: application/json"), "-d", quoted(text));
  return parts.join(" ");
}

// --- schemas ----------------------------------------------------------------------------------

function follow(contract, node) {
  while (node?.$ref) node = node.$ref.slice(2).split("/").reduce((at, key) => at[key.replaceAll("~1", "/").replaceAll("~0", "~")], contract);
  return node ?? {};
}

function fields(contract, schema) {
  const top = follow(contract, schema);
  const all = [top, ...(top.allOf ?? []).map((one) => follow(contract, one))];
  const required = new Set(all.flatMap((one) => one.required ?? []));
  const rows = all.flatMap((one) => Object.entries(one.properties ?? {})).map(([name, sub]) => {
    const mark = required.has(name) ? h("b", {}, " required") : null;
    return h("tr", {}, h("td", {}, h("code", {}, name), mark), h("td", {}, kind(contract, sub)), h("td", {}, sub.description ?? follow(contract, sub).description ?? ""));
  });
  if (!rows.length) return null;
  return h("details", { class: "answers" }, h("summary", {}, `${rows.length} fields`), h("div", { class: "wide" }, h("table", {}, ...rows)));
}

function kind(contract, schema, depth = 0) {
  const found = follow(contract, schema);
  if ("const" in found) return JSON.stringify(found.const);
  if (found.enum) return found.enum.map((one) => (one === null ? "null" : String(one))).join(" | ");
  const branches = found.anyOf ?? found.oneOf;
  if (branches && depth < 3) return [...new Set(branches.map((one) => kind(contract, one, depth + 1)))].join(" | ");
  return [found.type ?? "any"].flat().join(" | ");
}
