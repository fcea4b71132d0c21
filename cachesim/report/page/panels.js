// --- the page from the top: verdict, outcomes, then what hangs on the cursor

const WORST_FIRST = ["wrong", "error", "lost", "right"];

/** Profiles of which the same is to be said share one finding; the worst comes first. */
function findings(runs) {
  const told = new Map();
  for (const run of runs) {
    const worst = worstStep(run);
    if (worst === null) continue;
    const found = finding(run, worst);
    const key = JSON.stringify([found.title, found.cause]);
    if (!told.has(key)) told.set(key, { ...found, runs: [], step: worst });
    told.get(key).runs.push(run);
  }
  return [...told.values()].sort((one, other) => WORST_FIRST.indexOf(one.fate) - WORST_FIRST.indexOf(other.fate));
}

const VERDICTS = { wrong: ["✗", "Wrong answer"], error: ["!", "Refused"], lost: ["–", "Lost reuse"], right: ["✓", "Right answers"] };

function verdictView(runs, go) {
  const found = findings(runs);
  const overall = found.length ? found[0].fate : "right";
  const [sign, word] = VERDICTS[overall];
  return h(
    "section",
    { class: `verdict v-${overall}`, "aria-label": "verdict" },
    h("p", { class: "verdict-word" }, h("b", { "aria-hidden": "true" }, sign), ` ${word}`),
    found.length === 0 && h("p", { class: "lead" }, flawless(runs)),
    found.map((each, index) => [
      h(
        "div",
        { class: `finding ${each.fate === overall ? "" : "lesser"}` },
        h("p", { class: "lead" }, each.title),
        each.cause.filter(Boolean).map((line, i) => h("p", { class: i === 0 ? "cause" : "cause more" }, line)),
        h(
          "p",
          { class: "who" },
          `On ${each.runs.map((run) => run.profile).join(", ")}. `,
          h("button", { type: "button", class: "link", onclick: () => go(each.runs[0], ...each.at) }, "See it happen →"),
        ),
      ),
      index === 0 && betterLines(runs, each),
    ]),
  );
}

/** What is to be said where nothing is wrong. */
function flawless(runs) {
  const steps = runs.flatMap((run) => run.steps);
  if (steps.every((step) => step.answer === null)) return "No answer was compared with a cold run.";
  const missed = steps.some((step) => step.reuse === "lost");
  return `Every answer is the cold answer, and ${missed ? "hardly a token" : "all"} that could be reused was ${missed ? "lost" : "reused"}.`;
}

/** How the profiles without the first finding fare at the same step. */
function betterLines(runs, found) {
  const told = new Map();
  for (const run of runs.filter((each) => !found.runs.includes(each))) {
    const step = run.steps[found.step];
    const right = step.error === null && ["same", "rounding"].includes(step.answer);
    const better = found.fate === "wrong" || step.cached > found.runs[0].steps[found.step].cached;
    if (!right || !better) continue;
    const words = `step ${step.name} answers right, with ${step.cached} of ${step.prompt_tokens} tokens reused.`;
    told.set(words, [...(told.get(words) || []), run.profile]);
  }
  return [...told].map(([words, profiles]) => h("p", { class: "but" }, h("b", {}, "✓ "), `On ${profiles.join(", ")} ${words}`));
}

/** A row per step, a column per profile; each cell leads to its step. */
function outcomesView(runs, go) {
  const steps = runs[0].steps;
  return h(
    "section",
    { class: "outcomes", "aria-label": "outcomes" },
    h(
      "div",
      { class: "scroll", tabindex: "0", role: "region", "aria-label": "steps and profiles" },
      h(
        "table",
        {},
        h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "step"), h("th", { scope: "col", class: "n" }, "prompt"), runs.map((run) => h("th", { scope: "col" }, shortProfile(run.profile))))),
        h(
          "tbody",
          {},
          steps.map((step, index) =>
            h(
              "tr",
              { "data-step": index },
              h("th", { scope: "row" }, step.name),
              h("td", { class: "n" }, step.do === "complete" ? String(step.prompt_tokens) : step.do),
              runs.map((run) => h("td", {}, outcomeButton(run, index, go))),
            ),
          ),
        ),
      ),
    ),
  );
}

