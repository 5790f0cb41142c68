// The chat: a conversation with the model, its answers as they come, and how fast they came.

import { call } from "./api.js";
import { byId, element, setText } from "./dom.js";
import { seconds } from "./format.js";
import { events } from "./stream.js";

const list = byId("messages");
const input = byId("chat-input");
const send = byId("chat-send");
const stop = byId("chat-stop");
/** Tokens of an answer where neither form nor model says when to end. */
const TEXT_TOKENS = 256;

let conversation = [];
/** Whether the model has a template for conversations; without, it goes on with a text. */
let templated = true;
let running = null;

byId("chat-form").addEventListener("submit", (event) => {
  event.preventDefault();
  const text = input.value;
  if (running || !text.trim()) return;
  input.value = "";
  answer(text);
});
input.addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  byId("chat-form").requestSubmit();
});
stop.addEventListener("click", () => running?.abort());
byId("chat-clear").addEventListener("click", () => {
  running?.abort();
  conversation = [];
  list.replaceChildren();
  byId("chat-empty").hidden = false;
  input.focus();
});

async function answer(text) {
  byId("chat-empty").hidden = true;
  conversation.push({ role: "user", content: text });
  bubble("user", text);
  const { body, meta } = bubble("assistant", "");
  const controller = new AbortController();
  const { signal } = controller;
  busy(controller);
  const measure = new Measure(meta);
  const said = { role: "assistant", content: "" };
  // A conversation that is cleared meanwhile is another one.
  const own = conversation;
  try {
    for await (const { piece, usage } of pieces(signal)) {
      // Many events may have come at once.
      signal.throwIfAborted();
      if (usage) measure.tokens = usage.completion_tokens;
      if (!piece) continue;
      measure.piece();
      said.content += piece;
      body.append(piece);
      follow();
    }
    measure.end("");
  } catch (error) {
    const stopped = error.name === "AbortError";
    measure.end(stopped ? "stopped" : "broken off");
    if (!stopped) body.after(element("p", { class: "error" }, error.message));
  }
  if (said.content) own.push(said);
  else own.pop();
  busy(null);
}

/** What the model says, piece by piece. */
async function* pieces(signal) {
  if (templated) {
    try {
      yield* stream("v1/chat/completions", { messages: [...system(), ...conversation] }, signal);
      return;
    } catch (error) {
      if (error.code !== "no_chat_template") throw error;
      templated = false;
      byId("chat-mode").hidden = false;
    }
  }
  yield* stream("v1/completions", { prompt: conversation.at(-1).content, max_tokens: TEXT_TOKENS }, signal);
}

async function* stream(path, what, signal) {
  const json = { ...what, ...settings(), stream: true, stream_options: { include_usage: true } };
  const response = await call("POST", path, { json, signal });
  for await (const { choices, usage } of events(response.body)) {
    const [choice] = choices ?? [];
    yield { piece: choice?.delta?.content ?? choice?.text ?? "", usage };
  }
}

const system = () => {
  const content = byId("chat-system").value.trim();
  return content ? [{ role: "system", content }] : [];
};

/** The settings that are filled in. */
function settings() {
  const given = { temperature: byId("chat-temperature").value, max_tokens: byId("chat-tokens").value };
  return Object.fromEntries(Object.entries(given).filter(([, value]) => value !== "").map(([name, value]) => [name, Number(value)]));
}

function bubble(role, text) {
  const body = element("p", { class: "text" }, text);
  const meta = element("p", { class: "meta" });
  const who = element("span", { class: "who" }, role === "user" ? "You" : "Model");
  list.append(element("li", { class: role }, who, body, role === "user" ? null : meta));
  atEnd = true;
  follow();
  return { body, meta };
}

/** Whether the end of the conversation is in sight, and whether it is about to be followed. */
let atEnd = true;
let following = false;
list.addEventListener("scroll", () => (atEnd = list.scrollHeight - list.scrollTop - list.clientHeight < 40));

/** Keeps the end in sight, once for each frame, unless somebody reads further up. */
function follow() {
  if (following || !atEnd) return;
  following = true;
  requestAnimationFrame(() => {
    following = false;
    list.scrollTop = list.scrollHeight;
  });
}

/** While an answer comes: it is read out when it is whole, and the button stops it. */
function busy(controller) {
  running = controller;
  const focused = document.activeElement;
  list.setAttribute("aria-busy", String(controller !== null));
  send.hidden = controller !== null;
  stop.hidden = controller === null;
  if (focused === send || focused === stop) input.focus();
}

/** How fast an answer comes. */
class Measure {
  begin = performance.now();
  first = null;
  last = null;
  shown = 0;
  pieces = 0;
  /** As the server counts them. */
  tokens = null;

  constructor(line) {
    this.line = line;
    setText(line, "waiting for the first token");
  }

  piece() {
    this.last = performance.now();
    this.first ??= this.last;
    this.pieces += 1;
    if (this.last - this.shown > 200) this.show("");
  }

  end(how) {
    if (this.first === null) setText(this.line, how || "no text");
    else this.show(how);
  }

  show(how) {
    this.shown = performance.now();
    const tokens = this.tokens ?? this.pieces;
    const time = (this.last - this.first) / 1000;
    const speed = tokens > 1 && time > 0 ? `${((tokens - 1) / time).toFixed(1)} tokens/s` : null;
    const first = `first after ${seconds((this.first - this.begin) / 1000)}`;
    setText(this.line, [tokens === 1 ? "1 token" : `${tokens} tokens`, speed, first, how].filter(Boolean).join(" · "));
  }
}
