// The table of kernels: which of them answer, how often, how fast, and how often they failed.

import { line } from "./charts.js";
import { byId, element, hintAtMore, setClass, setText, sync } from "./dom.js";
import { NONE, count, exact, nanoseconds, rate } from "./format.js";
import { gains, kernelKey } from "./figures.js";

/** States, in the order of the rows of an operation, with the class of each. */
const STATES = { selected: "good", "on trial": "accent", fallback: "", quarantined: "bad", retired: "" };
const RANK = Object.keys(STATES);

const rows = byId("kernel-rows");
const all = byId("kernels-all");
let latest = null;
hintAtMore(byId("kernel-scroll"), byId("kernel-table"), byId("kernels-more"));
all.addEventListener("change", () => latest && show(latest));

export function show(figures) {
  latest = figures;
  const { status, samples } = figures;
  const list = status.kernels.map((kernel) => {
    const key = kernelKey(kernel);
    return { ...kernel, key, state: kernel.state.replace("_", " "), recent: recent(samples, key), since: samples[0].time };
  });
  list.sort(order);
  const shown = all.checked ? list : list.filter(matters);
  shown.forEach((kernel, i) => (kernel.again = i > 0 && shown[i - 1].op === kernel.op));
  sync(rows, shown, (kernel) => kernel.key, row);
  setText(byId("kernels-count"), all.checked ? `${list.length}` : `${shown.length} of ${list.length}`);
  byId("kernels-none").hidden = shown.length > 0;
}

function order(a, b) {
  if (a.op !== b.op) return a.op < b.op ? -1 : 1;
  return RANK.indexOf(a.state) - RANK.indexOf(b.state) || b.generation - a.generation || (a.key < b.key ? -1 : 1);
}

/** Whether a kernel is worth a row unasked. */
function matters({ state, current, pack, calls, fallbacks }) {
  // A native twin that nothing calls is there for operations that this model does not have.
  return current && ((state === "selected" && pack !== "native") || state === "on trial" || state === "quarantined" || calls > 0 || fallbacks > 0);
}

/** Times of a kernel's calls and their rate over the last minutes. */
function recent(samples, key) {
  const known = samples.filter((sample) => sample.kernels.has(key));
  const of = (name) => (sample) => sample.kernels.get(key)[name];
  const points = gains(known, of("nanos"), of("calls"));
  if (known.length < 2) return { points, rate: null, nanos: null };
  const [first, last] = [known[0], known.at(-1)];
  const [calls, nanos] = ["calls", "nanos"].map((name) => of(name)(last) - of(name)(first));
  const time = (last.time - first.time) / 1000;
  return { points, rate: calls / time, nanos: calls > 0 ? nanos / calls : null };
}

/** Pack and version; those of a native twin say nothing. */
const packOf = ({ pack, pack_version: version }) => (pack === "native" ? null : element("small", {}, `${pack} ${version}`));

function row(kernel) {
  const [name, signature] = kernel.op.split(/(?=\()/);
  const chart = line(`Time of a call of ${kernel.kernel} over the last five minutes`, 1.8);
  const cell = (name) => element("td", { class: name });
  const [stateCell, latency, calls, speed, fallbacks, traps] =
    [null, "number", "number", "number minor", "number", "number"].map(cell);
  const stateText = element("span", {});
  stateCell.append(stateText);
  const node = element(
    "tr",
    {},
    element("th", { scope: "row", class: "op" }, name, element("small", {}, signature ?? "")),
    element("td", { class: "kernel" }, element("code", {}, kernel.kernel), packOf(kernel)),
    element("td", { class: "number gen" }, String(kernel.generation)),
    stateCell, latency,
    element("td", { class: "trend" }, chart.node),
    calls, speed, fallbacks, traps,
  );
  const update = ({ state, recent, again, since, ...figures }) => {
    setClass(node, `${again ? "again" : ""} ${state === "retired" ? "retired" : ""}`.trim());
    setText(stateText, state);
    setClass(stateText, `state ${STATES[state]}`);
    setText(calls, count(figures.calls));
    calls.title = exact(figures.calls);
    setText(speed, rate(recent.rate));
    const mean = figures.calls > 0 ? figures.nanos / figures.calls : null;
    setText(latency, nanoseconds(recent.nanos ?? mean));
    latency.title = mean === null ? "" : `${nanoseconds(mean)} since it was published`;
    chart.update(recent.points, since);
    const failures = Object.entries(figures.failures).map(([code, times]) => `${code}: ${exact(times)}`);
    for (const [cell, value, kind] of [[fallbacks, figures.fallbacks, "warn"], [traps, figures.traps, "bad"]]) {
      setText(cell, value > 0 ? count(value) : NONE);
      setClass(cell, value > 0 ? `number ${kind}` : "number nothing");
      cell.title = failures.join(", ");
    }
  };
  return { node, update };
}
