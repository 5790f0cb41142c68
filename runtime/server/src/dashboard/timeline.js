// The health-window timeline: generations, windows and events on one axis, and the history as a list.

import { byId, element, setText, shape, sync } from "./dom.js";
import { clock, date, span } from "./format.js";
import { eventOf, inSeconds, reigns, shown, subject, windows } from "./past.js";

const HEIGHT = 118;
/** Left of the axis, for the names of the lanes. */
const GUTTER = 64;
const LANES = { active: 22, watched: 52, events: 78 };
const BAR = 18;
/** Steps between the ticks of the axis, in seconds. */
const STEPS = [60, 300, 900, 1800, 3600, 3 * 3600, 6 * 3600, 24 * 3600, 7 * 24 * 3600, 30 * 24 * 3600];

const chart = byId("timeline-chart");
let latest = null;
new ResizeObserver(() => latest && draw()).observe(chart);
byId("timeline-range").addEventListener("change", () => latest && draw());

export function show(figures) {
  if (!figures.admin) return;
  latest = figures;
  draw();
  const entries = shown(figures.history);
  sync(byId("history"), entries.slice(0, 100), (entry) => entry.number, historyLine);
  byId("history-none").hidden = entries.length > 0;
}

function draw() {
  const { admin, history } = latest;
  const width = chart.clientWidth;
  if (width === 0) return;
  const now = Date.now();
  const ends = windows(history, admin.health, admin.window_seconds, now);
  const [from, to] = extent(history, ends, now);
  const x = (time) => GUTTER + ((width - GUTTER - 8) * (time - from)) / (to - from);
  const inside = ({ from: begin, to: end }) => (end ?? now) > from && begin < to;

  const axis = ticks(from, to).map((time) =>
    shape("g", { class: "tick", transform: `translate(${x(time).toFixed(1)} 0)` },
      shape("line", { y1: 14, y2: HEIGHT - 18 }),
      shape("text", { y: HEIGHT - 4, "text-anchor": "middle" }, label(time, to - from))));
  const lanes = Object.entries(LANES).map(([name, y]) => shape("text", { class: "lane", x: 0, y: y + 4 }, name));
  const active = reigns(history).filter(inside).map((reign) => stretch(reign, reign.to === null ? "reign current" : "reign", LANES.active));
  const watched = ends.filter(inside).map((window) => stretch(window, `window ${window.outcome}`, LANES.watched));
  const marks = shown(history).filter(({ time }) => time > from).reverse().map((entry) => mark(entry, x(entry.time)));
  const present = shape("line", { class: "now", x1: x(now), x2: x(now), y1: 8, y2: HEIGHT - 18 });
  chart.setAttribute("viewBox", `0 0 ${width} ${HEIGHT}`);
  chart.replaceChildren(...axis, ...lanes, ...active, ...watched, present, ...marks);
  setText(byId("timeline-summary"), summary(ends));

  function stretch({ generation, from: begin, to: end, outcome }, name, y) {
    const [left, right] = [Math.max(x(begin), GUTTER), Math.max(x(end ?? now), GUTTER)];
    const wide = Math.max(right - left, 2);
    const title = `Generation ${generation}${outcome ? `, ${OUTCOMES[outcome]}` : ""}: ${date(begin)} to ${end === null ? "now" : date(end)}`;
    const done = outcome === "open" ? shape("rect", { class: "done", x: left, y: y - BAR / 2, width: Math.max(x(now) - left, 0), height: BAR, rx: 3 }) : null;
    const text = wide > 26 ? shape("text", { x: left + 7, y: y + 4 }, wide > 110 ? `generation ${generation}` : String(generation)) : null;
    return shape("g", { class: name }, shape("title", {}, title), shape("rect", { x: left, y: y - BAR / 2, width: wide, height: BAR, rx: 3 }), done, text);
  }
}

const OUTCOMES = { open: "on watch", healthy: "found healthy", unproven: "not proven", bad: "taken back", ended: "window closed" };

/** From and to when the axis goes: the chosen time, and some of what is to come where a window is open. */
function extent(history, ends, now) {
  const chosen = byId("timeline-range").elements.range.value;
  const first = history.at(-1)?.time ?? now;
  const length = chosen === "all" ? Math.max(now - first, 600_000) * 1.02 : 60_000 * Number(chosen);
  const ahead = Math.max(0, ...ends.filter((window) => window.outcome === "open").map((window) => window.to - now));
  return [now - length, now + Math.min(1.1 * ahead, length / 3) + length / 50];
}

function ticks(from, to) {
  const step = 1000 * (STEPS.find((step) => (to - from) / 1000 / step <= Math.max(3, chart.clientWidth / 130)) ?? STEPS.at(-1));
  // Whole hours and days of the clock on the wall.
  const shift = 60_000 * new Date(to).getTimezoneOffset();
  const list = [];
  for (let time = Math.ceil((from - shift) / step) * step + shift; time < to; time += step) list.push(time);
  return list;
}

