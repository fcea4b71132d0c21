// The playground: a form that is a scenario, a file, or a log; the simulator's answer beside it.
"use strict";

const byId = (id) => document.getElementById(id);
let choices = null;
let openings = [];
let shipped = [];
let logs = []; // of the documentation
let kept = {}; // runs of the openings, played when the site was built
let simulator = null;
let player = null;
let last = null; // the run that is shown
let report = null; // the log's report that is shown
let form = null;

/** An element; texts go in as texts. */
function h(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === false || value === undefined) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat(9).filter((each) => each !== null && each !== undefined && each !== false));
  return element;
}

function trouble(text) {
  byId("trouble").hidden = !text;
  byId("trouble").textContent = text || "";
}

// --- the form is a scenario

const release = () => choices.engines[form.engine].releases.find((each) => each.name === form.release) || choices.engines[form.engine].releases[0];
const rules = () => [form.release, ...form.patches].join("+");
const profile = () => `${form.engine}@${rules()}`;

/** What an opening expects holds as long as nothing but the release was changed. */
const asked = () => JSON.stringify([form.name, form.engine, form.model, form.seed, form.window, form.flags, form.spans, form.steps, form.toml]);
let pristine = null;
let expected = [];
let origin = null; // the shipped scenario that was opened

const flagsOf = (values) => Object.entries(values).map(([key, value]) => `${key} = ${JSON.stringify(value)}`).join("\n");

/** The lines of the flags' field as values. */
function options() {
  const found = {};
  for (const line of form.flags.split("\n").map((each) => each.trim()).filter(Boolean)) {
    const at = line.indexOf("=");
    const [key, value] = at < 0 ? [line, ""] : [line.slice(0, at).trim(), line.slice(at + 1).trim()];
    try {
      found[key] = JSON.parse(value);
    } catch {
      found[key] = value;
    }
  }
  return found;
}

function scenario() {
  const steps = form.steps.map((each) => {
    const step = { name: each.name, prompt: each.prompt };
    for (const key of ["predict", "slot"]) if (each[key] !== undefined && each[key] !== null) step[key] = each[key];
    return step;
  });
  return {
    format: 1,
    name: form.name || "playground",
    model: { preset: form.model, seed: form.seed ?? 0, ...(form.window ? { window: form.window } : {}) },
    engine: { name: form.engine, profiles: [rules()], options: options() },
    spans: Object.fromEntries(form.spans.map((each) => [each.name, each.length])),
    step: steps,
    ...(asked() === pristine ? { expect: expected.filter((each) => each.profile === undefined || each.profile === rules()) } : {}),
  };
}

function fill(select, values, chosen) {
  select.replaceChildren(...values.map(([value, text, title]) => h("option", { value, title: title || null, selected: value === chosen }, text)));
}

function show() {
  const engine = choices.engines[form.engine];
  const isFile = form.toml !== null;
  const { log } = form;
  const shown = { form: !isFile && !log, file: isFile, log, server: !isFile, run: !log };
  for (const [kind, visible] of Object.entries(shown)) for (const each of document.querySelectorAll(`.of-${kind}`)) each.hidden = !visible;
  byId("server").hidden = Boolean(log) && !(log.server && log.server.played);
  fill(byId("engine"), Object.keys(choices.engines).map((name) => [name, name]), form.engine);
  byId("engine").disabled = isFile || Boolean(log);
  if (!engine.releases.some((each) => each.name === form.release)) form.release = engine.releases[0].name;
  fill(byId("release"), engine.releases.map((each) => [each.name, each.name, each.about]), form.release);
  form.patches = form.patches.filter((each) => release().patches.includes(each));
  byId("patches").replaceChildren(...release().patches.map((name) => h("label", { title: engine.patches[name] }, h("input", { type: "checkbox", value: name, checked: form.patches.includes(name), onchange: (event) => { form.patches = form.patches.filter((each) => each !== name).concat(event.target.checked ? [name] : []); play(); } }), ` ${name}`)));
  byId("arithmetic").value = form.arithmetic;
  if (isFile) {
    byId("toml").value = form.toml;
    byId("about").textContent = form.about || "";
    return;
  }
  fill(byId("model"), Object.entries(choices.models).map(([name, about]) => [name, `${name}: ${about}`]), form.model);
  byId("window").value = form.window ?? "";
  byId("flags").value = form.flags;
  byId("flags").rows = Math.max(2, Math.min(10, form.flags.split("\n").length));
  fill(byId("flag"), [["", "add a flag"], ...Object.entries(engine.flags).map(([name, about]) => [name, name, about])], "");
  byId("spans").replaceChildren(...form.spans.map(spanView));
  byId("steps").replaceChildren(...form.steps.map(stepView));
}

