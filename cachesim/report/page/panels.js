// --- the page from the top: verdict, outcomes, then what hangs on the cursor

/** Profiles of which the same is to be said share one finding; the worst comes first. */
function findings(runs) {
  const told = new Map();
  for (const run of runs) {
    const worst = worstStep(run);
    if (worst === null) continue;
    const found = finding(run, worst);
    const key = JSON.stringify([found.title, found.facts.map((each) => each.sentence)]);
    if (!told.has(key)) told.set(key, { ...found, runs: [], step: worst });
    told.get(key).runs.push(run);
  }
  return [...told.values()].sort((one, other) => WORST_FIRST.indexOf(one.fate) - WORST_FIRST.indexOf(other.fate));
}

/** The verdict, then, in a place of its own, where the same step went better. */
function verdictView(runs, go) {
  const found = findings(runs);
  const overall = found.length ? found[0].fate : "right";
  const [sign, word, colour] = FATES[overall];
  const verdict = h(
    "section",
    { class: `verdict v-${colour}`, "aria-label": "verdict" },
    h("p", { class: "verdict-word" }, h("b", { "aria-hidden": "true" }, sign), ` ${word}`),
    found.length === 0 && h("p", { class: "lead" }, flawless(runs)),
    found.map((each) =>
      h(
        "div",
        { class: `finding ${each.fate === overall ? "" : "lesser"}` },
        h("p", { class: "lead" }, each.title),
        each.facts.map((fact, i) => h("p", { class: i === 0 ? "cause" : "cause more" }, h("span", { class: "quiet" }, `${fact.word} `), fact.sentence)),
        h(
          "p",
          { class: "who" },
          `On ${each.runs.map((run) => run.profile).join(", ")}. `,
          h("button", { type: "button", class: "link", onclick: () => go(each.runs[0], ...each.at) }, "See it happen →"),
        ),
      ),
    ),
  );
  const better = found.length ? betterFacts(found[0].runs[0].steps[found[0].step]) : [];
  if (!better.length) return [verdict];
  const step = found[0].runs[0].steps[found[0].step].name;
  return [
    verdict,
    h(
      "section",
      { class: "verdict v-right better", "aria-label": "where it goes better" },
      better.map((fact) => h("p", { class: "but" }, h("b", {}, "✓ "), `request ${step} with ${fact.sentence}`)),
    ),
  ];
}

/** What is to be said where nothing is wrong. */
function flawless(runs) {
  const steps = runs.flatMap((run) => run.steps);
  if (steps.every((step) => step.answer === null)) return "No answer was compared with an uncached run.";
  const missed = steps.some((step) => step.reuse === "lost");
  const which = runs.some((run) => run.cut) ? "Every answer on this page" : "Every answer";
  return `${which} matches the uncached run, and ${missed ? "hardly a token" : "all"} that could be reused was ${missed ? "lost" : "reused"}.`;
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
    { type: "button", class: `outcome f-${fate}`, "aria-label": `request ${step.name} on ${run.profile}: ${words.join(" ")}`, onclick: () => go(run, index, null) },
    words.map((word, i) => h("span", {}, i ? ` ${word}` : word)),
  );
}

function outcomeWords(step) {
  const { fate } = step.finding;
  if (step.error !== null && FATES[fate][2] === "error") return [fate === "refused" || fate === "failed" ? `${fate}: ${step.error}` : FATES[fate][1]];
  if (step.do !== "complete") return ["done"];
  if (step.cached === null) return ["cancelled"];
  const lost = step.reuse === "lost" ? `, ${missedOf(step)} lost` : "";
  const answer = step.answer === null ? "" : `${ANSWERS[step.answer][1]} ${ANSWERS[step.answer][0]}`;
  return [`${step.cached} cached${lost}`, answer];
}

// --- one profile at the cursor

