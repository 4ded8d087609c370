// The AI SDK with its three providers against a live server that answers "Hello wörld", or calls `weather` when it has
// tools. Its schemas are stricter than the official SDKs': a null where a field may be missing is an error.
import assert from "node:assert/strict";
import { createAnthropic } from "@ai-sdk/anthropic";
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateText, jsonSchema, streamText, tool } from "ai";

const baseURL = `${process.argv[2]}/v1`;
const openai = createOpenAI({ baseURL, apiKey: "k" });
const models = [
  openai("toy"), // Responses
  openai.chat("toy"),
  createOpenAICompatible({ name: "imp", baseURL })("toy"),
  createAnthropic({ baseURL, apiKey: "k" })("toy"),
];
const inputSchema = jsonSchema({ type: "object", properties: { city: { type: "string" } } });
const tools = { weather: tool({ description: "The weather.", inputSchema }) };
const text = "Hello wörld";

for (const model of models) {
  const asked = { model, prompt: "hi", maxRetries: 0 };
  assert.equal((await generateText(asked)).text, text, model.provider);
  assert.equal(await streamText(asked).text, text, model.provider);
  const called = await generateText({ ...asked, tools });
  assert.deepEqual(called.toolCalls.map((call) => call.input), [{ city: "Köln" }], model.provider);
  const streamed = await streamText({ ...asked, tools }).toolCalls;
  assert.deepEqual(streamed.map((call) => call.input), [{ city: "Köln" }], model.provider);
}
console.log("ai sdk ok");
