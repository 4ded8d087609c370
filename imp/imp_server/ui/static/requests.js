// The request that a conversation becomes.

/** Sampling settings, by the names of the API: label, kind, and what is allowed. */
export const SETTINGS = [
  ["temperature", "Temperature", { type: "number", min: 0, max: 2, step: 0.05 }],
  ["max_tokens", "Longest answer, tokens", { type: "number", min: 1, step: 1 }],
  ["top_p", "Top p", { type: "number", min: 0, max: 1, step: 0.01 }],
  ["top_k", "Top k", { type: "number", min: 0, step: 1 }],
  ["min_p", "Min p", { type: "number", min: 0, max: 1, step: 0.01 }],
  ["repetition_penalty", "Repetition penalty", { type: "number", min: 0.1, max: 2, step: 0.05 }],
  ["presence_penalty", "Presence penalty", { type: "number", min: -2, max: 2, step: 0.1 }],
  ["frequency_penalty", "Frequency penalty", { type: "number", min: -2, max: 2, step: 0.1 }],
  ["seed", "Seed", { type: "number", min: 0, step: 1 }],
];

/** `path`: from the first message to the last that is sent; that of an answer is to be continued. */
export function bodyOf(conversation, path, model) {
  const settings = conversation.settings ?? {};
  const body = {
    model,
    messages: [],
    stream: true,
    stream_options: { include_usage: true },
    sse_ping_interval: 1,
    return_progress: true,
    reasoning_control: true,
  };
  if (conversation.system?.trim()) body.messages.push({ role: "system", content: conversation.system });
  body.messages.push(...path.map(sent));
  if (path.at(-1)?.role === "assistant") body.continue_final_message = true;
  for (const [name] of SETTINGS) if (typeof settings[name] === "number") body[name] = settings[name];
  if (settings.stop) body.stop = settings.stop.split("\n").filter(Boolean);
  if (settings.thinking === "on") body.enable_thinking = true;
  if (settings.thinking === "off") body.enable_thinking = false;
  if (settings.json) body.response_format = { type: "json_object" };
  if (settings.tools?.trim()) body.tools = JSON.parse(settings.tools);
  return body;
}

function sent(message) {
  if (message.role === "tool") return { role: "tool", tool_call_id: message.call, content: message.content };
  if (message.role === "user") return { role: "user", content: withFiles(message) };
  const told = { role: "assistant", content: message.content };
  if (message.calls?.length) {
    told.tool_calls = message.calls.map((call) => ({
      id: call.id,
      type: "function",
      function: { name: call.name, arguments: call.text },
    }));
    if (message.thinking) told.reasoning_content = message.thinking;
  }
  return told;
}

/** Attached texts stand before the question, each in a fence that is longer than any in it. */
export function withFiles(message) {
  const files = (message.files ?? []).map(({ name, text }) => {
    const longest = Math.max(2, ...(text.match(/`+/g) ?? []).map((run) => run.length));
    const fence = "`".repeat(longest + 1);
    return `${name}\n${fence}\n${text}\n${fence}`;
  });
  return [...files, message.content].filter(Boolean).join("\n\n");
}
