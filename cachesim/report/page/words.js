// --- tones, fates and findings: all of them come with the data; the page only shows them

const GLYPHS = { loss: "–", gain: "+", warn: "!", plain: "|", quiet: "·" };
const TONES = {
  loss: "tokens were lost, or ruled out",
  gain: "something was saved, restored or loaded",
  warn: "kept or handed on, though it is not what it should be",
  plain: "a decision",
  quiet: "routine",
};

/** loss, gain, warn, plain or quiet. */
const toneOf = (event) => event.tone;
const checkpointWord = (each) => `${each.n_tokens ?? ""}[${each.pos_min}..${each.pos_max}]`;
const eventName = (event) => event.event.replaceAll("-", " ");

// --- verdicts

const ANSWERS = {
  same: ["matches", "✓"],
  rounding: ["rounding", "✓"],
  "by-design": ["by design", "≈"],
  diverged: ["WRONG", "✗"],
};

/** Worst first: a sign, a heading, and the class that gives the colour. */
const FATES = {
  wrong: ["✗", "Wrong answer", "wrong"],
  aborted: ["■", "The server crashes", "error"],
  hung: ["…", "The server hangs", "error"],
  refused: ["⊘", "Refused", "error"],
  failed: ["!", "Failed", "error"],
  "not-run": ["!", "Not run", "error"],
  "by-design": ["≈", "Differs by design", "lost"],
  lost: ["–", "Lost reuse", "lost"],
  right: ["✓", "Right answers", "right"],
};
const WORST_FIRST = Object.keys(FATES);

/** The class of a step's colour. */
const fateOf = (step) => FATES[step.finding.fate][2];

/** The verdict on one step: its title, what there is to say, and where to look. */
function finding(run, index) {
  const { fate, title, step, event } = run.steps[index].finding;
  const facts = run.steps[index].facts.filter((each) => !["wrong", "but with"].includes(each.word));
  const { evidence } = run.steps[index];
  if (evidence) facts.push({ word: "evidence", sentence: evidence });
  return { fate, title, facts, at: [step, event] };
}

/** Where else the same step went better. */
const betterFacts = (step) => step.facts.filter((each) => each.word === "but with");

/** The step of a run that matters most: a wrong answer, an error, the largest loss. */
function worstStep(run) {
  const rank = (step) => 1e9 * (WORST_FIRST.length - WORST_FIRST.indexOf(step.finding.fate)) + ((step.explanation || {}).lost || 0);
  let worst = 0;
  run.steps.forEach((step, index) => {
    if (rank(step) > rank(run.steps[worst])) worst = index;
  });
  return run.steps[worst].finding.fate === "right" ? null : worst;
}
