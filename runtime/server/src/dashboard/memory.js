// Memory against its budget: keys and values by tier, who else holds some, and what became of blocks.

import { parts } from "./charts.js";
import { byId, setText } from "./dom.js";
import { bytes, count, exact, percent } from "./format.js";

/** Codecs that are listed even where nothing is kept in them. */
const USUAL = ["f16", "q8_0", "q4_0"];

/** The more bits, the stronger. */
const shade = (codec) => (codec.startsWith("f") ? "tier-0" : codec.startsWith("q8") ? "tier-1" : "tier-2");

export function show({ status }) {
  const { pool, kv } = status.memory;
  const tiers = Object.entries(kv.bytes)
    .filter(([codec, value]) => value > 0 || USUAL.includes(codec))
    .map(([codec, value]) => ({ name: `KV in ${codec}`, value, kind: shade(codec) }));
  const laid = tiers.reduce((sum, tier) => sum + tier.value, 0);
  const rest = { name: "Unused in KV pages", value: Math.max(0, pool.kv_pages - laid), kind: "rest" };
  const free = { name: "Free", value: Math.max(0, pool.budget - pool.used), kind: "free" };
  const list = [...tiers, rest, ...holders(pool.holders), free];
  parts(byId("memory-bar"), byId("memory-legend"), list, pool.budget, bytes);
  setText(byId("memory-total"), `${bytes(pool.used)} of ${bytes(pool.budget)}`);

  const own = Math.max(0, kv.blocks - kv.shared_blocks - kv.cached_blocks);
  const blocks = [
    { name: "Of one sequence", value: own, kind: "tier-0" },
    { name: "Shared", value: kv.shared_blocks, kind: "tier-1" },
    { name: "Kept for later", value: kv.cached_blocks, kind: "tier-2" },
    { name: "Free", value: kv.free_blocks, kind: "free" },
  ];
  parts(byId("blocks-bar"), byId("blocks-legend"), blocks, kv.blocks + kv.free_blocks, count);
  setText(byId("blocks-total"), `${count(kv.blocks)} in memory, ${count(kv.spilled_blocks)} on disk, of ${kv.block_tokens} tokens`);

  const asked = kv.prefix_hit_tokens + kv.prefix_miss_tokens;
  const facts = {
    hits: percent(kv.prefix_hit_tokens, asked),
    migrations: count(kv.migrations),
    spills: count(kv.spills),
    restores: count(kv.restores),
    evictions: count(kv.evictions),
    recomputed: count(kv.recomputed_tokens),
    copies: count(kv.copies),
  };
  for (const [name, text] of Object.entries(facts)) setText(byId(`kv-${name}`), text);
  byId("kv-hits").title = `${exact(kv.prefix_hit_tokens)} of ${exact(asked)} tokens of prompts`;
  byId("kv-migrations").title = `${exact(kv.migrations_ahead)} of them ahead of time`;
  byId("kv-spills").title = `${exact(kv.spill_failures)} failed`;
}

/** Reservations, those of one owner and use together. */
function holders(list) {
  const sums = new Map();
  for (const { kind, owner, bytes } of list) {
    const name = `${kind === "adapter" ? "Adapter" : kind === "router" ? "Router" : kind === "scratch" ? "Working memory" : kind === "kernels" ? "Instances" : kind}, ${owner}`;
    sums.set(name, { name, value: (sums.get(name)?.value ?? 0) + bytes, kind: kind === "adapter" ? "adapter" : "other" });
  }
  return [...sums.values()];
}
