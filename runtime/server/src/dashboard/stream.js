// Server-sent events of an answer.

import { ApiError } from "./api.js";

/** The JSON events of a stream up to its `[DONE]`; throws the error that the server sends in the midst. */
export async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) throw new ApiError(200, { message: "the answer broke off", code: "broken_stream" });
      const lines = (rest + value).split("\n");
      rest = lines.pop();
      for (const line of lines) {
        if (!line.startsWith("data:")) continue;
        const data = line.slice(5).trim();
        if (data === "[DONE]") return;
        const event = JSON.parse(data);
        if (event.error) throw new ApiError(200, event.error);
        yield event;
      }
    }
  } finally {
    // Whoever stops reading stops the answer.
    reader.cancel().catch(() => {});
  }
}
