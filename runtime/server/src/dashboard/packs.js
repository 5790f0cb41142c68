// Generations and swaps: staging packs, activating and trying them, going back, and letting barred ones in.

import { read } from "./api.js";
import { confirming } from "./confirm.js";
import { byId, element, setClass, setText, sync } from "./dom.js";
import { refresh } from "./figures.js";
import { brief, bytes, packName } from "./format.js";

const API = "admin/v1";

/** Does what was confirmed, says what came of it, and has the figures read anew. */
async function change(method, path, options, said) {
  const answer = await read(method, `${API}/${path}`, options);
  const line = byId("packs-said");
  setText(line, said(answer));
  // What was pressed may go with the next figures.
  line.focus();
  refresh();
}

export function show({ status, admin, history }) {
  const { server } = status;
  for (const panel of document.querySelectorAll(".admin")) panel.hidden = !server.admin;
  byId("no-admin").hidden = server.admin;
  if (!admin) return;
  sync(byId("staged"), admin.staged, (pack) => pack.id, staged);
  byId("staged-none").hidden = admin.staged.length > 0;
  const trial = admin.generations.filter((generation) => generation.state.canary);
  sync(byId("trial"), trial, (generation) => generation.generation, onTrial);
  byId("trial-part").hidden = trial.length === 0;
  const kept = admin.generations.map((generation) => ({ ...generation, first: admin.first }));
  sync(byId("generations"), kept, (generation) => generation.generation, generationRow);
  byId("roll-back").hidden = admin.previous === null;
  const names = new Map(history.filter((entry) => entry.pack).map(({ pack }) => [pack.digest, packName(pack)]));
  const barred = admin.barred.map((pack) => ({ ...pack, name: names.get(pack.digest) ?? "a pack" }));
  sync(byId("barred"), barred, (pack) => pack.digest, barredPack);
  byId("barred-part").hidden = barred.length === 0;
}

const digest = (pack) => element("code", { title: pack.digest }, brief(pack.digest));

function staged(pack) {
  const percent = element("input", { type: "number", min: "0.1", max: "100", step: "any", value: "5", class: "share" });
  const share = element("label", { class: "inline" }, "with", percent, "% of steps");
  const name = packName(pack);
  const path = `packs/${pack.id}`;
  const activate = {
    label: "Activate",
    strong: true,
    question: () => `Run every step on ${name} from the next one on?`,
    act: () => change("POST", `${path}/activate`, { json: {} }, (report) => installed(report, "is active")),
  };
  const attempt = {
    label: "Try",
    beside: share,
    question: () => `Run ${percent.value} % of the steps on ${name}?`,
    act: () => change("POST", `${path}/activate`, { json: { share: Number(percent.value) / 100 } }, (report) => installed(report, "is on trial")),
  };
  const discard = {
    label: "Discard",
    question: () => `Let ${name} go? It can be staged again.`,
    act: () => change("DELETE", path, {}, () => `${name} was discarded.`),
  };
  const skipped = pack.skipped.map(([kernel, reasons]) => element("li", {}, `${kernel}: ${reasons.join("; ")}`));
  const node = element(
    "li",
    {},
    element("p", { class: "what" }, element("strong", {}, name), digest(pack)),
    element("p", { class: "note" }, `${pack.kernels.length} kernels, ${pack.rehearsed} calls rehearsed, ${pack.cache.hits} from the cache`),
    skipped.length > 0 ? element("details", {}, element("summary", {}, `Kernels that are not used here: ${skipped.length}`), element("ul", {}, ...skipped)) : null,
    confirming([activate, attempt, discard]),
  );
  return { node };
}

function installed({ pack, version, replaced, generation }, what) {
  const instead = replaced ? `, in place of ${replaced}` : "";
  return `${pack} ${version} ${what} in generation ${generation}${instead}.`;
}