const SLIDER = 200; // the least end of a slider

function spanView(each) {
  const remove = h("button", { type: "button", "aria-label": `remove ${each.name}`, onclick: () => { form.spans = form.spans.filter((one) => one !== each); show(); play(); } }, "×");
  if (typeof each.length === "string") {
    const words = h("input", { type: "text", class: "words", maxlength: MOST.text, value: each.length, "aria-label": `words of ${each.name}`, onchange: () => { each.length = words.value; play(); } });
    return h("div", { class: "span field", "data-field": `span ${each.name}` }, h("b", {}, each.name), words, remove);
  }
  const end = () => Math.min(MOST.length, Math.max(SLIDER, 2 * each.length));
  const count = h("input", { type: "number", min: "1", max: MOST.length, value: each.length, "aria-label": `length of ${each.name}` });
  const slider = h("input", { type: "range", min: "1", max: end(), value: each.length, "aria-label": `length of ${each.name}, to drag` });
  const set = (value) => { each.length = Math.max(1, Math.min(MOST.length, Math.round(Number(value)) || 1)); count.value = each.length; if (Number(slider.max) < each.length) slider.max = end(); slider.value = each.length; play(); };
  slider.addEventListener("input", () => set(slider.value));
  count.addEventListener("change", () => { slider.max = Math.min(MOST.length, Math.max(SLIDER, 2 * Number(count.value) || 1)); set(count.value); });
  return h("div", { class: "span field", "data-field": `span ${each.name}` }, h("b", {}, each.name), slider, count, remove);
}

function stepView(each, index) {
  const whole = (text) => (text.trim() === "" ? null : Math.max(0, Math.min(MOST.predict, Math.round(Number(text)) || 0)));
  const input = (key, type, label) => h("input", { type, value: each[key] ?? "", min: type === "number" ? "0" : null, max: type === "number" ? MOST.predict : null, "aria-label": `${label} of request ${index + 1}`, "data-key": key, onchange: (event) => { each[key] = type === "number" ? whole(event.target.value) : event.target.value; play(); } });
  return h("div", { class: "step field", "data-field": `step ${index}` }, input("name", "text", "name"), input("prompt", "text", "prompt"), input("predict", "number", "tokens to predict"), h("button", { type: "button", "aria-label": `remove request ${index + 1}`, onclick: () => { form.steps = form.steps.filter((one) => one !== each); show(); play(); } }, "×"));
}

// --- problems stand beside their field, in its own words

const KEYS = { prompt: "prompt", predict: "tokens to predict", name: "name", slot: "slot" };

/** The field of a problem, and the problem in the form's words. */
function placed(problem) {
  const step = /^step\[(\d+)\](?:\.(\w+))?[^:]*: (.*)$/s.exec(problem);
  const words = (text) => text.replace(/\bspans\b/g, "texts").replace(/\ba span\b/g, "a text").replace(/\bspan\b/g, "text").replace(/\bsteps\b/g, "requests").replace(/\bstep\b/g, "request");
  if (step) {
    const named = (form.steps && form.steps[step[1]] && form.steps[step[1]].name) || Number(step[1]) + 1;
    const known = /there is no span/.test(step[3]) ? `. Texts: ${form.spans.map((each) => each.name).join(", ")}` : "";
    return { field: `step ${step[1]}`, key: step[2], text: `Request ${named}${step[2] ? `, ${KEYS[step[2]] || step[2]}` : ""}: ${words(step[3])}${known}` };
  }
  const span = /^spans\.([\w-]+)[^:]*: (.*)$/s.exec(problem);
  if (span) return { field: `span ${span[1]}`, text: `Text ${span[1]}: ${words(span[2])}` };
  const flag = /^engine\.options(?:\.([\w-]+))?[^:]*: (.*)$/s.exec(problem);
  if (flag) return { field: "flags", text: `${flag[1] ? `Flag ${flag[1]}` : "Flags"}: ${flag[2]}` };
  return { field: null, text: words(problem) };
}

