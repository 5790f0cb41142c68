// Small charts: lines over the last minutes, and bars of parts.

import { element, setClass, setText, shape, sync } from "./dom.js";
import { WINDOW } from "./figures.js";

const HEIGHT = 24;

/**
 * A line of values over the last minutes, from nothing at the bottom; `label` says what it shows, and the top is
 * `room` times the largest value.
 */
export function line(label, room = 1.1) {
  const area = shape("path", { class: "area" });
  const stroke = shape("path", { class: "stroke", "vector-effect": "non-scaling-stroke" });
  const attributes = { class: "line", viewBox: `0 0 100 ${HEIGHT}`, preserveAspectRatio: "none", role: "img", "aria-label": label };
  const node = shape("svg", attributes, area, stroke);
  /** `points` as `gains` gives them, from samples `since` then: the line is as wide as a minute at first. */
  const update = (points, since) => {
    const now = performance.now();
    const width = Math.min(WINDOW, Math.max(now - since, 60_000));
    const top = room * Math.max(...points.map((point) => point.value ?? 0)) || 1;
    const place = ({ time, value }) => {
      const x = 100 * (1 - (now - time) / width);
      return `${x.toFixed(2)} ${(HEIGHT - 1 - ((HEIGHT - 2) * value) / top).toFixed(2)}`;
    };
    const runs = [[]];
    for (const point of points) {
      if (point.value !== null) runs.at(-1).push(place(point));
      else if (runs.at(-1).length > 0) runs.push([]);
    }
    const whole = runs.filter((run) => run.length > 0);
    // A dot for a value that stands alone.
    stroke.setAttribute("d", whole.map((run) => `M${run.join("L")}${run.length === 1 ? "h.5" : ""}`).join(""));
    const foot = (point) => `${point.split(" ")[0]} ${HEIGHT}`;
    area.setAttribute("d", whole.map((run) => `M${foot(run[0])}L${run.join("L")}L${foot(run.at(-1))}Z`).join(""));
  };
  return { node, update };
}

/** Parts of a whole beside each other, with a legend; each part is `{ name, value, kind }`. */
export function parts(bar, legend, list, total, write) {
  const shown = list.filter((part) => part.value > 0);
  sync(bar, shown, (part) => part.name, ({ kind }) => {
    const node = element("span", { class: `part ${kind}` });
    const update = (part) => {
      node.style.width = `${(100 * part.value) / Math.max(total, 1)}%`;
      node.title = `${part.name}: ${write(part.value)}`;
    };
    return { node, update };
  });
  sync(legend, list, (part) => part.name, ({ name, kind }) => {
    const value = element("dd");
    const term = element("dt", {}, element("span", { class: `swatch ${kind}` }), name);
    const node = element("div", {}, term, value);
    const update = (part) => {
      setText(value, write(part.value));
      setClass(node, part.value > 0 ? "" : "nothing");
    };
    return { node, update };
  });
}
