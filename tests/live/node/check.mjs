// The official Node SDKs against a live server that answers "Hello wörld", or calls `weather` when it has tools.
import assert from "node:assert/strict";
import Anthropic from "@anthropic-ai/sdk";
import OpenAI from "openai";

const url = process.argv[2];
const openai = new OpenAI({ baseURL: `${url}/v1`, apiKey: "k", maxRetries: 0 });
const anthropic = new Anthropic({ baseURL: url, apiKey: "k", maxRetries: 0 });
const text = "Hello wörld";
const messages = [{ role: "user", content: "hi" }];
const parameters = { type: "object", properties: { city: { type: "string" } } };

const response = await openai.responses.create({ model: "toy", input: "hi" });
assert.equal(response.output_text, text);
assert.equal((await openai.responses.retrieve(response.id)).output_text, text);

const stream = openai.responses.stream({ model: "toy", input: "hi" });
let streamed = "";
stream.on("response.output_text.delta", (event) => (streamed += event.delta));
assert.equal((await stream.finalResponse()).output_text, text);
assert.equal(streamed, text);

const tools = [{ type: "function", name: "weather", parameters, strict: false }];
const called = await openai.responses.create({ model: "toy", input: "hi", tools });
assert.deepEqual(JSON.parse(called.output[0].arguments), { city: "Köln" });

const chat = await openai.chat.completions.create({ model: "toy", messages });
assert.equal(chat.choices[0].message.content, text);
const chatStream = openai.chat.completions.stream({ model: "toy", messages });
assert.equal(await chatStream.finalContent(), text);

const message = await anthropic.messages.create({ model: "toy", max_tokens: 64, messages });
assert.equal(message.content[0].text, text);
const messageStream = anthropic.messages.stream({ model: "toy", max_tokens: 64, messages });
assert.equal(await messageStream.finalText(), text);
const used = await anthropic.messages.stream({
  model: "toy",
  max_tokens: 256,
  messages,
  tools: [{ name: "weather", input_schema: parameters }],
}).finalMessage();
assert.deepEqual(used.content[0].input, { city: "Köln" });
const counted = await anthropic.messages.countTokens({ model: "toy", messages });
assert.equal(counted.input_tokens, message.usage.input_tokens);

await assert.rejects(openai.responses.create({ model: "gone", input: "hi" }), OpenAI.NotFoundError);
await assert.rejects(
  anthropic.messages.create({ model: "gone", max_tokens: 8, messages }),
  (error) => error.status === 404 && error.error.error.type === "not_found_error",
);
console.log("node sdks ok");