function clearProblems() {
  for (const each of document.querySelectorAll(".problem")) each.remove();
  for (const each of document.querySelectorAll("[aria-invalid]")) { each.removeAttribute("aria-invalid"); each.removeAttribute("aria-describedby"); }
}

function showProblems(problems) {
  clearProblems();
  const unplaced = [];
  const where = form.log ? (text) => ({ field: /\boption '/.test(text) ? "flags" : null, text }) : form.toml !== null ? (text) => ({ field: "file", text }) : placed;
  problems.map(where).forEach(({ field, key, text }, i) => {
    const row = field && [...document.querySelectorAll(".field")].find((each) => each.dataset.field === field);
    if (!row) { unplaced.push(text); return; }
    const input = row.querySelector(`[data-key="${key}"]`) || row.querySelector('textarea, input[type="number"], input');
    input.setAttribute("aria-invalid", "true");
    input.setAttribute("aria-describedby", `problem-${i}`);
    row.append(h("p", { class: "problem", id: `problem-${i}`, role: "alert" }, text));
  });
  trouble(unplaced.join("\n"));
  const first = document.querySelector(".problem");
  if (first) first.scrollIntoView({ block: "nearest" });
  return first ? first.textContent : unplaced[0];
}

// --- playing

/** Nothing is shown that is not of the form as it stands. */
function clear() {
  last = null;
  report = null;
  byId("cause").textContent = "";
  byId("kept").hidden = true;
  byId("story").replaceChildren();
  byId("steps-out").replaceChildren();
  byId("log").hidden = true;
  byId("log").replaceChildren();
  player.begin([], 0);
  for (const id of ["share", "take", "json"]) byId(id).disabled = true;
  byId("page").hidden = true;
}

function verdict(text, tone = "") {
  byId("verdict").className = tone;
  byId("verdict").textContent = text;
  byId("peek").hidden = !text;
  byId("peek").className = tone;
  byId("peek").textContent = `${text.length > 90 ? `${text.slice(0, 88)}…` : text} ↑`;
}

let cancelled = false;
function stopped(text, again) {
  cancelled = true;
  verdict(`Cancelled. ${text}`);
  byId("verdict").append(" ", h("button", { type: "button", onclick: play }, again));
}

let waiting = 0;
function play() {
  cancelled = false;
  window.clearTimeout(waiting);
  waiting = window.setTimeout(run, 60);
}

async function run() {
  if (!simulator || !simulator.files) return;
  if (form.log) { await readLog(); return; }
  const [now, log] = [form, report];
  byId("verdict").setAttribute("aria-busy", "true");
  const source = form.toml === null ? { scenario: scenario() } : { text: form.toml };
  const result = await simulator.ask({ do: "run", ...source, profile: profile(), arithmetic: form.arithmetic });
  if (result === null || now !== form || log !== report) return; // something else was opened
  byId("verdict").removeAttribute("aria-busy");
  trouble("");
  if (result.cancelled) {
    clear();
    stopped("The simulator starts again; change something, or run it again.", "Run it again");
    return;
  }
  if (result.problems) {
    clear();
    verdict(`Not run. ${showProblems(result.problems)}`, "wrong");
    return;
  }
  clearProblems();
  told(result, (step) => simulator.ask({ do: "step", step }));
}

const TONE = { wrong: "wrong", right: "right" };
const SIGN = { wrong: "✗", right: "✓", lost: "–", "by-design": "≈" };
const ANSWERS = { same: "matches", diverged: "WRONG", "by-design": "by design" };

function told(result, moments) {
  byId("kept").hidden = true;
  if (last && last.json === result.json) { // the run that is shown: a reader may be watching it
    last = result;
    player.load = moments;
    return;
  }
  const here = byId("which").value;
  const chosen = last && last.steps.length === result.steps.length && here !== "" ? Number(here) : result.worst;
  last = result;
  report = null;
  byId("log").hidden = true;
  for (const id of ["share", "take", "json"]) byId(id).disabled = false;
  verdict(`${SIGN[result.fate] || "!"} ${result.verdict}`, TONE[result.fate] || "lost");
  byId("cause").textContent = result.cause;
  const all = h("button", { type: "button", onclick: () => byId("story").replaceChildren(drawing(result.whole)) }, "Show all rows of memory");
  byId("story").replaceChildren(drawing(result.story), ...(result.whole ? [all] : []));
  byId("steps-out").replaceChildren(h("h2", {}, "Request by request"), ...result.steps.map((step) =>
    h("details", { open: step.fate === result.fate && step.fate !== "right" },
      h("summary", {}, `${step.name}: ${step.prompt ?? "-"} tokens, ${step.error || `${step.cached} cached`}${step.answer ? `, answer ${ANSWERS[step.answer] || step.answer}` : ""}${step.lost ? `, ${step.lost} lost` : ""}`),
      h("dl", {}, step.facts.map(([word, sentence]) => [h("dt", {}, word), h("dd", {}, sentence)])),
      step.chain.length > 0 && h("ol", {}, step.chain.map(([word, name, sentence]) => h("li", {}, h("b", {}, word), ` request ${name}: ${sentence}`))))));
  return player.load === moments ? null : (player.load = moments, player.begin(result.steps.map((each) => each.name), chosen));
}

async function load(manifest) {
  const own = "\nOn your own machine: cachesim run llama.cpp-two-codes";
  const refuse = (text) => { byId("loading").hidden = true; trouble(text); };
  if (!manifest.files) { refuse(`The simulator is not in this build of the site: ${manifest.why}${own}`); return; }
  if (typeof WebAssembly !== "object" || typeof Worker !== "function" || typeof DecompressionStream !== "function") {
    refuse(`This browser has no WebAssembly, no workers or no decompression, and the simulator needs all three. Any recent browser has them.${own}`);
    return;
  }
  simulator = new Simulator({
    progress: (share, what) => { byId("loading").hidden = false; byId("progress").value = share; byId("state").textContent = share < 1 ? `${what}: ${Math.round(100 * share)} %` : what; },
    ready: () => { byId("loading").hidden = true; if (form && !report && !cancelled) play(); },
    trouble: (text) => trouble(`The simulator stopped: ${text}`),
    busy: (seconds) => { byId("busy").hidden = seconds === null; byId("elapsed").textContent = seconds === null ? "" : `Running, ${seconds} s`; },
  });
  try {
    await simulator.load(manifest);
  } catch (error) {
    refuse(`The simulator could not be loaded: ${error.message}${own}`);
  }
}

// --- openings, files, logs, links

async function open(value, { expects = null, title = "", about = "", name = null } = {}) {
  form = { about, ...wellFormed(structuredClone(value)) };
  document.documentElement.style.overflowAnchor = "";
  origin = name;
  expected = expects || [];
  pristine = expects ? asked() : null;
  for (const button of byId("openings").children) button.setAttribute("aria-pressed", String(button.textContent === title));
  clearProblems();
  trouble("");
  clear();
  show();
  verdict(simulator && simulator.ready ? "Running" : "The run appears here once the simulator has loaded.");
  if (kept[title] && !(simulator && simulator.ready)) {
    told(kept[title].result, (step) => Promise.resolve(kept[title].steps[step]));
    byId("kept").hidden = false;
    byId("kept").textContent = "This is the run of this scenario when the site was built. It runs again here as soon as the simulator has loaded.";
  }
  play();
}

/** A scenario file: as a form where the form has a place for all of it, else as its text. */
async function openText(text, { name = null, wanted = null, arithmetic = "float" } = {}) {
  const found = await simulator.ask({ do: "open", text });
  if (found.cancelled) return;
  if (found.problems) {
    await open({ ...form, toml: text.slice(0, MOST.file), patches: [] });
    return;
  }
  const [engine, rest] = (wanted || found.profile).split("@");
  const [chosen, ...patches] = rest.split("+");
  const common = { name: found.name, engine, release: chosen, patches, arithmetic };
  const source = found.form && found.form.steps.length <= MOST.steps && found.form.spans.every((each) => (typeof each.length === "string" ? each.length.length <= MOST.text : each.length <= MOST.length)) && found.form.steps.every((each) => (each.predict ?? 0) <= MOST.predict) ? found.form : { toml: text };
  await open({ ...common, ...source }, { expects: found.expect, about: found.about, name });
}

async function openShipped(name, wanted = null) {
  const known = shipped.find((each) => each.name === name || each.former === name);
  if (!known) throw new LinkError(`there is no shipped scenario “${name.slice(0, 80)}”`);
  const reply = await file(`scenarios/${known.name}.toml`);
  await openText(await reply.text(), { name: known.name, wanted });
}

const LOG = 60000000; // bytes of a log that are read here
const NARROW = window.matchMedia("(max-width: 900px)"); // the report stands above the form

async function openFile(file) {
  byId("open").open = false;
  if (file.size > LOG) { trouble(`${file.name} has ${Math.round(file.size / 1e6)} MB; this page reads up to ${LOG / 1e6}. On your own machine: cachesim why ${file.name}`); return; }
  const data = await file.arrayBuffer();
  const head = new TextDecoder().decode(data.slice(0, MOST.file));
  if (/^\s*(\[\[step\]\]|format\s*=\s*1)/m.test(head) || /^\s*\{[\s\S]*"format"\s*:\s*1[\s\S]*"step"/.test(head)) await openText(head);
  else await openLog(file.name, data);
}

async function openExample(name) {
  const known = logs.find((each) => each.name === name);
  if (!known) throw new LinkError(`there is no example log “${name.slice(0, 80)}”`);
  await openLog(name, await (await file(`logs/${name}`)).arrayBuffer(), known.title);
}

/** The form of a log: the server that was read out of it, whose fields may be corrected. */
async function openLog(name, data, title = "") {
  form = { about: "", ...wellFormed({}), log: { name, data, server: null } };
  for (const button of byId("openings").children) button.setAttribute("aria-pressed", String(button.textContent === title));
  showServer();
  await readLog();
}

/** What the reader changed of the server that the log tells of, and the command that says the same. */
function corrected() {
  const { name, server } = form.log;
  const given = {};
  if (!server || !server.played) return { given, command: "" };
  if (rules() !== [server.release, ...server.patches].join("+")) given.profile = rules();
  if (form.model !== server.model) given.model = form.model;
  if (form.window !== server.window) given.window = form.window ?? 0;
  const set = Object.entries(options()).filter(([key, value]) => JSON.stringify(value) !== JSON.stringify(server.options[key]));
  if (set.length) given.options = Object.fromEntries(set);
  const quoted = (text) => (/^[\w@+.,=:/-]+$/.test(text) ? text : `'${String(text).replaceAll("'", "'\\''")}'`);
  const flags = Object.entries({ profile: given.profile, model: given.model, window: given.window }).filter(([, value]) => value !== undefined).flatMap(([key, value]) => [`--${key}`, String(value)]);
  for (const [key, value] of set) flags.push("--set", `${key}=${typeof value === "string" ? value : JSON.stringify(value)}`);
  return { given, command: ["cachesim why", ...[name, ...flags].map(quoted)].join(" ") };
}

const WAYS = { printed: "Printed in the log", computed: "Computed from its lines", bounded: "Inferred from its lines", assumed: "Assumed", given: "Set here" };

/** The fields of a log's server; `told` is what the last reading used. */
function showServer(told = null) {
  const { name, server } = form.log;
  show();
  byId("read").textContent = server ? `${server.servers > 1 ? `The first of ${server.servers} servers in` : "The server of"} ${name}: ${server.requests} requests.${server.played ? " Correct anything below that the log got wrong or left out: the report updates." : ` Requests to ${server.engine} are not replayed: the report has the numbers that its lines print.`}` : `Reading ${name}`;
  byId("how").textContent = told && told.played ? Object.entries(told.how).map(([way, names]) => `${WAYS[way] || way}: ${names.join(", ")}.`).join(" ") : "";
  byId("same").textContent = told && told.played ? `On your own machine: ${corrected().command}` : "";
  byId("as-scenario").hidden = !(told && told.toml);
}

async function readLog() {
  if (!simulator) return; // the page says why
  const { log } = form;
  const { given } = corrected();
  clear();
  clearProblems();
  trouble("");
  verdict(simulator && simulator.ready ? `Reading ${log.name}` : `${log.name} is read once the simulator has loaded.`);
  const mine = { json: "", name: log.name };
  document.documentElement.style.overflowAnchor = "none"; // a report that grows above the form would push it away
  report = mine;
  const found = await simulator.ask({ do: "log" }, { name: log.name, data: log.data, given: JSON.stringify(given) });
  if (found === null || form.log !== log || report !== mine) return; // something else was opened, or set
  if (found.cancelled || found.problems) {
    report = null;
    if (found.cancelled) stopped("The simulator starts again; change something, or explain it again.", "Explain it again");
    else verdict(`Not read. ${showProblems(found.problems)}`, "wrong");
    if (!log.server) byId("read").textContent = `${log.name} was not read.`;
    return;
  }
  const { name } = log;
  report = { ...found, name };
  log.server ||= found.server;
  const fields = { ...found.server, flags: flagsOf(found.server.options) };
  if (fields.played) form = { ...form, ...wellFormed({ ...fields, toml: null }), log };
  showServer(found.server);
  verdict(`${name}: the report of cachesim why`);
  const frame = h("iframe", { title: `Report on ${name}`, sandbox: "allow-same-origin allow-popups" });
  frame.srcdoc = found.html;
  frame.addEventListener("load", () => { const fit = () => { if (frame.contentDocument) frame.style.height = `${Math.ceil(frame.contentDocument.body.getBoundingClientRect().bottom) + 40}px`; }; fit(); new ResizeObserver(fit).observe(frame); const { top } = byId("out").getBoundingClientRect(); if (NARROW.matches && (top < 0 || top > window.innerHeight / 2)) byId("out").scrollIntoView({ block: "start" }); });
  byId("log").hidden = false;
  byId("log").replaceChildren(frame);
  byId("json").disabled = false;
  byId("page").hidden = false;
}

function search() {
  const words = byId("search").value.toLowerCase().split(/\s+/).filter(Boolean);
  const found = shipped.filter((each) => words.every((word) => each.text.includes(word)));
  byId("found").replaceChildren(...found.slice(0, 12).map((each) => h("li", {}, h("button", { type: "button", onclick: () => { byId("open").open = false; openShipped(each.name).catch(refused); } }, each.name), " ", h("span", { class: "quiet" }, each.about))));
  byId("count").textContent = found.length > 12 ? `${found.length} found, the first 12 are shown.` : `${found.length} found.`;
}

function keep(name, text, type) {
  const link = h("a", { href: URL.createObjectURL(new Blob([text], { type })), download: name });
  link.click();
  URL.revokeObjectURL(link.href);
}

function said(text) {
  byId("said").textContent = text;
  window.setTimeout(() => { byId("said").textContent = ""; }, 4000);
}

function address() {
  if (asked() === pristine && origin) return `scenario=${encodeURIComponent(origin)}&profile=${encodeURIComponent(profile())}`;
  const { about, ...whole } = form;
  return coded(whole.toml === null ? whole : { name: whole.name, engine: whole.engine, release: whole.release, patches: whole.patches, arithmetic: whole.arithmetic, toml: whole.toml });
}

function refused(error) {
  const why = error instanceof LinkError ? error.message : `it cannot be read (${String(error.message || error).slice(0, 100)})`;
  open(openings[0].form, { expects: openings[0].expect, title: openings[0].title, name: openings[0].form.name });
  trouble(`The link does not open: ${why}. Here is the first example instead.`);
}

/** The run that the address names, or the first opening. */
async function openAddress() {
  const hash = window.location.hash.slice(1);
  if (form && hash && byId(hash)) return; // a place on this page
  try {
    if (!hash) await open(openings[0].form, { expects: openings[0].expect, title: openings[0].title, name: openings[0].form.name });
    else if (hash.startsWith("log=")) await openExample(decodeURIComponent(hash.slice(4)));
    else if (hash.startsWith("scenario=")) await openShipped(new URLSearchParams(hash).get("scenario"), new URLSearchParams(hash).get("profile"));
    else await open(await decoded(hash));
  } catch (error) {
    refused(error);
  }
}

function listen() {
  const changed = (id, key) => byId(id).addEventListener("change", (event) => { form[key] = event.target.value; show(); play(); });
  for (const key of ["engine", "release", "model", "arithmetic", "flags"]) changed(key, key);
  byId("window").addEventListener("change", (event) => { form.window = event.target.value ? Math.max(1, Math.min(MOST.length, Math.round(Number(event.target.value)) || 1)) : null; show(); play(); });
  byId("toml").addEventListener("change", () => openText(byId("toml").value, {}));
  byId("form").addEventListener("submit", (event) => event.preventDefault());
  byId("flag").addEventListener("change", (event) => { if (event.target.value) { form.flags = `${form.flags}${form.flags && !form.flags.endsWith("\n") ? "\n" : ""}${event.target.value} = `; show(); byId("flags").focus(); } });
  const free = (taken, names) => names.find((each) => !taken.includes(each)) || `t${taken.length}`;
  byId("add-span").addEventListener("click", () => { if (form.spans.length < MOST.spans) form.spans.push({ name: free(form.spans.map((each) => each.name), [..."abcdefghij"]), length: 20 }); show(); play(); });
  byId("add-step").addEventListener("click", () => { if (form.steps.length < MOST.steps) form.steps.push({ name: free(form.steps.map((each) => each.name), [..."ABCDEFGHIJ"]), prompt: form.spans[0] ? form.spans[0].name : "", predict: 4, slot: null }); show(); play(); });
  byId("cancel").addEventListener("click", () => simulator.cancel());
  byId("as-scenario").addEventListener("click", () => { if (report && report.server) openText(report.server.toml, { arithmetic: "ring" }); });
  byId("search").addEventListener("input", search);
  byId("file").addEventListener("change", (event) => { if (event.target.files[0]) openFile(event.target.files[0]); event.target.value = ""; });
  byId("take-pasted").addEventListener("click", () => { if (byId("pasted").value.trim()) openFile(new File([byId("pasted").value], "pasted.log")); });
  window.addEventListener("dragover", (event) => { event.preventDefault(); document.body.classList.add("over"); });
  window.addEventListener("dragleave", (event) => { if (!event.relatedTarget) document.body.classList.remove("over"); });
  window.addEventListener("drop", (event) => { event.preventDefault(); document.body.classList.remove("over"); if (event.dataTransfer.files[0]) openFile(event.dataTransfer.files[0]); });
  window.addEventListener("hashchange", openAddress);
  new IntersectionObserver(([each]) => { byId("peek").style.visibility = each.isIntersecting ? "hidden" : ""; }).observe(byId("verdict"));
  byId("share").addEventListener("click", async () => {
    window.history.replaceState(null, "", `#${await address()}`);
    try {
      await navigator.clipboard.writeText(window.location.href);
      said("The link is copied.");
    } catch {
      said("The link is in the address bar.");
    }
  });
  byId("take").addEventListener("click", () => { if (last) { keep(`${form.name}.toml`, last.toml, "application/toml"); said("Run it with: cachesim run FILE"); } });
  byId("json").addEventListener("click", () => { if (last) keep(`${form.name}.json`, `${last.json}\n`, "application/json"); else if (report) keep(`${report.name}.json`, report.json, "application/json"); });
  byId("page").addEventListener("click", () => { if (report) keep(`${report.name}.html`, report.html, "text/html"); });
}

async function begin() {
  document.body.classList.toggle("embed", new URLSearchParams(window.location.search).has("embed"));
  let manifest;
  try {
    [choices, openings, shipped, logs, manifest] = await Promise.all(["choices.json", "openings.json", "scenarios.json", "logs.json", "manifest.json"].map(async (name) => (await file(name)).json()));
  } catch (error) {
    byId("loading").hidden = true;
    trouble(`This page lacks a file of its own: ${error.message}. Build the site again, or serve its folder with python -m http.server.`);
    return;
  }
  for (const each of openings) if (each.kept) kept[each.title] = each.kept;
  for (const each of shipped) each.text = `${each.name} ${each.former || ""} ${each.about} ${each.engine}`.toLowerCase();
  player = new Player(() => Promise.resolve(null));
  byId("openings").append(...openings.map((each) => h("button", { type: "button", title: each.about, "aria-pressed": "false", onclick: () => open(each.form, { expects: each.expect, title: each.title, name: each.form.name }) }, each.title)), ...logs.map((each) => h("button", { type: "button", title: each.about, "aria-pressed": "false", onclick: () => openExample(each.name).catch(refused) }, each.title)));
  search();
  listen();
  if (!manifest.files) {
    await openAddress();
    await load(manifest);
    return;
  }
  const loaded = load(manifest);
  await openAddress();
  await loaded;
}

window.playground = { result: () => last, report: () => report, ready: () => Boolean(simulator && simulator.ready), kept: () => !byId("kept").hidden, ask: (question, log) => simulator.ask(question, log) };
begin();
