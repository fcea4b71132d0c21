// --- the cursor: one place in the events, shared by the profiles that are shown

const scenarios = [...new Set(RUNS.map((run) => run.scenario))];
let runs = RUNS.filter((run) => run.scenario === scenarios[0]);
const at = { left: 0, right: null, step: 0, row: 0 };
let rows = []; // per step: pairs of event numbers, null where a profile has no such event
let panes = [];

const shownRuns = () => (at.right === null ? [runs[at.left]] : [runs[at.left], runs[at.right]]);
const byId = (id) => document.getElementById(id);

function align() {
  const [one, other] = shownRuns();
  rows = one.steps.map((step, i) => {
    const pairs = aligned(step.events, other && other.steps[i].events);
    return pairs.length ? pairs : [[null, null]];
  });
}

/** The event of one side that the cursor stands on, or stands behind. */
function eventAt(side) {
  for (let row = at.row; row >= 0; row -= 1) {
    const event = rows[at.step][row][side];
    if (event !== null) return { event, exact: row === at.row };
  }
  return { event: -1, exact: false };
}

// --- moving

function place(step, row) {
  at.step = Math.max(0, Math.min(rows.length - 1, step));
  at.row = Math.max(0, Math.min(rows[at.step].length - 1, row));
  draw();
}

function move(by) {
  const row = at.row + by;
  if (row < 0 && at.step > 0) place(at.step - 1, rows[at.step - 1].length - 1);
  else if (row >= rows[at.step].length && at.step + 1 < rows.length) place(at.step + 1, 0);
  else place(at.step, row);
}

/** Every place there is, from the one behind the cursor round to the cursor's own. */
function* around() {
  const all = rows.flatMap((pairs, step) => pairs.map((pair, row) => [step, row, pair]));
  const here = all.findIndex(([step, row]) => step === at.step && row === at.row);
  for (let i = 1; i <= all.length; i += 1) yield all[(here + i) % all.length];
}

function nextLoss() {
  const shown = shownRuns();
  for (const [step, row, pair] of around()) {
    if (pair.some((event, side) => event !== null && ["loss", "warn"].includes(toneOf(shown[side].steps[step].events[event])))) {
      place(step, row);
      return;
    }
  }
  say("No event lost a token, or kept what it should not.");
}

/** Side by side: where the two profiles part. Alone: the first answer that is not the uncached one. */
function firstDifference() {
  const [run, other] = shownRuns();
  if (other) {
    for (const [step, pairs] of rows.entries()) {
      const row = pairs.findIndex((pair) => parts(step, pair));
      if (row >= 0) return place(step, row);
    }
    return say("Both profiles do the same, event by event.");
  }
  const step = run.steps.findIndex((each) => each.max_difference > 0);
  if (step < 0) return say("Every answer matches the uncached run, bit for bit.");
  place(step, rows[step].length - 1);
  byId("logits-0").scrollIntoView({ block: "center" });
  return undefined;
}

function go(run, step, event) {
  const index = runs.indexOf(run);
  if (index !== at.left && index !== at.right) at.left = index;
  align();
  const side = index === at.left ? 0 : 1;
  let wanted = event;
  if (wanted === null) {
    const found = finding(run, step).at;
    wanted = found[0] === step ? found[1] : run.steps[step].events.length - 1;
  }
  place(step, Math.max(0, rows[step].findIndex((pair) => pair[side] === wanted)));
  byId("stage").scrollIntoView({ block: "start" });
}

let silence = 0;
function say(text) {
  const line = byId("said");
  line.textContent = text;
  window.clearTimeout(silence);
  silence = window.setTimeout(() => { line.textContent = ""; }, 4000);
}

// --- drawing

const PANELS = [
  ["prompt", "The request, token by token", promptView, (view) => `${view.stepIndex}`],
  ["memory", "Slots and memory", memoryView, null],
  ["cache", "Prompt cache", promptCacheView, null],
  ["events", "Events", eventsView, null],
  ["logits", "Cached and uncached logits", logitsView, (view) => `${view.stepIndex}`],
];

