// The dashboard in a headless browser: `dashboard.mjs URL API_KEY [PACK.rkp NAME]`. With a pack, the address has
// the admin API, and the pack is staged, tried, activated and rolled back. Fails where the page does not do as it
// should, reports an error, or asks another server for anything.
import assert from "node:assert/strict";
import { existsSync } from "node:fs";
import { createRequire } from "node:module";
import { delimiter, join } from "node:path";
import { fileURLToPath } from "node:url";

// Found through NODE_PATH, which imports do not look at.
const puppeteer = createRequire(import.meta.url)("puppeteer-core");
const [url, key, pack, packName] = process.argv.slice(2);
const executablePath = process.env.PATH.split(delimiter).map((directory) => join(directory, "chromium")).find(existsSync);
const TIMEOUT = 120_000;

const problems = [];

async function open(browser) {
  const page = await browser.newPage();
  page.setDefaultTimeout(TIMEOUT);
  page.on("pageerror", (error) => problems.push(String(error.stack)));
  page.on("console", (message) => {
    // The browser's own line about an answer that the page expects.
    const expected = /^Failed to load resource: .* status of 4(00|01|22) /.test(message.text());
    if (message.type() === "error" && !expected) problems.push(message.text());
  });
  page.on("request", (request) => {
    const { protocol, origin } = new URL(request.url());
    if (protocol !== "data:" && origin !== new URL(url).origin) problems.push(`asked ${request.url()}`);
  });
  const response = await page.goto(url);
  assert.equal(response.status(), 200);
  return page;
}

/** Waits until the text of an element is as it should be, and gives it. */
async function text(page, selector, pattern) {
  const { source, flags } = pattern;
  const fits = (selector, source, flags) => {
    const text = document.querySelector(selector)?.innerText ?? "";
    return new RegExp(source, flags).test(text) && text;
  };
  try {
    return await (await page.waitForFunction(fits, {}, selector, source, flags)).jsonValue();
  } catch (error) {
    const found = await page.evaluate((selector) => document.querySelector(selector)?.innerText, selector);
    throw new Error(`${selector} is not ${pattern}: ${found}`, { cause: error });
  }
}

/** Presses the button of that name in a part of the page, and the one that it asks to confirm with. */
async function confirm(page, part, name) {
  await page.locator(`${part} button::-p-text(${name})`).click();
  await page.waitForSelector(`${part} .confirm`);
  assert.equal(await page.evaluate(() => document.activeElement.innerText), name, "the confirmation has the focus");
  await page.keyboard.press("Escape");
  await page.waitForSelector(`${part} .confirm`, { hidden: true });
  await page.locator(`${part} button::-p-text(${name})`).click();
  await page.locator(`${part} .confirm button::-p-text(${name})`).click();
}

