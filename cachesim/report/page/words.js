// --- events in words, and what they mean for the tokens that could be reused

const GLYPHS = { loss: "–", gain: "+", warn: "!", plain: "|", quiet: "·" };
const TONES = {
  loss: "tokens were lost, or ruled out",
  gain: "something was saved, restored or loaded",
  warn: "kept or handed on, though it is not what it should be",
  plain: "a decision",
  quiet: "routine",
};
const QUIET = ["batch-decoded", "cache-state", "memory-cut", "prompt-started", "model-called", "prompt-progress", "prompt-cache-update-begun"];
const LOSES = [
  "full-reprocessing", "cache-entry-dropped", "cache-load-failed", "slot-purged", "context-shifted",
  "checkpoint-refused", "checkpoint-reset", "checkpoint-erased", "full-reset", "companion-reset",
  "companion-failed", "companion-refused", "prompt-evicted", "prompt-load-failed", "request-refused",
  "prompt-cache-evicted", "prompt-cache-consumed", "prompt-cache-refused", "prompt-cache-pruned",
  "store-trimmed", "worker-died", "request-dropped", "slot-erased",
];
const GAINS = [
  "checkpoint-created", "checkpoint-restored", "prompt-saving", "prompt-saved", "prompt-loaded",
  "slot-saved", "slot-restored", "chunk-reused", "idle-slot-saved", "prompt-cache-inserted",
  "insertion", "parent-copied",
];

/** loss, gain, warn, plain or quiet. */
function toneOf(event) {
  const name = event.event;
  if (name === "checkpoint-kept" || event.sound === false || event.state_is_key === false) return "warn";
  if (name === "depth-tested") return event.pos_min >= event.threshold ? "loss" : "plain";
  if (name === "checkpoint-checked") return event.refused ? "loss" : "plain";
  if (name === "checkpoint-dropped") return event.reason === "superseded" ? "plain" : "loss";
  if (name === "cache-entry-loaded") return event.kept ? "gain" : "loss";
  if (name === "prompt-cleared") return event.n_tokens > 0 ? "loss" : "quiet";
  if (name === "memory-cut") return event.removed ? "quiet" : "loss";
  if (LOSES.includes(name)) return "loss";
  if (GAINS.includes(name)) return "gain";
  return QUIET.includes(name) ? "quiet" : "plain";
}

const checkpointWord = (each) => `${each.n_tokens ?? ""}[${each.pos_min}..${each.pos_max}]`;
const isSameCheckpoint = (one, other) =>
  ["n_tokens", "pos_min", "pos_max"].every((key) => !(key in one && key in other) || one[key] === other[key]);
const eventName = (event) => event.event.replaceAll("-", " ");

/** The fields of an event that a reader needs, as pairs of words. */
function eventFields(event) {
  const skipped = ["event", "slot", "task", "size", "size_companion", "key", "layers", "tone", "sentence"];
  const pairs = [];
  for (const [name, value] of Object.entries(event)) {
    if (skipped.includes(name) || value === "" || value === null) continue;
    if (["pos_min", "pos_max"].includes(name) && "n_tokens" in event && "pos_min" in event) continue;
    if (name === "n_tokens" && "pos_min" in event && "pos_max" in event) {
      pairs.push(["checkpoint", checkpointWord(event)]);
    } else if (typeof value === "number") pairs.push([name, number(value)]);
    else if (typeof value === "boolean") pairs.push([name, value ? "yes" : "no"]);
    else if (Array.isArray(value)) pairs.push([name, value.length > 8 ? `${value.length} values` : value.flat().join(" ")]);
    else if (typeof value === "object") pairs.push([name, Object.keys(value).join(" ") || "none"]);
    else pairs.push([name, value]);
  }
  return pairs;
}

const eventWords = (event) =>
  [eventName(event), ...eventFields(event).map(([name, value]) => `${name} ${value}`)].join("  ");

// --- verdicts

const ANSWERS = {
  same: ["same", "✓"],
  rounding: ["rounding", "✓"],
  "by-design": ["by design", "≈"],
  diverged: ["WRONG", "✗"],
};

/** What a step came to, as one word for its colour. */
function fateOf(step) {
  if (step.error !== null) return step.error === "cancelled" ? "right" : "error";
  if (step.answer === "diverged") return "wrong";
  if (step.answer === "by-design") return "lost";
  return step.reuse === "lost" && step.explanation && step.explanation.lost > 1 ? "lost" : "right";
}

/** Where a wrong memory comes from, in a sentence. */
function because(fault) {
  if (!fault) return "";
  const places = { recurrent: "recurrent state", attention: "attention", window: "window" };
  const where = `The ${places[fault.place]} of layer ${fault.layer}`;
  if (fault.holds === null) return `${where} holds nothing where token ${fault.expected} belongs.`;
  const whose = fault.comes_from ? ` (${fault.comes_from})` : "";
  const verb = fault.place === "recurrent" ? "has folded in" : "holds";
  const found = `${where} ${verb} token ${fault.holds}${whose} at position ${fault.position}`;
  if (fault.expected === null) return `${found}, which is no place of this prompt.`;
  return `${found}, where this prompt has ${fault.expected}.`;
}

