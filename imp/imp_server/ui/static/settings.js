// What a conversation asks for beside its messages.

import { ask, h } from "./dom.js";
import { SETTINGS } from "./requests.js";
import * as store from "./store.js";

/** Whether something was changed; the conversation has it then, and is saved unless it is new. */
export async function editSettings(conversation, isNew) {
  const { settings } = conversation;
  const system = h("textarea", { rows: "4", placeholder: "You are a helpful assistant.", value: conversation.system });
  const numbers = SETTINGS.map(([name, label, limits]) => {
    const field = h("input", { ...limits, placeholder: "server's own", value: settings[name] ?? "" });
    return { name, field, row: labelled(label, field) };
  });
  const stop = h("textarea", { rows: "2", placeholder: "one per line", value: settings.stop ?? "" });
  const thinking = choice([["", "as the model likes"], ["on", "on"], ["off", "off"]], settings.thinking ?? "");
  const json = h("input", { type: "checkbox" });
  json.checked = Boolean(settings.json);
  const tools = h("textarea", { rows: "4", class: "mono", spellcheck: "false", placeholder: '[{"type": "function", "function": {"name": …}}]', value: settings.tools ?? "" });
  const fields = [
    labelled("System prompt", system, "tall"),
    h("div", { class: "grid" }, ...numbers.map((one) => one.row), labelled("Thinking", thinking)),
    labelled("Stop at", stop, "tall"),
    h("label", { class: "check" }, json, "The answer is a JSON object"),
    labelled("Tools that the model may call (JSON)", tools, "tall"),
  ];
  if (!(await ask("Settings of this conversation", fields, { confirm: "Save" }))) return false;
  const given = numbers.filter(({ field }) => field.value !== "" && field.validity.valid).map(({ name, field }) => [name, Number(field.value)]);
  conversation.system = system.value;
  conversation.settings = {
    ...Object.fromEntries(given),
    ...(stop.value ? { stop: stop.value } : {}),
    ...(thinking.value ? { thinking: thinking.value } : {}),
    ...(json.checked ? { json: true } : {}),
    ...(tools.value.trim() ? { tools: tools.value } : {}),
  };
  if (!isNew) await store.update(conversation.id, { system: conversation.system, settings: conversation.settings });
  return true;
}

function labelled(text, field, kind = "") {
  return h("label", { class: `field ${kind}` }, h("span", {}, text), field);
}

function choice(options, value) {
  const field = h("select", {}, ...options.map(([key, text]) => h("option", { value: key }, text)));
  field.value = value;
  return field;
}