function outcomeButton(run, index, go) {
  const step = run.steps[index];
  const fate = fateOf(step);
  const words = outcomeWords(step);
  return h(
    "button",
    { type: "button", class: `outcome f-${fate}`, "aria-label": `step ${step.name} on ${run.profile}: ${words.join(" ")}`, onclick: () => go(run, index, null) },
    words.map((word, i) => h("span", {}, i ? ` ${word}` : word)),
  );
}

function outcomeWords(step) {
  if (step.error !== null) return [step.error];
  if (step.do !== "complete") return ["done"];
  if (step.cached === null) return ["cancelled"];
  const lost = step.reuse === "lost" && step.explanation && step.explanation.lost > 1 ? `, ${step.explanation.lost} lost` : "";
  const answer = step.answer === null ? "" : `${ANSWERS[step.answer][1]} ${ANSWERS[step.answer][0]}`;
  return [`${step.cached} cached${lost}`, answer];
}

// --- one profile at the cursor

function promptView({ run, step }) {
  if (step.do !== "complete") return [quietLine(`${step.do}: no prompt.`)];
  if (!step.detail || !step.detail.prompt.length) return [quietLine("No prompt.")];
  const tokens = promptTokens(run, step);
  const counts = { R: 0, F: 0, r: 0, C: 0 };
  for (const each of tokens) counts[each.letter] += 1;
  const words = [["R", "reused"], ["F", "reused but foreign"], ["r", "read again"], ["C", "new"]]
    .filter(([letter]) => counts[letter])
    .map(([letter, word]) => `${counts[letter]} ${word}`);
  return [
    h("p", { class: "part" }, h("b", {}, `${step.prompt_tokens} tokens`), ` ${words.join(", ")}`),
    scaleView(tokens),
    ribbonView(tokens),
    ladderView(step),
    replyView(step),
  ];
}

/** From what was equal to what was reused, one line for each rule at work. */
function ladderView(step) {
  const explanation = step.explanation;
  if (!explanation) return step.error === null ? null : h("p", { class: "foreign-line" }, `${step.error}: ${step.message}`);
  const width = (count) => `width:${Math.max(0.6, (100 * count) / Math.max(1, step.prompt_tokens))}%`;
  const rung = (count, words, tone) =>
    h("li", { class: `rung t-${tone}` }, h("b", { class: "n" }, String(count)), h("span", { class: "bar" }, h("i", { style: width(count) })), h("span", {}, words));
  const sentences = explanation.sentences || [];
  return h(
    "ol",
    { class: "ladder", "aria-label": "how much was usable" },
    rung(explanation.equal, sentences[0] || `equal with ${explanation.equal_with}`, "plain"),
    step.why.map((each, i) => rung(each.to, (sentences[i + 1] || each.rule).replace(/: \d+ to \d+\.$/, "."), each.to < each.from ? "loss" : "gain")),
    explanation.ideal > explanation.equal && rung(explanation.ideal, "what a cache that had every state would have reused", "quiet"),
  );
}

/** What was generated, and whether a cold run would have said the same. */
function replyView(step) {
  if (!step.generated.length) return null;
  const rows = step.detail ? step.detail.logits : [];
  return h(
    "p",
    { class: "reply" },
    h("span", { class: "quiet" }, "reply "),
    step.generated.slice(0, 24).map((token, i) => {
      const row = rows[i];
      const wrong = row && row.difference > 0;
      const tip = row ? (wrong ? `token ${token}: logits off by ${number(row.difference)}; a cold run says ${row.cold}` : `token ${token}: the cold logits, bit for bit`) : `token ${token}`;
      return h("span", { class: `tok ${wrong ? "k-foreign" : row ? "k-reused" : "k-held"}`, "data-tip": tip }, h("b", {}, wrong ? "✗" : row ? "✓" : "."), String(token));
    }),
    step.generated.length > 24 && h("span", { class: "quiet" }, ` and ${step.generated.length - 24} more`),
  );
}