/** All events of a run up to a step and event, newest first. */
function* past(run, step, event) {
  for (let i = step; i >= 0; i -= 1) {
    const events = run.steps[i].events;
    for (let k = i === step ? event : events.length - 1; k >= 0; k -= 1) yield [i, events[k]];
  }
}

/** The step that made a checkpoint, as far back as an event. */
function makerOf(run, step, event, checkpoint) {
  for (const [i, each] of past(run, step, event)) {
    if (each.event === "checkpoint-created" && isSameCheckpoint(each, checkpoint)) return i;
  }
  return null;
}

/** How a checkpoint that led astray came to be there. */
function slipped(run, index) {
  const step = run.steps[index];
  const at = step.events.findIndex((each) => each.event === "checkpoint-restored");
  if (at < 0 || step.answer !== "diverged") return [];
  const restored = step.events[at];
  const word = checkpointWord(restored);
  const maker = makerOf(run, index, at, restored);
  const lines = [`Checkpoint ${word}${maker === null ? "" : `, made by step ${run.steps[maker].name},`} was restored.`];
  for (const [i, each] of past(run, index, at)) {
    if (each.event === "checkpoint-created" && isSameCheckpoint(each, restored)) break;
    if (each.event === "checkpoint-kept" && isSameCheckpoint(each, restored)) {
      lines.push(
        `Step ${run.steps[i].name} shares ${plural(each.shared, "token")} with it and kept it. ` +
          `Rule: erase if ${each.rule}. Here ${each.numbers} is false.`,
      );
    }
  }
  return lines;
}

/** Which earlier step took a parked conversation that this one would have needed: [step, event]. */
function consumer(run, index) {
  const explanation = run.steps[index].explanation;
  if (!explanation || explanation.ideal <= explanation.equal) return null;
  for (let i = index - 1; i >= 0; i -= 1) {
    const at = run.steps[i].events.findIndex(
      (each) => each.event === "cache-entry-loaded" && !each.kept && each.n_tokens >= explanation.ideal,
    );
    if (at >= 0) return [i, at];
  }
  return null;
}

/** The verdict on one step: a heading, a cause, and where to look. */
function finding(run, index) {
  const step = run.steps[index];
  const explanation = step.explanation || {};
  const fate = fateOf(step);
  if (fate === "error") return { fate, title: `Step ${step.name}: ${step.error}`, cause: [step.message], at: [index, step.events.length - 1] };
  if (fate === "wrong") {
    const wrong = explanation.wrong;
    const what = wrong
      ? wrong.token === wrong.cold
        ? ` Generated token ${wrong.step + 1} is the right one by luck; its logits are off by ${number(wrong.difference)}.`
        : ` It says token ${wrong.token} where a cold run says ${wrong.cold}; logits are off by ${number(wrong.difference)}.`
      : "";
    const at = step.events.findIndex((each) => ["checkpoint-restored", "cache-entry-loaded", "prompt-loaded"].includes(each.event));
    return {
      fate,
      title: `Step ${step.name} gets a wrong answer.${what}`,
      cause: [because(explanation.fault), ...slipped(run, index)],
      at: [index, at < 0 ? step.events.length - 1 : at],
    };
  }
  if (step.answer === "by-design") {
    return { fate, title: `Step ${step.name}: the answer differs, by design of the server.`, cause: explanation.sentences || [], at: [index, 0] };
  }
  const taken = consumer(run, index);
  const causes = (explanation.sentences || []).slice();
  if (taken) {
    const [i, at] = taken;
    const shared = (run.steps[i].explanation || {}).equal;
    causes.push(
      `Step ${run.steps[i].name} had loaded the parked ${plural(run.steps[i].events[at].n_tokens, "token")} for the ` +
        `${shared} it shares with them. The entry left the prompt cache, and the rest was overwritten.`,
    );
  }
  const first = step.events.findIndex((each) => toneOf(each) === "loss");
  return {
    fate,
    title: `Step ${step.name} reuses ${step.cached} of ${step.prompt_tokens} tokens; a cache that had every state would have reused ${explanation.ideal}.`,
    cause: causes,
    at: taken || [index, Math.max(0, first)],
  };
}

/** The step of a run that matters most: a wrong answer, an error, the largest loss. */
function worstStep(run) {
  const rank = (step) => {
    const fate = fateOf(step);
    if (fate === "wrong") return 1e12;
    if (fate === "error") return 1e11;
    if (step.answer === "by-design") return 1e10;
    return fate === "lost" ? step.explanation.lost : 0;
  };
  let worst = 0;
  run.steps.forEach((step, index) => {
    if (rank(step) > rank(run.steps[worst])) worst = index;
  });
  return rank(run.steps[worst]) ? worst : null;
}
