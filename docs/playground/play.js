// The playground: a form that is a scenario, a worker that plays it, the picture of what came of it.
"use strict";

const byId = (id) => document.getElementById(id);
let choices = null;
let openings = [];
let worker = null;
let ready = false;
let number = 0;
let last = null;
let form = null;

/** An element; texts go in as texts. */
function h(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat(9).filter((each) => each !== null && each !== undefined && each !== false));
  return element;
}

/** A drawing that Python made; it escapes every text. */
const drawing = (text) => document.importNode(new DOMParser().parseFromString(text, "image/svg+xml").documentElement, true);

function trouble(text) {
  byId("trouble").hidden = !text;
  byId("trouble").textContent = text || "";
}

// --- the form is a scenario

const release = () => choices.engines[form.engine].releases.find((each) => each.name === form.release) || choices.engines[form.engine].releases[0];
const rules = () => [form.release, ...form.patches].join("+");
const profile = () => `${form.engine}@${rules()}`;

/** What an opening expects holds as long as nothing but the release was changed. */
const asked = () => JSON.stringify([form.name, form.engine, form.model, form.seed, form.flags, form.spans, form.steps]);
let pristine = null;
let expected = [];

function scenario() {
  const options = {};
  for (const line of form.flags.split("\n").map((each) => each.trim()).filter(Boolean)) {
    const at = line.indexOf("=");
    const [key, value] = at < 0 ? [line, ""] : [line.slice(0, at).trim(), line.slice(at + 1).trim()];
    try {
      options[key] = JSON.parse(value);
    } catch {
      options[key] = value;
    }
  }
  const steps = form.steps.map((each) => {
    const step = { name: each.name, prompt: each.prompt, predict: each.predict };
    if (each.slot !== undefined && each.slot !== null) step.slot = each.slot;
    return step;
  });
  return {
    format: 1,
    name: form.name || "playground",
    model: { preset: form.model, seed: form.seed ?? 0 },
    engine: { name: form.engine, profiles: [rules()], options },
    spans: Object.fromEntries(form.spans.map((each) => [each.name, each.length])),
    step: steps,
    ...(asked() === pristine ? { expect: expected.filter((each) => each.profile === rules()) } : {}),
  };
}

function fill(select, values, chosen) {
  select.replaceChildren(...values.map(([value, text, title]) => h("option", { value, title: title || null, selected: value === chosen }, text)));
}

function show() {
  const engine = choices.engines[form.engine];
  fill(byId("engine"), Object.keys(choices.engines).map((name) => [name, name]), form.engine);
  if (!engine.releases.some((each) => each.name === form.release)) form.release = engine.releases[0].name;
  fill(byId("release"), engine.releases.map((each) => [each.name, each.name, each.about]), form.release);
  fill(byId("model"), Object.entries(choices.models).map(([name, about]) => [name, `${name}: ${about}`]), form.model);
  form.patches = form.patches.filter((each) => release().patches.includes(each));
  byId("patches").replaceChildren(...release().patches.map((name) => h("label", { title: engine.patches[name] }, h("input", { type: "checkbox", value: name, checked: form.patches.includes(name), onchange: (event) => { form.patches = form.patches.filter((each) => each !== name).concat(event.target.checked ? [name] : []); play(); } }), ` ${name}`)));
  byId("flags").value = form.flags;
  byId("arithmetic").value = form.arithmetic;
  fill(byId("flag"), [["", "add a flag"], ...Object.entries(engine.flags).map(([name, about]) => [name, name, about])], "");
  byId("spans").replaceChildren(...form.spans.map(spanView));
  byId("steps").replaceChildren(...form.steps.map(stepView));
}

function spanView(each) {
  const count = h("input", { type: "number", min: "1", max: "2000", value: each.length, "aria-label": `length of ${each.name}` });
  const slider = h("input", { type: "range", min: "1", max: "200", value: Math.min(200, each.length), "aria-label": `length of ${each.name}, to drag` });
  const set = (value) => { each.length = Math.max(1, Math.min(2000, Number(value) || 1)); count.value = each.length; slider.value = each.length; play(); };
  slider.addEventListener("input", () => set(slider.value));
  count.addEventListener("change", () => set(count.value));
  return h("div", { class: "span" }, h("b", {}, each.name), slider, count, h("button", { type: "button", "aria-label": `remove ${each.name}`, onclick: () => { form.spans = form.spans.filter((one) => one !== each); show(); play(); } }, "×"));
}

