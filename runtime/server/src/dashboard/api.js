// Calls of the server's API.

import { askForKey, storedKey } from "./key.js";

/** What the server said instead of an answer. */
export class ApiError extends Error {
  constructor(status, { message, code }) {
    super(message);
    this.status = status;
    this.code = code;
  }
}

/** Asks, with the key of this tab and for a key where it takes one. Gives the answer of a success. */
export async function call(method, path, { json, body, signal } = {}) {
  for (;;) {
    const key = storedKey();
    const headers = {};
    if (key) headers.Authorization = `Bearer ${key}`;
    if (json !== undefined) headers["Content-Type"] = "application/json";
    else if (body !== undefined) headers["Content-Type"] = "application/octet-stream";
    const sent = json === undefined ? body : JSON.stringify(json);
    const response = await fetch(path, { method, headers, body: sent, signal, cache: "no-store" });
    if (response.ok) return response;
    const error = await refusal(response);
    if (response.status !== 401) throw error;
    // Which keys open this listener, and whether the one that was sent is none of them.
    const challenge = response.headers.get("www-authenticate") ?? "";
    await askForKey(key, { admin: challenge.includes('realm="admin"'), unknown: challenge.includes("invalid_token") });
  }
}

/** As `call`, and reads the answer. */
export async function read(method, path, options) {
  const response = await call(method, path, options);
  return response.status === 204 ? null : response.json();
}

async function refusal(response) {
  const text = await response.text();
  try {
    return new ApiError(response.status, JSON.parse(text).error);
  } catch {
    // Not the server itself, but something in front of it.
    return new ApiError(response.status, { message: text || response.statusText, code: "unknown" });
  }
}
