// Calls of this server: its address, the key, and errors in words.

import { ask, debug, h } from "./dom.js";

/** The folder that the page lies in, whatever prefix the server is behind. */
export const BASE = new URL(".", location.href);
const KEY = "imp.key";

export class ApiError extends Error {
  constructor(status, message, code = "", param = null) {
    super(message);
    this.status = status;
    this.code = code;
    this.param = param;
  }
}

/** Keys are kept for this tab alone. */
export function key() {
  return sessionStorage.getItem(KEY) ?? "";
}

let asking = null;

function askForKey() {
  asking ??= (async () => {
    const field = h("input", { type: "text", class: "secret", spellcheck: "false", autocomplete: "off", "aria-label": "API key", placeholder: "API key" });
    const why = key() ? "The server doesn't know this key." : "This server asks for a key.";
    const given = await ask("Key needed", [h("p", {}, why + " It is kept until you close this tab."), field], {
      confirm: "Use this key",
    });
    if (given && field.value.trim()) sessionStorage.setItem(KEY, field.value.trim());
    asking = null;
    return given;
  })();
  return asking;
}

function headersOf(more) {
  return key() ? { Authorization: `Bearer ${key()}`, ...more } : more;
}

/**
 * The response, whose status is below 400. Asks for a key where the server wants one. Raises ApiError; its status is 0
 * where the server can't be reached.
 */
export async function call(path, { method = "GET", json, headers = {}, signal, quiet = false } = {}) {
  for (;;) {
    const used = key();
    const init = { method, headers: headersOf(headers), signal, cache: "no-store" };
    if (json !== undefined) {
      init.body = JSON.stringify(json);
      init.headers["Content-Type"] = "application/json";
    }
    let response;
    try {
      response = await fetch(new URL(path, BASE), init);
    } catch (error) {
      if (signal?.aborted) throw signal.reason;
      if (error.name === "AbortError") throw error;
      throw new ApiError(0, "The server can't be reached.");
    }
    debug(method, path, response.status);
    if (response.status < 400) return response;
    const error = await errorOf(response);
    if (response.status !== 401 || quiet) throw error;
    if (used === key() && !(await askForKey())) throw error;
  }
}

export async function callJson(path, options) {
  return (await call(path, options)).json();
}

async function errorOf(response) {
  const text = await response.text();
  try {
    const { error } = JSON.parse(text);
    return new ApiError(response.status, error.message, error.code ?? error.type ?? "", error.param ?? null);
  } catch {
    return new ApiError(response.status, text.slice(0, 300) || `The server answered ${response.status}.`);
  }
}

const ADVICE = {
  model_loading: "The model is still loading. Try again in a moment.",
  no_model: "No model is loaded. Choose one at the top, or start the server with one.",
  context_length_exceeded: "This conversation is longer than the model's context.",
  rate_limit_exceeded: "The server has too much to do. Try again in a moment.",
  request_cancelled: "Stopped.",
};

/** What a person is told of an error. */
export function words(error) {
  const advice = ADVICE[error.code];
  const message = String(error.message ?? error);
  return advice && advice !== message ? `${advice} (${message})` : message;
}
