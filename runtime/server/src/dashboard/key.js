// The key: asked for when the server wants one, kept for this tab alone.

import { byId, setText } from "./dom.js";

const NAME = "ruvllm-key";

/** The operator closed the question. */
export class NoKey extends Error {}

const dialog = byId("key-dialog");
const input = byId("key-input");
const button = byId("key-button");
const listeners = [];
let asking = null;
/** Whether the listener asks for the key of an administrator. */
let admin = false;

/** For clients, and for administrators. */
const WANTED = [
  "This server asks for an API key. Whoever runs it gives them out.",
  "This address is for administrators: enter an admin key, one that the server was given with --admin-key.",
];
const UNKNOWN = [
  "The server does not know this key. An admin key opens the admin listener alone.",
  "This is none of the server's admin keys. The API key of a client does not open this address.",
];

export const storedKey = () => sessionStorage.getItem(NAME);

/** Calls `listener` when a key was given. */
export const onKey = (listener) => listeners.push(listener);

/**
 * Resolves when there is another key than the one that was refused.
 *
 * Throws `NoKey` where none is given.
 */
export async function askForKey(refused, wanted) {
  if (storedKey() !== refused) return;
  sessionStorage.removeItem(NAME);
  admin = wanted.admin;
  const message = wanted.unknown ? UNKNOWN : WANTED;
  await ask(message[Number(admin)]);
  if (!storedKey()) throw new NoKey("This page shows nothing without a key.");
}

/** Resolves when the question is closed, with or without a key. */
function ask(message) {
  asking ??= new Promise((resolve) => {
    button.hidden = false;
    setText(byId("key-title"), admin ? "Admin key" : "API key");
    setText(byId("key-message"), message);
    input.value = "";
    dialog.addEventListener("close", resolve, { once: true });
    dialog.showModal();
  }).finally(() => (asking = null));
  return asking;
}

byId("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  const key = input.value.trim();
  if (!key) return;
  sessionStorage.setItem(NAME, key);
  input.value = "";
  dialog.close();
  listeners.forEach((listener) => listener());
});
byId("key-cancel").addEventListener("click", () => dialog.close());
button.addEventListener("click", () => ask("Another key takes the place of the one before."));
button.hidden = !storedKey();
