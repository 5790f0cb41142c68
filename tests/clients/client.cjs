// The official Node client against a server: `client.cjs BASE_URL API_KEY`. Fails where an answer is not
// as it should be.
const assert = require("node:assert/strict");
const { OpenAI, NotFoundError, BadRequestError, AuthenticationError } = require("openai");

const [baseURL, apiKey] = process.argv.slice(2);
const client = new OpenAI({ baseURL, apiKey, maxRetries: 0 });
const messages = [{ role: "user", content: "Once upon a time" }];

async function main() {
  const { data: models } = await client.models.list();
  const model = models[0].id;

  const answer = await client.chat.completions.create({
    model, messages, max_tokens: 12, temperature: 0, logprobs: true, top_logprobs: 2, n: 2,
  });
  const text = answer.choices[0].message.content;
  assert.equal(answer.choices.length, 2);
  assert.equal(answer.usage.completion_tokens, 24);
  assert.equal(answer.choices[0].logprobs.content.length, 12);
  assert.ok(text && answer._request_id);

  let pieces = "";
  let usage;
  for await (const chunk of await client.chat.completions.create({
    model, messages, max_tokens: 12, temperature: 0, stream: true, stream_options: { include_usage: true },
  })) {
    usage = chunk.usage ?? usage;
    pieces += chunk.choices[0]?.delta?.content ?? "";
  }
  assert.equal(pieces, text);
  assert.equal(usage.completion_tokens, 12);

  const left = await client.chat.completions.create({ model, messages, max_tokens: 400, stream: true });
  for await (const _ of left) break;

  const completion = await client.completions.create({
    model, prompt: "Once upon a time", max_tokens: 5, temperature: 0, logprobs: 1,
  });
  assert.equal(completion.choices[0].logprobs.tokens.join(""), completion.choices[0].text);

  const schema = {
    type: "object",
    properties: { kind: { enum: ["fox", "bear"] }, brave: { type: "boolean" } },
    required: ["kind", "brave"],
    additionalProperties: false,
  };
  const parsed = await client.chat.completions.parse({
    model, messages, max_tokens: 50, seed: 1,
    response_format: { type: "json_schema", json_schema: { name: "hero", strict: true, schema } },
  });
  assert.ok(["fox", "bear"].includes(parsed.choices[0].message.parsed.kind));

  const tools = [{ type: "function", function: { name: "walk", parameters: schema } }];
  const runner = client.chat.completions.stream({
    model, messages, tools, tool_choice: { type: "function", function: { name: "walk" } }, max_tokens: 200, seed: 1,
  });
  const called = await runner.finalChatCompletion();
  assert.equal(called.choices[0].finish_reason, "tool_calls");
  assert.ok("kind" in JSON.parse(called.choices[0].message.tool_calls[0].function.arguments));

  const embedded = await client.embeddings.create({ model, input: ["a fox", "a bear"] });
  const length = embedded.data[1].embedding.reduce((sum, x) => sum + x * x, 0);
  assert.ok(Math.abs(length - 1) < 1e-4);

  const refused = async (kind, param, call) => {
    const error = await call.then(() => assert.fail("accepted"), (error) => error);
    assert.ok(error instanceof kind, String(error));
    assert.equal(error.param ?? null, param);
  };
  await refused(NotFoundError, "model", client.chat.completions.create({ model: "none", messages }));
  await refused(
    BadRequestError, "temperature", client.chat.completions.create({ model, messages, temperature: 9 }),
  );
  const stranger = new OpenAI({ baseURL, apiKey: "sk-none", maxRetries: 0 });
  await refused(AuthenticationError, null, stranger.models.list());
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});
