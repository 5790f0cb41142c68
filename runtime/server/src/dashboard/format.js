// Numbers as people read them.

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const compact = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });

/** What stands where there is no figure. */
export const NONE = "–";

/** Three digits of a number that is not large. */
function digits(value) {
  return value.toFixed(value < 9.995 ? 2 : value < 99.95 ? 1 : 0);
}

/** A count in full. */
export const exact = (value) => whole.format(value);

/** A count in brief: `1.2M`. */
export const count = (value) => (value < 10_000 ? exact(value) : compact.format(value));

/** Something per second. */
export function rate(value) {
  if (value == null) return NONE;
  if (value === 0) return "0";
  return value < 99.95 ? value.toFixed(1) : count(value);
}

export function bytes(value) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  while (value >= 1000 && unit < units.length - 1) {
    value /= 1024;
    unit += 1;
  }
  return `${unit === 0 ? value : digits(value)} ${units[unit]}`;
}

/** A duration in nanoseconds. */
export function nanoseconds(value) {
  if (value == null) return NONE;
  for (const [unit, size] of [["s", 1e9], ["ms", 1e6], ["µs", 1e3]]) {
    if (value >= 0.9995 * size) return `${digits(value / size)} ${unit}`;
  }
  return `${value.toFixed(0)} ns`;
}

/** A duration in seconds, as it is measured. */
export const seconds = (value) => nanoseconds(value == null ? null : value * 1e9);

/** A duration in seconds, as it is waited for: `4:05`, `3 h 20 min`. */
export function span(value) {
  const total = Math.max(0, Math.round(value));
  if (total >= 172_800) return `${Math.floor(total / 86_400)} days`;
  if (total >= 3600) return `${Math.floor(total / 3600)} h ${Math.floor((total % 3600) / 60)} min`;
  return `${Math.floor(total / 60)}:${String(total % 60).padStart(2, "0")}`;
}

/** A part of a whole. */
export function percent(part, total) {
  if (!total) return NONE;
  const value = (100 * part) / total;
  return `${value > 0 && value < 10 ? value.toFixed(1) : value.toFixed(0)} %`;
}

/** The time of a day, from milliseconds since 1970. */
export const clock = (time) => new Date(time).toLocaleTimeString("en-GB");

export const date = (time) => new Date(time).toLocaleString("en-GB");

/** Enough of a digest to tell it from others. */
export const brief = (digest) => digest.replace(/^sha256:/, "").slice(0, 12);

export const packName = (pack) => `${pack.name} ${pack.version}`;
