// The server's figures, asked for every two seconds while somebody looks, and those of the last minutes.

import { read } from "./api.js";
import { NoKey, onKey } from "./key.js";

const PERIOD = 2000;
/** How far back charts go, in milliseconds. */
export const WINDOW = 300_000;
/** Entries of the history that are kept. */
const HISTORY = 500;

const listeners = [];
const troubles = [];
let samples = [];
let history = [];
let timer = null;
let busy = false;
let again = false;

/**
 * Calls `listener` with the newest figures: `status` and `admin` as the server sends them (`admin` is null
 * where this listener has no such API), `history` newest first, and `samples` oldest first.
 */
export const onFigures = (listener) => listeners.push(listener);

/** Calls `listener` with an error where there are no figures, with null once there are. */
export const onTrouble = (listener) => troubles.push(listener);

/** Asks at once: something has changed. */
export function refresh() {
  clearTimeout(timer);
  if (busy) again = true;
  else if (!document.hidden) tick();
}

/** What names a kernel's figures among others. */
export const kernelKey = (of) => [of.op, of.kernel ?? of.id, of.pack, of.pack_version, of.generation].join("|");

async function tick() {
  busy = true;
  let next = PERIOD;
  try {
    const status = await read("GET", "status");
    const admin = status.server.admin ? await read("GET", "admin/v1/kernels") : null;
    remember(status);
    if (admin) await readHistory();
    troubles.forEach((listener) => listener(null));
    listeners.forEach((listener) => listener({ status, admin, history, samples }));
  } catch (error) {
    troubles.forEach((listener) => listener(error));
    if (error instanceof NoKey) next = null;
  }
  busy = false;
  if (again) next = 0;
  again = false;
  if (next !== null && !document.hidden) timer = setTimeout(tick, next);
}

function remember({ scheduler, memory, kernels, latency, server }) {
  const last = samples.at(-1);
  // Another process, which counts from nothing.
  if (last && server.uptime_seconds < last.uptime) {
    samples = [];
    history = [];
  }
  const time = performance.now();
  const figures = new Map(kernels.map((kernel) => [kernelKey(kernel), kernel]));
  samples = samples.filter((sample) => sample.time > time - WINDOW);
  samples.push({ time, uptime: server.uptime_seconds, scheduler, used: memory.pool.used, latency, kernels: figures });
}

async function readHistory() {
  const after = history[0] ? `&after=${history[0].number}` : "";
  const { entries } = await read("GET", `admin/v1/history?limit=${HISTORY}${after}`);
  history = [...entries, ...history].slice(0, HISTORY);
}

/**
 * What `of(sample)` gained from each sample to the next, per second or, with `per`, for each of what that gained;
 * null where nothing can be said.
 */
export function gains(samples, of, per = (sample) => sample.time / 1000) {
  return samples.slice(1).map((sample, i) => {
    const before = samples[i];
    const [gained, units] = [of(sample) - of(before), per(sample) - per(before)];
    return { time: sample.time, value: units > 0 && gained >= 0 ? gained / units : null };
  });
}

/**
 * The times in seconds that parts of all durations stayed within, by the buckets `of(sample)`: those of the last minutes,
 * or of all where there were none. Null where there never were.
 */
export function quantiles(samples, of, parts) {
  const { bounds, counts } = of(samples.at(-1));
  const before = of(samples[0]).counts;
  const sum = (list) => list.reduce((total, count) => total + count, 0);
  const fresh = counts.map((count, i) => count - before[i]);
  const list = sum(fresh) > 0 ? fresh : counts;
  const total = sum(list);
  return parts.map((part) => (total > 0 ? quantile(bounds, list, part * total) : null));
}

/** Evenly between the bounds of the bucket in which the `rank`th duration lies. */
function quantile(bounds, counts, rank) {
  let below = 0;
  for (const [i, bound] of bounds.entries()) {
    if (below + counts[i] >= rank) {
      const from = bounds[i - 1] ?? 0;
      return from + ((bound - from) * (rank - below)) / counts[i];
    }
    below += counts[i];
  }
  return bounds.at(-1);
}

/** Begins. */
export function start() {
  document.addEventListener("visibilitychange", refresh);
  onKey(refresh);
  refresh();
}