async function asksForTheKey(page) {
  const dialog = "#key-dialog[open]";
  await text(page, `${dialog} #key-title`, pack ? /^Admin key$/ : /^API key$/);
  await text(page, `${dialog} #key-message`, pack ? /for administrators.* --admin-key/ : /asks for an API key/);
  await page.type("#key-input", "sk-wrong");
  await page.keyboard.press("Enter");
  await text(page, `${dialog} #key-message`, pack ? /none of the server's admin keys/ : /does not know this key/);
  await page.type("#key-input", key);
  await page.keyboard.press("Enter");
  await text(page, "#connection", /^live$/);
  const kept = await page.evaluate(() => [Object.values(sessionStorage), localStorage.length, document.cookie]);
  assert.deepEqual(kept, [[key], 0, ""]);
}

async function chats(page) {
  const markup = "<img src=x onerror=alert(1)> Once upon a time";
  // What is hidden takes no text.
  await page.click(".settings summary");
  await page.type("#chat-tokens", "40");
  // The same answer each time, of all these tokens.
  await page.type("#chat-temperature", "0");
  await page.type("#chat-input", markup);
  await page.keyboard.press("Enter");
  await page.waitForSelector("#messages[aria-busy=false]");
  // Every piece that arrives is appended; the first node was there before.
  const { pieces, shown } = await page.$eval(".assistant", (node) => ({
    pieces: node.querySelector(".text").childNodes.length - 1,
    shown: node.innerText,
  }));
  assert.ok(pieces > 20 && pieces <= 40, `the answer came in ${pieces} pieces: ${shown}\n${problems.join("\n")}`);
  await text(page, ".assistant .meta", /^\d+ tokens · [\d.]+ tokens\/s · first after [\d.]+ m?s$/);
  assert.equal(await page.$eval(".user .text", (node) => node.textContent), markup);
  assert.equal(await page.$("#messages img"), null);

  // Stops with the first piece. The whole answer takes a moment only, and may all be there with it.
  for (let left = 20; ; left--) {
    await page.click("#chat-clear");
    await page.evaluate(() => {
      for (const id of ["chat-tokens", "chat-temperature"]) document.getElementById(id).value = "";
    });
    await page.type("#chat-input", "Once upon a time there was a fox");
    await page.evaluate(() => {
      const observer = new MutationObserver(() => {
        if (!document.querySelector(".assistant .text")?.textContent) return;
        observer.disconnect();
        document.getElementById("chat-stop").click();
      });
      observer.observe(document.getElementById("messages"), { childList: true, subtree: true });
    });
    await page.keyboard.press("Enter");
    // Its figures are shown while it comes, too.
    await page.waitForSelector(".assistant");
    await page.waitForSelector("#messages[aria-busy=false]");
    const ended = await text(page, ".assistant .meta", /./);
    if (ended.endsWith("stopped")) break;
    assert.ok(left > 0, `no answer was stopped: ${ended}`);
  }
  await text(page, "#running", /^0$/);
}

async function showsFigures(page) {
  await text(page, "#kernel-rows", /rmsnorm/);
  // As the other listener calls it.
  await text(page, "#kernel-rows", /selected/);
  // Variants that are not chosen are nothing that failed.
  assert.doesNotMatch(await page.$eval("main", (node) => node.innerText), /cannot run/);
  await text(page, "#memory-legend", /KV in f16/);
  await text(page, "#kv-migrations", /^\d/);
  // Whether a screen reader can tell what each control is.
  const nameless = [];
  const visit = (node) => {
    if (["button", "textbox", "spinbutton", "checkbox", "radio"].includes(node.role) && !node.name) nameless.push(node);
    node.children?.forEach(visit);
  };
  visit(await page.accessibility.snapshot());
  assert.deepEqual(nameless, []);
  for (const width of [360, 700, 1100, 1600]) {
    await page.setViewport({ width, height: 900 });
    const overflow = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
    assert.ok(overflow <= 0, `${overflow} pixels too wide for ${width}`);
  }
  // Where columns are beyond the edge, the page says so.
  for (const [width, hinted] of [[390, true], [1600, false]]) {
    await page.setViewport({ width, height: 900 });
    await page.waitForSelector("#kernels-more", hinted ? { visible: true } : { hidden: true });
    const beyond = await page.$eval("#kernel-scroll", (node) => node.scrollWidth > node.clientWidth);
    assert.equal(beyond, hinted, `at ${width} pixels`);
  }
}

async function rests(page, browser) {
  const asked = [];
  const note = (request) => asked.push(request.url());
  const other = await browser.newPage();
  await other.bringToFront();
  await page.waitForFunction(() => document.hidden);
  // What is on its way may arrive.
  await new Promise((resolve) => setTimeout(resolve, 1000));
  page.on("request", note);
  await new Promise((resolve) => setTimeout(resolve, 5000));
  assert.deepEqual(asked, [], "nothing is asked for while nobody looks");
  await page.bringToFront();
  await page.waitForResponse((response) => response.url().endsWith("/status"));
  page.off("request", note);
  await other.close();
}

async function swaps(page) {
  const upload = async (file) => {
    const input = await page.$("#pack-file");
    await input.uploadFile(file);
    // It changes nothing that serves, so nobody is asked.
    await page.locator("#pack-zone button::-p-text(Stage)").click();
  };
  // Nothing was ever activated.
  await page.waitForSelector("#roll-back", { hidden: true });
  assert.equal(await page.$$eval("#generations button", (list) => list.filter((button) => button.checkVisibility()).length), 0);

  await upload(fileURLToPath(import.meta.url));
  await text(page, "#pack-zone .error", /archive/);

  const named = new RegExp(packName);
  await upload(pack);
  await text(page, "#staged", named);
  await confirm(page, "#staged", "Try");
  await text(page, "#trial", named);
  await text(page, "#watch", /\d+\.\d\d × \(limit|no limit\)|too few calls/);
  await text(page, "#kernel-rows", /on trial/);
  await confirm(page, "#trial", "End trial");
  await page.waitForSelector("#trial-part", { hidden: true });

  await upload(pack);
  await confirm(page, "#staged", "Activate");
  await text(page, "#generations li:first-child", new RegExp(`${packName}[^]*active`));
  await text(page, "#packs-said", /is active in generation/);
  await text(page, "#kernel-rows", named);
  await text(page, "#watch", /left[^]*traps/);
  await page.waitForSelector("#roll-back", { visible: true });
  await confirm(page, "#roll-back", "Roll back");
  await text(page, "#packs-said", /is active, with the packs of generation/);
  await page.waitForFunction((name) => !document.getElementById("kernel-rows").innerText.includes(name), {}, packName);
  await page.click("#kernels-all");
  await text(page, "#kernel-rows", new RegExp(`${packName}[^]*retired`));
  await text(page, "#history", /rolled back[^]*activated[^]*trial ended[^]*on trial[^]*staged/);
  const marks = await page.$$eval("#timeline-chart .mark title", (titles) => titles.map((title) => title.textContent));
  assert.ok(marks.some((mark) => mark.includes("activated") && mark.includes(packName)), marks.join("\n"));
  // A latency stands with its limit, or with the word that there is none.
  const latency = (limit) => page.evaluate(async (latency_ratio) => {
    const { showWatch } = await import("/dashboard/timeline.js");
    const latencies = [{ op: "rmsnorm", calls: 600, old_nanos: 100, new_nanos: 264 }];
    const vitals = { traps: 0, deadlines: 0, wrong_numbers: 0, quarantines: 0, lacking: [], latencies, losses: null };
    const report = { generation: 99, canary: true, packs: [], health: "unproven", vitals, latency_ratio, loss_margin: 0.1, excused: [] };
    showWatch({ admin: { health: [report], window_seconds: 300 }, history: [] });
    return document.getElementById("watch").textContent;
  }, limit);
  assert.match(await latency(1.5), /2\.64 × \(limit 1\.5 ×\)/);
  assert.match(await latency(null), /2\.64 × \(no limit\)/);
}

/** A page that is not held to its policy would pass all of the above. */
async function isHeldToItsPolicy(page) {
  const before = problems.length;
  await page.evaluate(() => document.body.append(Object.assign(document.createElement("script"), { textContent: "0" })));
  await new Promise((resolve) => setTimeout(resolve, 200));
  assert.match(problems.splice(before).join(), /Content Security Policy/);
}

const args = process.getuid() === 0 ? ["--no-sandbox"] : [];
const browser = await puppeteer.launch({ executablePath, args, timeout: TIMEOUT });
try {
  const page = await open(browser);
  await asksForTheKey(page);
  await chats(page);
  await showsFigures(page);
  await rests(page, browser);
  if (pack) await swaps(page);
  else await text(page, "#no-admin", /--admin-listen/);
  assert.deepEqual(problems, []);
  await isHeldToItsPolicy(page);
} finally {
  await browser.close();
}
