// What the chunks of a streamed answer make of a message. Pure: the same for the tab that writes, one that reads along,
// and one that comes back later.

/** A message of the model that nothing has been written of. */
export function emptyAnswer() {
  return { content: "", thinking: "", calls: [], completion: "", finish: null, usage: null, timings: null, thinkMs: 0 };
}

/** What a chunk of /v1/chat/completions adds, as a delta; null for nothing. */
export function deltaOf(chunk) {
  const choice = chunk.choices?.[0];
  const told = choice?.delta ?? {};
  const delta = {};
  if (told.content) delta.content = told.content;
  if (told.reasoning_content) delta.thinking = told.reasoning_content;
  if (told.tool_calls) delta.calls = told.tool_calls.map(callDelta);
  if (choice?.finish_reason) delta.finish = choice.finish_reason;
  if (chunk.usage) delta.usage = chunk.usage;
  if (chunk.timings) delta.timings = chunk.timings;
  if (chunk.prompt_progress) delta.progress = chunk.prompt_progress;
  if (chunk.id) delta.completion = chunk.id;
  return delta;
}

function callDelta(call) {
  const part = call.function ?? call.custom ?? {};
  const delta = { index: call.index };
  if (call.id) delta.id = call.id;
  if (part.name) delta.name = part.name;
  const text = part.arguments ?? part.input;
  if (text) delta.text = text;
  return delta;
}

/** Two deltas in a row as one. */
export function merged(a, b) {
  const both = { ...a, ...b };
  if (a.content || b.content) both.content = (a.content ?? "") + (b.content ?? "");
  if (a.thinking || b.thinking) both.thinking = (a.thinking ?? "") + (b.thinking ?? "");
  if (a.calls || b.calls) {
    both.calls = [...(a.calls ?? [])];
    for (const call of b.calls ?? []) {
      const last = both.calls.at(-1);
      if (last && last.index === call.index && !call.id) both.calls[both.calls.length - 1] = { ...last, text: (last.text ?? "") + (call.text ?? "") };
      else both.calls.push(call);
    }
  }
  return both;
}

/** Adds a delta to a message. */
export function add(message, delta) {
  if (delta.content) message.content += delta.content;
  if (delta.thinking) message.thinking += delta.thinking;
  for (const { index, id, name, text } of delta.calls ?? []) {
    const call = (message.calls[index] ??= { id: "", name: "", text: "" });
    if (id) call.id = id;
    if (name) call.name = name;
    if (text) call.text += text;
  }
  for (const key of ["finish", "usage", "timings", "completion", "thinkMs"]) {
    if (delta[key] !== undefined) message[key] = delta[key];
  }
}

/** Whether an answer is one JSON object or array; then its pretty form, else null. */
export function prettyJson(text) {
  const start = text.trimStart()[0];
  if (start !== "{" && start !== "[") return null;
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return null;
  }
}
