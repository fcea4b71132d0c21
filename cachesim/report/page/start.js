// --- the page is put together, and listens

/** The profile to look at beside the one that goes wrong: the last one that does not, if any. */
function besideIt(found) {
  const others = runs.map((_, i) => i).filter((i) => i !== at.left && !(found && found.runs.includes(runs[i])));
  const well = others.filter((i) => worstStep(runs[i]) === null);
  const chosen = well.length ? well : others;
  return chosen.length ? chosen[chosen.length - 1] : null;
}

function openScenario(name) {
  runs = RUNS.filter((run) => run.scenario === name);
  const found = findings(runs);
  const first = found[0];
  at.left = first ? runs.indexOf(first.runs[0]) : 0;
  at.right = besideIt(first);
  const detail = runs[0].detail || {};
  document.title = `${name} · cachesim`;
  byId("page").replaceChildren(headlineView(name, runs), h("section", { id: "stage", "aria-label": "memory, event by event" }), ...verdictView(runs, go), outcomesView(runs, go), titleView(detail), h("section", { id: "story" }), sourceView(name, detail));
  align();
  const where = first ? first.at : [runs[at.left].steps.length - 1, 0];
  at.step = where[0];
  at.row = Math.max(0, rows[at.step].findIndex((pair) => pair[0] === where[1]));
  story();
}

/** The name, and the verdict in one sentence. */
function headlineView(name, shown) {
  const found = findings(shown);
  const [sign, word, colour] = FATES[found.length ? found[0].fate : "right"];
  return h(
    "section",
    { class: "headline" },
    h("h1", {}, name),
    h("p", { class: `sentence f-${colour}` }, h("span", { "aria-hidden": "true" }, `${sign} `), found.length ? found[0].title : `${word}. ${flawless(shown)}`),
  );
}

function titleView(detail) {
  const run = runs[0];
  const facts = [run.profile.split("@")[0], detail.model && `model ${detail.model}`, run.arithmetic, detail.kind].filter(Boolean);
  const options = Object.entries(detail.options || {}).map(([key, value]) => `${key} ${value}`);
  return h(
    "section",
    { class: "title", "aria-label": "the scenario" },
    h("p", { class: "facts" }, [...facts, ...options].map((fact) => h("span", {}, fact)), detail.issue && issueView(detail.issue)),
    detail.about && h("p", { class: "about" }, detail.about),
    run.cut && h("p", { class: "about" }, `Of the run on ${run.profile} ${run.cut}.`),
  );
}

function issueView(issue) {
  const found = /^([\w.-]+\/[\w.-]+)#(\d+)$/.exec(issue);
  if (!found) return h("span", {}, issue);
  return h("a", { href: `https://github.com/${found[1]}/issues/${found[2]}`, rel: "noreferrer noopener" }, issue);
}

function sourceView(name, detail) {
  return h(
    "footer",
    {},
    h("h3", {}, "Run it again"),
    h("pre", { tabindex: "0" }, `cachesim run ${name}`),
    detail.toml && h("details", {}, h("summary", {}, "The scenario"), h("pre", { tabindex: "0" }, detail.toml)),
    h("p", { class: "quiet" }, "Every reply was compared with an uncached run of the same tokens, bit for bit. This page is one file and loads nothing."),
  );
}

// --- keys, tips, theme

function helpView() {
  const keys = [["← →", "one event back, one forward"], ["p n", "one request back, one forward"], ["Home End", "the first event, the last"], ["e", "the next event that lost tokens, or kept what it should not"], ["d", "the first difference: of two profiles, or from the uncached answer"], ["w", "the next station of how it came to this: made, kept, restored, wrong"], ["c", "the other profile in the same picture"], ["t", "light or dark"], ["?", "this"]];
  const list = (pairs) => h("dl", {}, pairs.map(([key, text]) => h("div", {}, h("dt", {}, key), h("dd", {}, text))));
  byId("keys").replaceChildren(
    h("h2", { id: "keys-title" }, "Keys and signs"),
    h("div", { class: "columns" }, h("div", {}, h("h3", {}, "Keys"), list(keys)), h("div", {}, h("h3", {}, "Tokens"), list(Object.entries(CLASSES).filter(([letter]) => letter !== "-").map(([letter, [word, about]]) => [letter, `${word}: ${about}`])), h("h3", {}, "Events"), list(Object.entries(GLYPHS).map(([tone, glyph]) => [glyph, TONES[tone]])))),
    h("button", { type: "button", onclick: () => byId("keys").close() }, "close"),
  );
}

function toggleTheme() {
  const root = document.documentElement;
  const dark = root.dataset.theme ? root.dataset.theme === "dark" : window.matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
}

const KEYS = {
  ArrowLeft: () => move(-1),
  ArrowRight: () => move(1),
  n: () => place(at.step + 1, 0),
  p: () => place(at.step - 1, 0),
  Home: () => place(0, 0),
  End: () => place(rows.length - 1, rows[rows.length - 1].length - 1),
  e: nextLoss,
  d: firstDifference,
  w: walk,
  c: swap,
  t: toggleTheme,
  "?": () => byId("keys").showModal(),
};

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || (event.target instanceof Element && event.target.closest("select, dialog"))) return;
  const act = KEYS[event.key];
  if (!act) return;
  event.preventDefault();
  act();
});

/** A tip beside what is pointed at, tapped or focused. */
function showTip(event) {
  const tip = byId("tip");
  const target = event.target instanceof Element ? event.target.closest("[data-tip]") : null;
  tip.hidden = !target || !target.dataset.tip;
  if (tip.hidden) return;
  tip.textContent = target.dataset.tip;
  const box = target.getBoundingClientRect();
  const left = Math.min(Math.max(8, box.left), window.innerWidth - tip.offsetWidth - 8);
  const below = box.bottom + tip.offsetHeight + 10 < window.innerHeight;
  tip.style.left = `${left}px`;
  tip.style.top = `${below ? box.bottom + 6 : Math.max(4, box.top - tip.offsetHeight - 6)}px`;
}

document.addEventListener("pointerover", showTip);
document.addEventListener("click", showTip);
document.addEventListener("focusin", showTip);
document.addEventListener("scroll", () => { byId("tip").hidden = true; }, { passive: true, capture: true });

byId("theme").addEventListener("click", toggleTheme);
byId("help").addEventListener("click", KEYS["?"]);
helpView();
if (scenarios.length > 1) {
  byId("pick").hidden = false;
  byId("scenario").append(...scenarios.map((name) => h("option", { value: name }, name)));
  byId("scenario").addEventListener("change", (event) => openScenario(event.target.value));
}
const asked = /^#(\d+)\.(\d+)\.(\d+)\.(\d+)(?:\.(\d+))?$/.exec(window.location.hash);
const named = scenarios[(asked && asked[5] ? Number(asked[5]) : 1) - 1] || scenarios[0];
byId("scenario").value = named;
openScenario(named);
if (asked) {
  const [step, row, left, right] = asked.slice(1, 5).map(Number);
  if (left >= 1 && left <= runs.length) at.left = left - 1;
  at.right = right >= 1 && right <= runs.length ? right - 1 : null;
  [at.step, at.row] = [Math.max(0, Math.min(runs[at.left].steps.length - 1, step - 1)), row - 1];
  story();
}
