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

export const storedKey = () => sessionStorage.getItem(NAME);

/** Calls `listener` when a key was given. */
export const onKey = (listener) => listeners.push(listener);

/**
 * Resolves when there is another key than the one that was refused.
 *
 * Throws `NoKey` where none is given.
 */
export async function askForKey(refused, message) {
  if (storedKey() !== refused) return;
  sessionStorage.removeItem(NAME);
  await ask(message);
  if (!storedKey()) throw new NoKey(message);
}

/** Resolves when the question is closed, with or without a key. */
function ask(message) {
  asking ??= new Promise((resolve) => {
    button.hidden = false;
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