function onTrial({ generation, state, packs }) {
  const name = packs.length > 0 ? packName(packs[0]) : `Generation ${generation}`;
  const promote = {
    label: "Promote",
    strong: true,
    question: () => `Run every step on generation ${generation}?`,
    act: () => change("POST", "trial/promote", {}, (report) => `Generation ${report.generation} is active.`),
  };
  const end = {
    label: "End trial",
    question: () => `End the trial of ${name}?`,
    act: () => change("DELETE", "trial", {}, (report) => `The trial of generation ${report.generation} has ended.`),
  };
  const node = element(
    "li",
    {},
    element("p", { class: "what" }, element("strong", {}, name), `generation ${generation}, ${percentOf(state.canary.share)} of the steps`),
    confirming([promote, end]),
  );
  return { node };
}

const percentOf = (share) => `${+(100 * share).toFixed(2)} %`;

function generationRow({ generation, packs, restores }) {
  const state = element("span", {});
  const back = confirming([{
    label: "Roll back",
    question: () => `Go back to the packs of generation ${generation}?`,
    act: () => change("POST", "rollback", { json: { to: generation } }, wentBack),
  }]);
  const origin = restores === null ? "" : ` as in generation ${restores}`;
  const names = packs.map((pack) => element("span", { class: "pack" }, packName(pack), digest(pack)));
  const node = element(
    "li",
    { class: "generation" },
    element("span", { class: "at" }, String(generation)),
    element("span", { class: "packs" }, ...(names.length > 0 ? names : ["native twins alone"]), element("small", {}, origin)),
    state,
    back,
  );
  const update = (report) => {
    const [text, kind] = describe(report);
    setText(state, text);
    setClass(state, `state ${kind}`);
    // Those before the first lack packs of the program itself.
    back.hidden = report.state === "active" || Boolean(report.state.canary) || generation < report.first;
  };
  return { node, update };
}

const wentBack = (report) => `Generation ${report.generation} is active, with the packs of generation ${report.restores}.`;

function describe({ state, holders }) {
  if (state === "active") return ["active", "good"];
  if (state.canary) return [`trial, ${percentOf(state.canary.share)}`, "accent"];
  if (state === "draining") return [`draining, held by ${holders}`, ""];
  return ["kept", ""];
}

function barredPack({ digest: barred, reason, name }) {
  const clear = {
    label: "Clear",
    question: () => "Let this pack be staged and activated again?",
    act: () => change("DELETE", `barred/${encodeURIComponent(barred)}`, {}, () => `${name} was cleared.`),
  };
  const node = element(
    "li",
    {},
    element("p", { class: "what" }, element("strong", {}, name), digest({ digest: barred })),
    element("p", { class: "note" }, reason),
    confirming([clear]),
  );
  return { node };
}

/** A file that was chosen or dropped waits to be confirmed. */
function chosen(file) {
  const input = byId("pack-file");
  const stage = {
    label: "Stage",
    strong: true,
    working: `Verifying, compiling, testing ${file.name}. Nothing runs on it yet …`,
    act: async () => {
      await change("POST", "packs", { body: file }, (report) => `${packName(report)} is staged.`);
      byId("pack-chosen").replaceChildren();
      input.value = "";
      input.focus();
    },
  };
  const line = confirming([stage]);
  byId("pack-chosen").replaceChildren(element("p", { class: "what" }, element("strong", {}, file.name), bytes(file.size)), line);
  line.querySelector("button").focus();
}

byId("pack-file").addEventListener("change", ({ target }) => target.files[0] && chosen(target.files[0]));
const zone = byId("pack-zone");
zone.addEventListener("dragover", (event) => event.preventDefault());
zone.addEventListener("drop", (event) => {
  event.preventDefault();
  if (event.dataTransfer.files[0]) chosen(event.dataTransfer.files[0]);
});
byId("roll-back").append(confirming([{
  label: "Roll back",
  question: () => "Go back to the generation before the active one?",
  act: () => change("POST", "rollback", { json: {} }, wentBack),
}]));