function stepView(each, index) {
  const input = (key, type, label) => h("input", { type, value: each[key] ?? "", min: type === "number" ? "0" : null, "aria-label": `${label} of request ${index + 1}`, onchange: (event) => { each[key] = type === "number" ? Number(event.target.value) : event.target.value; play(); } });
  return h("div", { class: "step" }, input("name", "text", "name"), input("prompt", "text", "prompt"), input("predict", "number", "tokens to predict"), h("button", { type: "button", "aria-label": `remove request ${index + 1}`, onclick: () => { form.steps = form.steps.filter((one) => one !== each); show(); play(); } }, "×"));
}

// --- playing

let waiting = 0;
function play() {
  window.clearTimeout(waiting);
  waiting = window.setTimeout(() => {
    if (!ready) return;
    number += 1;
    byId("verdict").setAttribute("aria-busy", "true");
    worker.postMessage({ number, asked: JSON.stringify({ scenario: scenario(), profile: profile(), arithmetic: form.arithmetic }) });
  }, 60);
}

const TONE = { wrong: "wrong", right: "right" };
const SIGN = { wrong: "✗", right: "✓", lost: "–", "by-design": "≈" };

function told(result) {
  byId("verdict").removeAttribute("aria-busy");
  if (result.problems) {
    trouble(result.problems.join("\n"));
    byId("verdict").textContent = "Cannot run this. Fix the line below.";
    byId("verdict").className = "";
    return;
  }
  trouble("");
  last = result;
  byId("verdict").className = TONE[result.fate] || "lost";
  byId("verdict").textContent = `${SIGN[result.fate] || "!"} ${result.verdict}`;
  byId("cause").textContent = result.cause;
  byId("story").replaceChildren(drawing(result.story));
  byId("steps-out").replaceChildren(h("h2", {}, "Step by step"), ...result.steps.map((step) =>
    h("details", { open: step.fate === result.fate && step.fate !== "right" },
      h("summary", {}, `${step.name}: ${step.prompt} tokens, ${step.error || `${step.cached} cached`}${step.answer ? `, ${step.answer}` : ""}${step.lost ? `, ${step.lost} lost` : ""}`),
      h("dl", {}, step.facts.map(([word, sentence]) => [h("dt", {}, word), h("dd", {}, sentence)])),
      step.chain.length > 0 && h("ol", {}, step.chain.map(([word, name, sentence]) => h("li", {}, h("b", {}, word), ` step ${name}: ${sentence}`))),
      step.picture ? drawing(step.picture) : null)));
}

function load(manifest) {
  if (!manifest.files) {
    byId("loading").hidden = true;
    trouble(`The simulator is not in this build of the site: ${manifest.why}\nOn your own machine: cachesim run llama.cpp-three-requests`);
    return;
  }
  if (typeof WebAssembly !== "object" || typeof Worker !== "function") {
    byId("loading").hidden = true;
    trouble("This browser has no WebAssembly, or no workers, and the simulator needs both. Any recent browser has them.\nOn your own machine: cachesim run llama.cpp-three-requests");
    return;
  }
  worker = new Worker("worker.js");
  worker.onerror = (event) => trouble(`The simulator could not be started: ${event.message || "the worker failed"}`);
  worker.onmessage = ({ data }) => {
    if (data.loaded !== undefined) { byId("progress").value = data.loaded; byId("state").textContent = `Loading the simulator: ${Math.round(100 * data.loaded)} %`; }
    if (data.state) byId("state").textContent = data.state;
    if (data.ready) { ready = true; byId("loading").hidden = true; play(); }
    if (data.trouble) trouble(`The simulator stopped: ${data.trouble}`);
    if (data.told && data.number === number) told(JSON.parse(data.told));
  };
  worker.postMessage({ manifest });
}

// --- openings, links, files

const coded = (value) => btoa(String.fromCharCode(...new TextEncoder().encode(JSON.stringify(value)))).replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "");
const decoded = (text) => JSON.parse(new TextDecoder().decode(Uint8Array.from(atob(text.replaceAll("-", "+").replaceAll("_", "/")), (each) => each.charCodeAt(0))));

