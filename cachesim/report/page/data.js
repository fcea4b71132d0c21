"use strict";

// --- the data: equal parts were written once, and are put back here

const packed = JSON.parse(document.getElementById("data").textContent);
const pool = [];
const revived = (value) => {
  if (Array.isArray(value)) return value.map(revived);
  if (value === null || typeof value !== "object") return value;
  if ("$" in value) return typeof value.$ === "number" ? pool[value.$] : mapped(value.$);
  return mapped(value);
};
const mapped = (value) =>
  Object.fromEntries(Object.entries(value).map(([key, each]) => [key, revived(each)]));
for (const each of packed.pool) pool.push(revived(each));
const RUNS = revived(packed.document).runs;

// --- small tools

/** An element with attributes and children; texts go in as texts, never as markup. */
function h(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "style") element.style.cssText = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat(9).filter((each) => each !== null && each !== undefined && each !== false && each !== ""));
  return element;
}

const plural = (count, word) => `${count} ${word}${count === 1 ? "" : "s"}`;
const shortProfile = (profile) => profile.slice(profile.indexOf("@") + 1) || profile;
const same = (one, other) => JSON.stringify(one) === JSON.stringify(other);
const range = (first, count) => (count === 1 ? `${first}` : `${first}–${first + count - 1}`);
const bytes = (n) => (n < 1000 ? `${n} B` : n < 1e6 ? `${(n / 1e3).toFixed(0)} kB` : `${(n / 1e6).toFixed(1)} MB`);

function number(value) {
  if (!Number.isFinite(value)) return String(value);
  if (Number.isInteger(value)) return String(value);
  return Math.abs(value) >= 1e-3 ? value.toPrecision(3) : value.toExponential(1);
}

// --- tokens: every piece of memory names the step whose tokens it holds

/** The tokens of a step: its prompt, then what it generated. */
const textOf = (step) => (step.detail ? step.detail.prompt : []).concat(step.generated);

/** The name of the part of a step that a token lies in. */
function partAt(step, at) {
  const part = (step.detail ? step.detail.parts : []).find((each) => each.start <= at && at < each.end);
  return part ? part.name : step.detail && at >= step.detail.prompt.length ? "reply" : "prompt";
}

const texts = new Map();

/** Every token of a step, with the step, its place, and the part it lies in; made once. */
function tokensOf(run, index) {
  const key = `${RUNS.indexOf(run)} ${index}`;
  if (!texts.has(key)) {
    const step = run.steps[index];
    texts.set(key, textOf(step).map((token, at) => ({ token, step: index, at, part: partAt(step, at) })));
  }
  return texts.get(key);
}

/** Pieces as tokens. */
const spelled = (run, pieces) =>
  (pieces || []).flatMap((piece) =>
    piece.tokens
      ? piece.tokens.map((token) => ({ token, step: null, at: null, part: "of no step" }))
      : tokensOf(run, piece.step).slice(piece.at, piece.at + piece.count),
  );

const sizeOf = (pieces) =>
  (pieces || []).reduce((sum, piece) => sum + (piece.tokens ? piece.tokens.length : piece.count), 0);

/** Where tokens come from, in words: `A · hello`. */
function sourceOf(run, pieces) {
  const names = [];
  for (const piece of pieces || []) {
    const step = piece.tokens ? null : run.steps[piece.step];
    const name = step ? step.name : "no request";
    if (names[names.length - 1] !== name) names.push(name);
  }
  return names.length > 3 ? `${names.slice(0, 3).join(", ")} …` : names.join(", then ");
}

const stateAt = (run, index) => (run.detail && run.detail.states[index]) || null;

/** The state after the event with this number in a step; before all events for -1. */
function stateAfter(run, step, event) {
  if (!step.detail) return null;
  return stateAt(run, event < 0 ? step.detail.before : step.detail.at[event]);
}

/** The state that a step left behind. */
const lastState = (run, step) => stateAfter(run, step, step.events.length - 1);

/** Tokens of a prompt in whose place the memory behind the answer holds another, by position. */
function foreignTokens(run, step) {
  const found = new Map();
  const fault = step.explanation && step.explanation.fault;
  if (fault && (fault.holds === null || fault.position < step.cached)) {
    const place = { recurrent: "the recurrent state", attention: "attention", window: "the window" }[fault.place];
    found.set(fault.position, { token: fault.holds, place, from: fault.comes_from });
  }
  const state = lastState(run, step);
  if (!state || step.slot === null || step.answer === "by-design" || step.truncated) return found;
  const text = textOf(step);
  const note = (position, token, place) => {
    if (position < step.cached && position < text.length && token.token !== text[position]) {
      found.set(position, { ...token, place });
    }
  };
  for (const row of state.memory.rows.filter((each) => each.slots.includes(step.slot))) {
    spelled(run, row.tokens).forEach((token, position) => note(position, token, "the recurrent state"));
  }
  for (const part of state.memory.cells) {
    for (const cells of part.runs.filter((each) => each.slots.includes(step.slot))) {
      spelled(run, cells.holds.count && cells.holds.step === undefined ? [] : [cells.holds]).forEach(
        (token, i) => note(cells.position + i, token, part.part === "window" ? "the window" : "attention"),
      );
    }
  }
  return found;
}