function label(time, length) {
  const at = new Date(time);
  if (length > 2 * 86_400_000) return at.toLocaleDateString("en-GB", { day: "numeric", month: "short" });
  return at.toLocaleTimeString("en-GB", { hour: "2-digit", minute: "2-digit" });
}

function mark(entry, x) {
  const [name, kind] = eventOf(entry);
  const title = [date(entry.time), name, subject(entry), entry.reason].filter(Boolean).join(" · ");
  const small = kind === "quiet";
  return shape("g", { class: `mark ${kind}`, transform: `translate(${x.toFixed(1)} ${LANES.events})` },
    shape("title", {}, title),
    kind === "bad" || kind === "warn"
      ? shape("path", { d: "M0-5.5 5.5 0 0 5.5-5.5 0Z" })
      : shape("circle", { r: small ? 2.5 : 4.5 }));
}

function summary(ends) {
  const of = (outcome) => ends.filter((window) => window.outcome === outcome).length;
  return `${ends.length} health windows: ${of("open")} open, ${of("healthy")} ended healthy, ${of("unproven")} not proven, ${of("bad")} taken back.`;
}

function historyLine(entry) {
  const [name, kind] = eventOf(entry);
  const node = element(
    "li",
    {},
    element("time", { datetime: new Date(entry.time).toISOString(), title: date(entry.time) }, clock(entry.time)),
    element("span", { class: `event ${kind}` }, name),
    element("span", { class: "subject" }, subject(entry)),
    element("span", { class: "operator" }, entry.operator ? `by ${entry.operator}` : ""),
    entry.reason ? element("span", { class: "reason" }, entry.reason) : null,
  );
  return { node };
}

const watch = byId("watch");

/** The open windows with their figures. */
export function showWatch({ admin, history }) {
  if (!admin) return;
  const open = admin.health.filter((report) => report.health.watching || report.health === "unproven");
  sync(watch, open, (report) => `${report.generation} ${report.canary}`, (report) => windowCard(report, admin.window_seconds));
  const last = history.find((entry) => entry.event === "healthy" || entry.event === "rolled_back");
  byId("watch-none").hidden = open.length > 0;
  setText(byId("watch-none"), last
    ? `Nothing is on watch. ${date(last.time)}: generation ${last.generation} ${last.event === "healthy" ? "found healthy" : "gone back to"}.`
    : "Nothing is on watch. A pack is watched from its activation on, and taken back where it does harm.");
}

/** Calls that medians are compared over at least, on both sides. */
const JUDGED = 512;

function windowCard({ generation, packs, canary }, seconds) {
  const left = element("span", { class: "left" });
  const progress = element("progress", { max: seconds, "aria-label": "Part of the health window that is over" });
  const figures = Object.fromEntries(
    ["traps", "deadlines", "wrong numbers", "quarantined", "latency", "loss", "still to be seen"].map((name) => [name, element("dd")]),
  );
  const title = packs.map((pack) => `${pack.name} ${pack.version}`).join(", ") || "no new pack";
  const node = element(
    "li",
    {},
    element("p", { class: "what" }, element("strong", {}, `Generation ${generation}`), `${title}${canary ? ", on trial" : ""}`, left),
    progress,
    element("dl", { class: "facts" }, ...Object.entries(figures).map(([name, value]) => element("div", {}, element("dt", {}, name), value))),
  );
  const update = ({ health, vitals, latency_ratio: ratio, loss_margin: margin, excused }) => {
    const rest = health.watching ? inSeconds(health.watching.left) : 0;
    setText(left, health.watching ? `${span(rest)} left` : "not proven, watched on");
    setText(figures["still to be seen"], vitals.lacking.join("; ") || "nothing");
    progress.value = seconds - rest;
    setText(figures.traps, String(vitals.traps));
    setText(figures.deadlines, String(vitals.deadlines));
    setText(figures["wrong numbers"], String(vitals.wrong_numbers));
    setText(figures.quarantined, String(vitals.quarantines));
    const judged = vitals.latencies.filter((latency) => latency.calls >= JUDGED && latency.old_nanos > 0);
    const worst = judged.sort((a, b) => b.new_nanos / b.old_nanos - a.new_nanos / a.old_nanos)[0];
    const limit = ratio === null ? "no limit" : `limit ${ratio} ×`;
    const pardon = worst && excused.find(({ op }) => op === worst.op);
    const line = worst ? `${(worst.new_nanos / worst.old_nanos).toFixed(2)} × (${pardon ? `${limit}; ${pardon.reason}` : limit})` : "too few calls";
    setText(figures.latency, line);
    figures.latency.title = worst ? `${worst.op}, the worst: median of the new generation by that of the old` : "";
    const { losses } = vitals;
    setText(figures.loss, losses ? `${losses.old.toFixed(4)} → ${losses.new === null ? "none" : losses.new.toFixed(4)} (limit +${margin})` : "no probe");
  };
  return { node, update };
}