function paneOf(run, side) {
  const head = h("header", {});
  const bodies = Object.fromEntries(PANELS.map(([name]) => [name, h("div", { class: "body" })]));
  const keys = {};
  const node = h(
    "article",
    { class: "pane", "aria-label": run.profile },
    head,
    PANELS.map(([name, title]) => h("section", { class: `panel p-${name}`, id: `${name}-${side}` }, h("h3", {}, title), bodies[name])),
  );
  const update = () => {
    const step = run.steps[at.step];
    const { event } = eventAt(side);
    const view = {
      run, step, event, side,
      stepIndex: at.step,
      state: stateAfter(run, step, event),
      previous: event < 0 ? null : stateAfter(run, step, event - 1),
      choose: (chosen) => place(at.step, rows[at.step].findIndex((pair) => pair[side] === chosen)),
    };
    const fate = fateOf(step);
    head.replaceChildren(
      h("h2", {}, run.profile),
      h("p", { class: `outcome f-${fate}` }, `request ${step.name}: `, outcomeWords(step).join(" ")),
    );
    for (const [name, , draws, key] of PANELS) {
      const now = key ? key(view) : null;
      if (now === null || keys[name] !== now) bodies[name].replaceChildren(...[draws(view)].flat(9).filter(Boolean));
      keys[name] = now;
    }
    const current = bodies.events.querySelector("[aria-current]");
    if (current) bodies.events.scrollTop = Math.max(0, current.offsetTop - bodies.events.clientHeight / 2);
  };
  return { node, update };
}

function timelineView() {
  const shown = shownRuns();
  return h(
    "div",
    { id: "timeline", class: "timeline", role: "slider", tabindex: "0", "aria-label": "events", "aria-valuemin": "1" },
    rows.map((pairs, step) => {
      const fate = shown.map((run) => fateOf(run.steps[step]));
      const worst = ["wrong", "error", "lost"].find((each) => fate.includes(each)) || "right";
      return h(
        "div",
        { class: "leg", "data-step": step, style: `flex-grow:${Math.sqrt(pairs.length)}` },
        h("span", { class: `leg-name f-${worst}`, "data-step": step }, runs[at.left].steps[step].name),
        h("div", { class: "ticks" }, pairs.map((pair, row) => {
          const tones = pair.map((event, side) => (event === null || !shown[side] ? null : toneOf(shown[side].steps[step].events[event])));
          const tone = ["loss", "warn", "gain", "plain", "quiet"].find((each) => tones.includes(each)) || "quiet";
          const alone = shown.length > 1 && parts(step, pair);
          return h("span", { class: `tick t-${tone} ${alone ? "alone" : ""}`, "data-row": row, "data-step": step }, GLYPHS[tone]);
        })),
      );
    }),
  );
}

function nowView(side, run) {
  const step = run.steps[at.step];
  const { event, exact } = eventAt(side);
  if (event < 0) return h("p", { class: "now quiet" }, step.events.length ? "before its first event" : step.error || "no events");
  const each = step.events[event];
  const tone = toneOf(each);
  return h(
    "p",
    { class: `now t-${tone} ${exact ? "" : "waits"}` },
    shownRuns().length > 1 && h("span", { class: "whose" }, shortProfile(run.profile)),
    h("b", {}, `${GLYPHS[tone]} ${eventName(each)}`),
    exact ? h("span", { class: "fields" }, ` ${each.sentence}`) : h("span", { class: "quiet" }, " nothing here; this was the last"),
  );
}

function draw() {
  const all = rows.map((pairs) => pairs.length);
  const before = all.slice(0, at.step).reduce((sum, n) => sum + n, 0);
  const total = all.reduce((sum, n) => sum + n, 0);
  byId("where").replaceChildren(
    h("b", {}, `Request ${runs[at.left].steps[at.step].name}`),
    h("span", { class: "quiet wide" }, ` event ${at.row + 1} of ${all[at.step]}`),
    h("span", { class: "quiet narrow" }, ` ${at.row + 1} / ${all[at.step]}`),
  );
  byId("now").replaceChildren(...shownRuns().map((run, side) => nowView(side, run)));
  const line = byId("timeline");
  line.setAttribute("aria-valuemax", total);
  line.setAttribute("aria-valuenow", before + at.row + 1);
  line.setAttribute("aria-valuetext", byId("now").textContent);
  for (const old of line.querySelectorAll(".here")) old.classList.remove("here");
  const tick = line.querySelector(`.tick[data-step="${at.step}"][data-row="${at.row}"]`);
  tick.classList.add("here");
  tick.parentElement.parentElement.classList.add("here");
  const seen = tick.offsetLeft - line.offsetLeft - line.scrollLeft;
  if (seen < 30 || seen > line.clientWidth - 30) line.scrollLeft = tick.offsetLeft - line.offsetLeft - line.clientWidth / 2;
  for (const each of document.querySelectorAll(".outcomes tr[data-step]")) {
    each.classList.toggle("here", Number(each.dataset.step) === at.step);
  }
  for (const pane of panes) pane.update();
  drawStage();
  byId("previous").disabled = before + at.row === 0;
  byId("next").disabled = before + at.row === total - 1;
  const numbers = [at.step + 1, at.row + 1, at.left + 1, at.right === null ? 0 : at.right + 1];
  if (scenarios.length > 1) numbers.push(scenarios.indexOf(runs[0].scenario) + 1);
  const place = `#${numbers.join(".")}`;
  try {
    if (window.location.hash !== place) window.history.replaceState(null, "", place);
  } catch {
    // a page inside a notebook's frame has no address of its own
  }
}

