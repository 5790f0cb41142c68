// What the history tells of a time: which generation was active when, which were watched, what happened.

import { packName } from "./format.js";

/** Events as the page calls them, with the class of their marks; intents are not shown. */
const EVENTS = {
  started: ["process started", "quiet"],
  stopped: ["process stopped", "quiet"],
  interrupted: ["interrupted", "warn"],
  staged: ["staged", "quiet"],
  discarded: ["discarded", "quiet"],
  refused: ["refused", "warn"],
  activated: ["activated", "accent"],
  on_trial: ["on trial", "trial"],
  trial_ended: ["trial ended", "quiet"],
  healthy: ["found healthy", "good"],
  unproven: ["not proven", "warn"],
  rolled_back: ["rolled back", "warn"],
  cleared: ["cleared", "quiet"],
  reloaded: ["configuration reloaded", "quiet"],
  choice_changed: ["kernel chosen for its speed", "quiet"],
};

/** Name and class of an entry's event; what was taken back by itself is worse than what somebody took back. */
export function eventOf({ event, operator }) {
  return event === "rolled_back" && operator === "" ? ["taken back", "bad"] : EVENTS[event];
}

/** Entries that are shown, newest first. */
export const shown = (history) => history.filter((entry) => entry.event in EVENTS);

/** What an entry is about. */
export function subject({ pack, generation }) {
  return [pack && packName(pack), generation !== null && `generation ${generation}`].filter(Boolean).join(" · ");
}

/** Stretches `{ generation, from, to }` of active generations, oldest first; the last has no end. */
export function reigns(history) {
  const list = [];
  for (const { event, generation, time } of history.toReversed()) {
    if (!["started", "activated", "rolled_back"].includes(event) || generation === null) continue;
    const last = list.at(-1);
    if (event === "rolled_back" && last?.generation === generation) continue;
    if (last) last.to = time;
    list.push({ generation, from: time, to: null });
  }
  return list;
}

/**
 * Health windows `{ generation, from, to, outcome }`, oldest first. The outcome is `healthy`, `unproven`,
 * `bad` where the pack was taken back by itself, `ended`, or `open`, where `to` is the time at which the window will be over.
 */
export function windows(history, health, seconds, now) {
  const open = new Map(health.filter((report) => report.health.watching).map((report) => [report.generation, report.health.watching.left]));
  const entries = history.toReversed();
  const list = [];
  entries.forEach((entry, i) => {
    const { event, generation, time } = entry;
    const left = open.get(generation);
    const opens = event === "activated" || event === "on_trial" || (event === "rolled_back" && left);
    if (!opens) return;
    const end = entries.slice(i + 1).find((later) => closes(later, entry));
    if (left && !end) {
      list.push({ generation, from: time, to: now + 1000 * inSeconds(left), outcome: "open" });
      return;
    }
    const taken = end?.event === "rolled_back" && end.operator === "" && same(end, entry);
    const outcome = ["healthy", "unproven"].includes(end?.event) ? end.event : taken ? "bad" : "ended";
    list.push({ generation, from: time, to: end?.time ?? Math.min(time + 1000 * seconds, now), outcome });
  });
  return list;
}

const same = (a, b) => a.pack !== null && a.pack.digest === b.pack?.digest;

/** Whether an entry ends the window that another opened. */
function closes(later, { pack, generation }) {
  if (later.event === "healthy" || later.event === "unproven") return same(later, { pack }) || later.generation === generation;
  if (later.event === "activated") return later.pack?.name === pack?.name;
  if (later.event === "trial_ended") return later.generation === generation;
  return later.event === "rolled_back" || later.event === "started";
}

/** A duration as the server writes it. */
export const inSeconds = ({ secs, nanos }) => secs + nanos / 1e9;
