// --- runs of tokens, drawn as small boxes; long ones keep their ends

const CLASSES = {
  "=": ["cached", "prefilled for an earlier request, taken from cache"],
  "~": ["prefilled again", "lost: an ideal cache would have had it"],
  "+": ["prefilled", "run through the model now"],
  "^": ["foreign", "memory holds another token here"],
  "?": ["missing", "memory holds nothing here"],
  "-": ["cut", "held before, cut away"],
  ".": ["held", "held, untouched"],
};
/** The class of a letter in the style sheet. */
const lookOf = (letter) => `k-${CLASSES[letter][0].replace(" ", "-")}`;
const WHOLE = 26;
const HEAD = 8;
const TAIL = 4;
const MOST = 600;

/** What is said of one token when it is pointed at. */
function tokenTip(each) {
  const lines = [`token ${each.token} · position ${each.position} · ${CLASSES[each.letter][0]}`];
  if (each.name) lines.push(each.name);
  if (each.note) lines.push(each.note);
  return lines.join("\n");
}

const box = (each) =>
  h("span", { class: `tok ${lookOf(each.letter)}`, "data-tip": tokenTip(each) }, h("b", {}, each.letter), String(each.token));

/** Neighbours of one letter and one name. */
function grouped(tokens) {
  const groups = [];
  for (const each of tokens) {
    const last = groups[groups.length - 1];
    if (last && last.letter === each.letter && last.name === each.name) last.tokens.push(each);
    else groups.push({ letter: each.letter, name: each.name, tokens: [each] });
  }
  return groups;
}

/** One group: its name, how many, and the tokens or their ends. */
function groupView(group, { label = true } = {}) {
  const { tokens, letter } = group;
  const [word] = CLASSES[letter];
  const boxes = h("span", { class: "boxes" });
  const draw = (open) => {
    const whole = tokens.length <= WHOLE;
    const shown = whole || open ? tokens.slice(0, MOST) : tokens.slice(0, HEAD);
    boxes.replaceChildren(...shown.map(box));
    const rest = tokens.length - shown.length - (whole || open ? 0 : TAIL);
    if (rest > 0) {
      const text = `⋯ ${rest} ⋯`;
      boxes.append(
        open
          ? h("span", { class: "rest" }, text)
          : h("button", { type: "button", class: "rest", "aria-label": `show ${rest} more ${word} tokens`, onclick: () => draw(true) }, text),
      );
      if (!open) boxes.append(...tokens.slice(-TAIL).map(box));
    }
  };
  draw(false);
  const words = `${word} ${tokens.length}${group.name ? `, ${group.name}` : ""}`;
  return h(
    "span",
    { class: `group ${lookOf(letter)}`, role: "group", "aria-label": words },
    label && h("span", { class: "label" }, h("i", {}, `${letter}`), ` ${word} ${tokens.length}`, group.name && h("em", {}, group.name)),
    boxes,
  );
}

const ribbonView = (tokens, options) =>
  h("div", { class: "ribbon" }, grouped(tokens).map((group) => groupView(group, options)));

/** A bar to scale, for the eye that wants proportions before tokens. */
function scaleView(tokens) {
  const groups = grouped(tokens);
  return h(
    "div",
    { class: "scale", "aria-hidden": "true" },
    groups.map((group) =>
      h(
        "span",
        {
          class: lookOf(group.letter),
          style: `flex-grow:${group.tokens.length}`,
          "data-tip": `${CLASSES[group.letter][0]} ${group.tokens.length}\n${group.name || ""}`,
        },
        group.letter,
      ),
    ),
  );
}

/** The number in the column `lost`, which is drawn as prefilled again. */
const missedOf = (step) => (step.reuse === "lost" && step.explanation ? step.explanation.lost : 0);

/** The prompt of a step, each token with its letter. */
function promptTokens(run, step) {
  const foreign = foreignTokens(run, step);
  const due = (step.cached || 0) + missedOf(step);
  return step.detail.prompt.map((token, position) => {
    const stranger = foreign.get(position);
    const letter = stranger ? (stranger.token === null ? "?" : "^") : position < (step.cached || 0) ? "=" : position < due ? "~" : "+";
    const note = !stranger
      ? ""
      : stranger.token === null
        ? `${stranger.place} holds nothing here`
        : `${stranger.place} holds token ${stranger.token}, from ${originOf(run, stranger)}`;
    return { token, position, letter, name: partAt(step, position), note };
  });
}

const originOf = (run, token) =>
  token.from ? token.from : token.step === null || token.step === undefined ? "no request" : `request ${run.steps[token.step].name}, ${token.part}`;

/** Tokens held in memory, compared with those that the slot thinks it holds. */
function heldTokens(run, held, believed, { first = 0, step = null } = {}) {
  return held.map((each, i) => {
    const position = first + i;
    const right = believed && believed[position];
    const foreign = right !== undefined && right !== null && right.token !== each.token;
    const own = right && !foreign && right.step !== null ? right : each;
    return {
      token: each.token,
      position,
      letter: foreign ? "^" : each.step === step ? "+" : ".",
      name: originOf(run, foreign ? each : own),
      note: foreign
        ? `the slot's tokens have ${right.token} here`
        : each.step !== null && own.step !== each.step
          ? `first computed by request ${run.steps[each.step].name}`
          : "",
    };
  });
}