function promptView({ run, step }) {
  if (step.do !== "complete") return [quietLine(`${step.do}: no prompt.`)];
  if (!step.detail || !step.detail.prompt.length) return [quietLine(step.prompt_tokens ? `The prompt's ${step.prompt_tokens} tokens were left out of this report.` : "No prompt.")];
  const tokens = promptTokens(run, step);
  const counts = { "=": 0, "^": 0, "?": 0, "~": 0, "+": 0 };
  for (const each of tokens) counts[each.letter] += 1;
  const words = [["=", "cached"], ["^", "cached but foreign"], ["?", "missing in memory"], ["~", "prefilled again"], ["+", "prefilled"]]
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
  if (!explanation) return step.error === null ? null : h("p", { class: "foreign-line" }, step.finding.title);
  const width = (count) => `width:${Math.max(0.6, (100 * count) / Math.max(1, step.prompt_tokens))}%`;
  const rung = (count, words, tone) =>
    h("li", { class: `rung t-${tone}` }, h("b", { class: "n" }, String(count)), h("span", { class: "bar" }, h("i", { style: width(count) })), h("span", {}, words));
  return h(
    "ol",
    { class: "ladder", "aria-label": "how much was usable" },
    rung(explanation.equal, explanation.sentences[0], "plain"),
    step.why.map((each) => rung(each.to, `${each.sentence}.`, each.to < each.from ? "loss" : "gain")),
    step.facts.filter((each) => each.word === "ideal").map((each) => rung(each.fields.ideal, each.sentence, "quiet")),
  );
}

/** What was generated, and whether an uncached run would have said the same. */
function replyView(step) {
  if (!step.generated.length) return null;
  const rows = step.detail ? step.detail.logits : [];
  return h(
    "p",
    { class: "reply" },
    h("span", { class: "quiet" }, step.forced ? "reply, given by the scenario " : "reply "),
    step.generated.slice(0, 24).map((token, i) => {
      const row = rows[i];
      const wrong = row && row.difference > 0;
      const says = step.forced ? `forced; the server would generate ${row ? row.cached : "?"}` : "answered";
      const tip = row ? `token ${token}, ${says}: ${wrong ? `logits off by ${number(row.difference)}; an uncached run generates ${row.cold}` : "the uncached logits, bit for bit"}` : `token ${token}`;
      return h("span", { class: `tok ${wrong ? "k-foreign" : row ? "k-cached" : "k-held"}`, "data-tip": tip }, h("b", {}, wrong ? "✗" : row ? "✓" : "."), String(token));
    }),
    step.generated.length > 24 && h("span", { class: "quiet" }, ` and ${step.generated.length - 24} more`),
  );
}

/** Cached and uncached logits of one generated token, side by side with their difference. */
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
        ? [h("b", {}, `Off by ${number(row.difference)}. `), row.cached === row.cold ? `Both say token ${row.cold}.` : `The server says ${row.cached}, an uncached run ${row.cold}.`]
        : [h("b", {}, "Bit for bit the uncached logits. "), `Both say token ${row.cold}.`]),
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
    h("thead", {}, h("tr", {}, ["token", "cached", "uncached", "off"].map((word, i) => h("th", { scope: "col", class: i ? "n" : "" }, word)))),
    h("tbody", {}, row.top.map((each) => {
      const off = each.cached - each.cold;
      const crowns = [each.token === row.cached ? "server" : "", each.token === row.cold ? "right" : ""].filter(Boolean).join(", ");
      return h("tr", {}, h("th", { scope: "row" }, String(each.token), crowns && h("span", { class: "quiet" }, ` ← ${crowns}`)), bar(each.cached, "cached"), bar(each.cold, "cold"), h("td", { class: "n" }, off === 0 ? "0" : `${off > 0 ? "+" : "−"}${Math.abs(off).toFixed(3)}`));
    })),
  );
}

/** Events on either side of the cursor that are listed. */
const NEAR = 60;

/** The event list of a step; the cursor's line is marked. */
function eventsView({ step, event, choose }) {
  if (!step.events.length) return [quietLine(step.error === null ? "Nothing happened." : step.finding.title)];
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
      h("span", { class: "fields" }, each.sentence),
    ),
  );
}
