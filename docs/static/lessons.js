// The site: what scrolls can be reached by keys, and what is alike is told apart by name.
// Lessons: a number to commit to before a run is seen, and controls that change a number in it.
"use strict";

for (const each of document.querySelectorAll("pre, .table-wrapper")) each.tabIndex = 0;
for (const table of document.querySelectorAll("article table")) {
  const titles = [...table.querySelectorAll("thead th")].map((each) => each.textContent);
  table.classList.toggle("stack", titles.length > 2);
  for (const row of table.querySelectorAll("tbody tr")) [...row.children].forEach((cell, i) => { cell.dataset.title = titles[i] || ""; });
}
for (const [part, name] of [[".sidebar-drawer", "Contents of the site"], [".toc-drawer", "Contents of this page"]]) {
  for (const each of document.querySelectorAll(part)) each.setAttribute("aria-label", name);
}

const SAME = { y: "yes", true: "yes", n: "no", false: "no" };
const NUMBERS = "zero one two three four five six seven eight nine ten eleven twelve".split(" ");
const plain = (word) => {
  let text = word.replace(/^[`'",;.\s]+|[`'",;.\s]+$/g, "").toLowerCase();
  if (text.startsWith("--")) text = text.slice(2).replaceAll("-", "_");
  if (NUMBERS.includes(text)) return String(NUMBERS.indexOf(text));
  const whole = /^(-?\d+)(\.0*)?$/.exec(text);
  return whole ? String(Number(whole[1]) + 0) : Object.hasOwn(SAME, text) ? SAME[text] : text;
};

for (const form of document.querySelectorAll("form.ask")) {
  const inputs = [...form.querySelectorAll("input")];
  const [said, hint, more] = [".said", ".hint", ".more"].map((each) => form.querySelector(each));
  const answers = JSON.parse(form.dataset.answers);
  let tries = 0;
  if (more) more.addEventListener("click", () => { hint.hidden = false; });
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    if (inputs.some((each) => !each.value.trim())) {
      said.textContent = inputs.length > 1 ? "Fill in every field first; a guess is enough." : "Write what you expect first; a guess is enough.";
      return;
    }
    const rights = inputs.map((each, i) => plain(each.value) === plain(answers[i]));
    inputs.forEach((each, i) => each.setAttribute("aria-invalid", String(!rights[i])));
    const right = rights.every(Boolean);
    tries += 1;
    form.classList.toggle("right", right);
    const reveal = form.nextElementSibling && form.nextElementSibling.matches("details") ? form.nextElementSibling : null;
    if (!right && tries === 1 && hint) {
      hint.hidden = false;
      said.textContent = inputs.length > 1 ? `${rights.filter(Boolean).length} of ${rights.length} right. Try again with the hint.` : "Not yet. Try again with the hint.";
      return;
    }
    said.textContent = right ? `Right: ${answers.join(", ")}.` : `You answered ${inputs.map((each) => each.value.trim()).join(", ")}; the run gives ${answers.join(", ")}.`;
    if (reveal) reveal.open = true;
  });
}

for (const sweep of document.querySelectorAll(".sweep")) {
  const slider = sweep.querySelector("input");
  const figures = [...sweep.querySelectorAll("figure")];
  const show = () => {
    figures.forEach((figure, i) => { figure.hidden = i !== Number(slider.value); });
    slider.setAttribute("aria-valuetext", figures[Number(slider.value)].dataset.value);
  };
  slider.addEventListener("input", show);
  show();
}

// --- code that can be changed and run, in the worker of the playground

const BASE = new URL("../", document.currentScript.src);
const cells = document.querySelector("form.ask") ? [...document.querySelectorAll("article div.highlight-python")] : [];
let python = null;

/** The worker, started by the first run; `told` gets what is loading. */
function started(told) {
  python ||= (async () => {
    const manifest = await (await fetch(new URL("playground/manifest.json", BASE))).json();
    if (!manifest.files) throw new Error(`the simulator is not in this build of the site: ${manifest.why}`);
    const whole = manifest.files.reduce((sum, each) => sum + each.bytes, 0);
    let come = 0;
    const files = await Promise.all(manifest.files.map(async (each) => {
      const data = await (await fetch(new URL(`playground/${each.name}`, BASE))).arrayBuffer();
      come += each.bytes;
      told(`Loading Python: ${Math.round((100 * come) / whole)} %`);
      return { ...each, data };
    }));
    const worker = new Worker(new URL("_static/lesson-worker.js", BASE));
    await new Promise((resolve, reject) => {
      worker.onmessage = ({ data }) => { if (data.state) told(data.state); if (data.trouble) reject(new Error(data.trouble)); if (data.ready) resolve(); };
      worker.onerror = (event) => reject(new Error(event.message || "the worker failed"));
      worker.postMessage({ files });
    });
    return worker;
  })();
  python.catch(() => { python = null; });
  return python;
}

/** One run after another: the blocks up to this one, and the pictures that follow it. */
let running = Promise.resolve();
function run(blocks, pictures, told) {
  const work = async () => {
    const worker = await started(told);
    told("Running");
    return new Promise((resolve, reject) => {
      worker.onmessage = ({ data }) => (data.played ? resolve(data.played) : reject(new Error(data.trouble)));
      worker.postMessage({ blocks, pictures });
    });
  };
  const result = running.then(work);
  running = result.catch(() => {});
  return result;
}

/** The pictures between a block and the next one. */
function figuresAfter(cell) {
  const all = [...document.querySelectorAll("article div.highlight-python, article figure[data-code]")];
  const found = [];
  for (const each of all.slice(all.indexOf(cell) + 1)) {
    if (!each.matches("figure")) break;
    found.push(each);
  }
  return found;
}

cells.forEach((cell, index) => {
  const pre = cell.querySelector("pre");
  const field = document.createElement("textarea");
  field.value = pre.textContent.replace(/\n$/, "");
  field.rows = field.value.split("\n").length;
  field.spellcheck = false;
  field.setAttribute("aria-label", `code ${index + 1}`);
  pre.replaceWith(field);
  cell.field = field;
  const button = document.createElement("button");
  button.type = "button";
  button.textContent = "Run";
  const said = document.createElement("span");
  said.setAttribute("role", "status");
  const bar = document.createElement("p");
  bar.className = "run";
  bar.append(button, " ", said);
  cell.append(bar);
  field.addEventListener("keydown", (event) => { if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) button.click(); });
  button.addEventListener("click", async () => {
    button.disabled = true;
    const figures = figuresAfter(cell);
    try {
      const played = await run(cells.slice(0, index + 1).map((each) => each.field.value), figures.map((each) => each.dataset.code), (text) => { said.textContent = text; });
      let output = cell.nextElementSibling;
      if (!output || !output.matches("div.highlight-text")) {
        output = document.createElement("div");
        output.className = "highlight-text notranslate";
        output.append(document.createElement("pre"));
        cell.after(output);
      }
      output.querySelector("pre").textContent = played.output || "(no output)";
      played.drawings.forEach((drawing, i) => {
        const parsed = new DOMParser().parseFromString(drawing, "text/html").querySelector("svg");
        const old = figures[i].querySelector("svg");
        if (parsed && old) old.replaceWith(document.importNode(parsed, true));
      });
      said.textContent = "Done";
    } catch (error) {
      said.textContent = `Could not run: ${error.message}`;
    }
    button.disabled = false;
  });
});