/** The picture at the cursor, and the story of its request beside it. */
function drawStage() {
  const run = shownRuns()[0];
  const step = run.steps[at.step];
  const { event } = eventAt(0);
  const number = (which) => (!step.detail ? -1 : which < 0 ? step.detail.before : step.detail.at[which]);
  byId("picture").replaceChildren(...[pictureView(run, at.step, number(event), event < 0 ? -1 : number(event - 1)), rowsButton(run, at.step, number(event))].filter(Boolean));
  const worst = chainStep(run);
  const told = run.steps[worst];
  byId("beside").replaceChildren(...[
    h("h2", {}, run.profile),
    at.right !== null && h("button", { type: "button", id: "swap", onclick: swap }, h("kbd", {}, "c"), ` see ${shortProfile(shownRuns()[1].profile)}`),
    h("p", { class: `outcome f-${fateOf(step)}` }, `request ${step.name}: `, outcomeWords(step).join(" "), step.forced ? " (reply given by the scenario)" : ""),
    run.picture.chains[worst].length > 0 && h("p", { class: "quiet" }, `How request ${told.name} came to this. `, h("button", { type: "button", class: "link", id: "walk", onclick: walk }, h("kbd", {}, "w"), " walk it")),
    chainView(run, worst),
  ].filter(Boolean));
}

function picker(id, label, chosen, options, pick) {
  return h(
    "label",
    {},
    `${label} `,
    h("select", { id, onchange: (event) => pick(event.target.value) }, options.map(([value, text]) => h("option", { value, selected: String(value) === String(chosen) }, text))),
  );
}

function story() {
  align();
  panes = shownRuns().map(paneOf);
  const names = runs.map((run, i) => [i, shortProfile(run.profile)]);
  const controls = h(
    "div",
    { class: "controls" },
    h("button", { type: "button", id: "previous", "aria-label": "previous event", onclick: () => move(-1) }, "‹"),
    h("button", { type: "button", id: "next", "aria-label": "next event", onclick: () => move(1) }, "›"),
    h("span", { id: "where" }),
    h("button", { type: "button", class: "jump", id: "loss", onclick: nextLoss }, h("kbd", {}, "e"), h("span", { class: "wide" }, " next"), " loss"),
    h("button", { type: "button", class: "jump", id: "difference", onclick: firstDifference }, h("kbd", {}, "d"), h("span", { class: "wide" }, " first"), " difference"),
    h("span", { class: "hint quiet" }, h("kbd", {}, "←"), " ", h("kbd", {}, "→"), " step  ", h("kbd", {}, "?"), " all keys"),
  );
  const profiles = h(
    "div",
    { class: "profiles" },
    h("h2", {}, "Token by token"),
    picker("left", "profile", at.left, names, (value) => { at.left = Number(value); story(); }),
    runs.length > 1 && picker("right", "beside", at.right === null ? "" : at.right, [["", "none"], ...names], (value) => { at.right = value === "" ? null : Number(value); story(); }),
  );
  const bar = h("div", { class: "bar" }, controls, timelineView(), h("div", { id: "now", "aria-live": "polite", tabindex: "0", role: "region", "aria-label": "the event", class: panes.length > 1 ? "two" : "" }), h("p", { id: "said", role: "status" }));
  byId("stage").replaceChildren(bar, h("div", { class: "stage" }, h("div", { id: "picture" }), h("div", { id: "beside" })));
  const section = h(
    "section",
    { id: "story", "aria-label": "events, step by step" },
    profiles,
    h("div", { class: `panes ${panes.length > 1 ? "two" : ""}` }, panes.map((pane) => pane.node)),
  );
  byId("story").replaceWith(section);
  byId("timeline").addEventListener("click", (event) => {
    const found = event.target.closest(".tick, .leg-name");
    if (found) place(Number(found.dataset.step), Number(found.dataset.row || 0));
  });
  place(at.step, at.row);
}
