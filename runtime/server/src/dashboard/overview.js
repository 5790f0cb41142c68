// The head of the page and the figures of the whole server.

import { line } from "./charts.js";
import { byId, setClass, setText } from "./dom.js";
import { bytes, clock, count, exact, percent, rate, seconds, span } from "./format.js";
import { gains, quantiles } from "./figures.js";
import { NoKey } from "./key.js";

const tokens = line("Tokens per second over the last five minutes");
const running = line("Requests that are computed, over the last five minutes");
byId("rate-line").append(tokens.node);
byId("running-line").append(running.node);
const used = line("Memory in use over the last five minutes");
byId("used-line").append(used.node);

/** The last gain that says something. */
const newest = (points) => points.findLast((point) => point.value !== null)?.value;

export function show({ status, admin, samples }) {
  const { server, scheduler, memory, generation } = status;
  setText(byId("model"), server.model);
  setText(byId("version"), `version ${server.version} · up ${span(server.uptime_seconds)}`);
  document.title = `${server.model} · ruvllm`;
  setText(byId("connection"), server.draining ? "about to stop" : "live");
  setClass(byId("connection"), server.draining ? "state warn" : "state good");
  byId("connection").title = "";

  const since = samples[0].time;
  const generated = gains(samples, (sample) => sample.scheduler.generated_tokens);
  const prompt = gains(samples, (sample) => sample.scheduler.prompt_tokens);
  setText(byId("rate"), rate(newest(generated)));
  setText(byId("rate-note"), `and ${rate(newest(prompt))} of prompts`);
  byId("rate-note").title = `${exact(scheduler.generated_tokens)} in all, and ${exact(scheduler.prompt_tokens)} of prompts`;
  tokens.update(generated, since);

  setText(byId("running"), count(scheduler.running));
  setText(byId("running-note"), `${count(scheduler.waiting)} waiting · ${count(scheduler.resting)} resting`);
  running.update(samples.map((sample) => ({ time: sample.time, value: sample.scheduler.running })), since);

  for (const [id, name] of [["first", "first_token"], ["between", "between_tokens"]]) {
    const [median, most] = quantiles(samples, (sample) => sample.latency[name], [0.5, 0.95]);
    setText(byId(id), seconds(median));
    setText(byId(`${id}-note`), `95 % within ${seconds(most)}`);
  }

  const { pool } = memory;
  setText(byId("used"), percent(pool.used, pool.budget));
  setText(byId("used-note"), `${bytes(pool.used)} of ${bytes(pool.budget)}`);
  used.update(samples.map((sample) => ({ time: sample.time, value: sample.used })), since);

  setText(byId("generation"), String(generation));
  const [text, kind] = verdict(status, admin);
  setText(byId("generation-note"), text);
  setClass(byId("generation-note"), `note ${kind}`);
}

/** What is to be said of the kernels in a few words. */
function verdict({ kernels }, admin) {
  const out = kernels.filter((kernel) => kernel.current && kernel.quarantined).length;
  if (out > 0) return [`${out} quarantined`, "bad"];
  const open = admin?.health.find((report) => report.health.watching);
  if (open) {
    const what = open.canary ? "on trial" : "on watch";
    return [`${what}, ${span(open.health.watching.left.secs)} left`, "accent"];
  }
  if (admin?.health.length > 0) return ["in service, not proven", "warn"];
  return ["all kernels in service", ""];
}

let silent = null;

/** Says why there are no figures, and since when; the last ones stay, and are seen to be old. */
export function showTrouble(error) {
  document.body.classList.toggle("stale", error !== null);
  silent = error === null ? null : (silent ?? clock(Date.now()));
  if (error === null) return;
  const connection = byId("connection");
  setText(connection, error instanceof NoKey ? "needs a key" : `no figures since ${silent}`);
  setClass(connection, "state bad");
  connection.title = error.message;
}