/** Cached and cold logits of one generated token, side by side with their difference. */
function logitsView({ step }) {
  const rows = step.detail ? step.detail.logits : [];
  if (!rows.length) return [quietLine(step.answer === null ? "Not compared." : "Nothing was generated.")];
  const holder = h("div", { class: "logits" });
  const first = Math.max(0, rows.findIndex((row) => row.difference > 0));
  const draw = (chosen) => {
    const row = rows[chosen];
    holder.replaceChildren(
      h(
        "p",
        { class: "chooser" },
        rows.map((each, i) =>
          h("button", { type: "button", "aria-pressed": String(i === chosen), class: each.difference > 0 ? "f-wrong" : "f-right", onclick: () => draw(i), "aria-label": `generated token ${i + 1}` }, `${each.difference > 0 ? "✗" : "✓"} ${i + 1}`)),
      ),
      h("p", {}, row.difference > 0
        ? [h("b", {}, `Off by ${number(row.difference)}. `), row.cached === row.cold ? `Both say token ${row.cold}.` : `The server says ${row.cached}, a cold run ${row.cold}.`]
        : [h("b", {}, "Bit for bit the cold logits. "), `Both say token ${row.cold}.`]),
      row.top.length > 0 && logitTable(row),
    );
  };
  draw(first);
  return [holder];
}

function logitTable(row) {
  const values = row.top.flatMap((each) => [each.cached, each.cold]);
  const low = Math.min(...values);
  const span = Math.max(...values) - low || 1;
  const bar = (value, kind) => h("td", { class: `n ${kind}` }, h("span", { class: "lbar" }, h("i", { style: `width:${(8 + (92 * (value - low)) / span).toFixed(1)}%` })), value.toFixed(3));
  return h(
    "table",
    { class: "logit-table" },
    h("thead", {}, h("tr", {}, ["token", "cached", "cold", "difference"].map((word, i) => h("th", { scope: "col", class: i ? "n" : "" }, word)))),
    h("tbody", {}, row.top.map((each) => {
      const off = each.cached - each.cold;
      const crowns = [each.token === row.cached ? "server" : "", each.token === row.cold ? "cold" : ""].filter(Boolean).join(", ");
      return h("tr", {}, h("th", { scope: "row" }, String(each.token), crowns && h("span", { class: "quiet" }, ` ← ${crowns}`)), bar(each.cached, "cached"), bar(each.cold, "cold"), h("td", { class: "n" }, off === 0 ? "0" : `${off > 0 ? "+" : "−"}${Math.abs(off).toFixed(3)}`));
    })),
  );
}

/** Events on either side of the cursor that are listed. */
const NEAR = 60;

/** The event list of a step; the cursor's line is marked. */
function eventsView({ step, event, choose }) {
  if (!step.events.length) return [quietLine(step.error === null ? "Nothing happened." : `${step.error}: ${step.message}`)];
  const first = Math.max(0, Math.min(event - NEAR, step.events.length - 2 * NEAR));
  const shown = step.events.slice(first, first + 2 * NEAR);
  const more = (count, where) => count > 0 && quietLine(`${plural(count, "event")} ${where}`);
  return [
    more(first, "before these"),
    h("ol", { class: "events" }, shown.map((each, k) => eventLine(each, first + k, event, choose))),
    more(step.events.length - first - shown.length, "after these"),
  ];
}

function eventLine(each, index, event, choose) {
  const tone = toneOf(each);
  return h(
    "li",
    { class: `t-${tone}`, "aria-current": index === event ? "step" : null },
    h(
      "button",
      { type: "button", onclick: () => choose(index) },
      h("span", { class: "glyph", "data-tip": TONES[tone] }, GLYPHS[tone]),
      h("span", { class: "what" }, eventName(each)),
      h("span", { class: "fields" }, eventFields(each).map(([name, value]) => h("span", {}, h("i", {}, name), ` ${value}`))),
    ),
  );
}