/** Only what a form may hold; a link comes from anywhere. */
function wellFormed(value) {
  const list = (each) => (Array.isArray(each) ? each.slice(0, 40) : []);
  return {
    name: String(value.name || "playground"),
    engine: value.engine in choices.engines ? value.engine : "llama.cpp",
    release: String(value.release || ""),
    patches: list(value.patches).map(String),
    model: value.model in choices.models ? value.model : "hybrid",
    seed: Number.isInteger(value.seed) ? value.seed : 0,
    arithmetic: value.arithmetic === "ring" ? "ring" : "float",
    flags: String(value.flags || ""),
    spans: list(value.spans).map((each) => ({ name: String(each.name), length: Math.max(1, Math.min(2000, Number(each.length) || 1)) })),
    steps: list(value.steps).map((each) => ({ name: String(each.name), prompt: String(each.prompt), predict: Math.max(0, Math.min(64, Number(each.predict) || 0)), slot: Number.isInteger(each.slot) ? each.slot : null })),
  };
}

function open(opening) {
  form = wellFormed(structuredClone(opening.form));
  expected = opening.expect || [];
  pristine = opening.expect ? asked() : null;
  for (const button of byId("openings").children) button.setAttribute("aria-pressed", String(button.textContent === opening.title));
  show();
  play();
}

function kept(name, text, type) {
  const link = h("a", { href: URL.createObjectURL(new Blob([text], { type })), download: name });
  link.click();
  URL.revokeObjectURL(link.href);
}

function said(text) {
  byId("said").textContent = text;
  window.setTimeout(() => { byId("said").textContent = ""; }, 4000);
}

function listen() {
  const changed = (id, key) => byId(id).addEventListener("change", (event) => { form[key] = event.target.value; show(); play(); });
  for (const key of ["engine", "release", "model", "arithmetic", "flags"]) changed(key, key);
  byId("form").addEventListener("submit", (event) => event.preventDefault());
  byId("flag").addEventListener("change", (event) => { if (event.target.value) { form.flags = `${form.flags}${form.flags && !form.flags.endsWith("\n") ? "\n" : ""}${event.target.value} = `; show(); byId("flags").focus(); } });
  const free = (taken, names) => names.find((each) => !taken.includes(each)) || `t${taken.length}`;
  byId("add-span").addEventListener("click", () => { form.spans.push({ name: free(form.spans.map((each) => each.name), [..."abcdefghij"]), length: 20 }); show(); play(); });
  byId("add-step").addEventListener("click", () => { form.steps.push({ name: free(form.steps.map((each) => each.name), [..."ABCDEFGHIJ"]), prompt: form.spans[0] ? form.spans[0].name : "", predict: 4, slot: null }); show(); play(); });
  byId("share").addEventListener("click", async () => {
    window.history.replaceState(null, "", `#${coded(form)}`);
    try {
      await navigator.clipboard.writeText(window.location.href);
      said("The link is copied.");
    } catch {
      said("The link is in the address bar.");
    }
  });
  byId("take").addEventListener("click", () => { if (last) { kept(`${form.name}.toml`, last.toml, "application/toml"); said("Play it with: cachesim run FILE"); } });
  byId("json").addEventListener("click", () => { if (last) kept(`${form.name}.json`, `${last.json}\n`, "application/json"); });
}

async function begin() {
  let manifest;
  try {
    [choices, openings, manifest] = await Promise.all(["choices.json", "openings.json", "manifest.json"].map(async (name) => (await fetch(name)).json()));
  } catch (error) {
    byId("loading").hidden = true;
    trouble("This page must come from a web server, because browsers do not let one file fetch another: run `python -m http.server` in the folder of the site, and open http://localhost:8000/playground/.");
    return;
  }
  byId("openings").append(...openings.map((each) => h("button", { type: "button", title: each.about, "aria-pressed": "false", onclick: () => open(each) }, each.title)));
  listen();
  let linked = null;
  try {
    linked = window.location.hash.length > 1 ? { title: "", form: decoded(window.location.hash.slice(1)) } : null;
  } catch {
    trouble("The link is damaged; here is the first opening instead.");
  }
  open(linked || openings[0]);
  load(manifest);
}

window.playground = { result: () => last, ready: () => ready };
begin();
