// --- what the server holds at the cursor: slots, cells, rows, checkpoints, prompt-cache entries

const SHORT = 96;

const card = (attributes, ...children) => h("div", { ...attributes, class: `card ${attributes.class || ""}` }, ...children);
const badge = (tone, text) => h("span", { class: `badge t-${tone}` }, text);
const changed = (now, before) => before !== undefined && !same(now, before);
const quietLine = (text) => h("p", { class: "quiet" }, text);

/** Everything drawn of one memory at one moment, with what changed since the last one marked. */
function memoryView(view) {
  const { run, state, previous, stepIndex } = view;
  if (!state) return [quietLine("What the server held here was left out of this report.")];
  if (!state.slots.length) return [quietLine("This server holds nothing in slots between requests.")];
  return state.slots.map((slot) => {
    const before = previous && previous.slots.find((each) => each.id === slot.id);
    const believed = spelled(run, slot.tokens);
    const mine = (memory) => memoryParts(view, memory, slot, believed);
    return h(
      "section",
      { class: "slot", "aria-label": `slot ${slot.id} on ${run.profile}` },
      h(
        "h4",
        {},
        `Slot ${slot.id} `,
        h("span", { class: "quiet" }, `${slot.state} · ${plural(sizeOf(slot.tokens), "token")}`),
        changed(slot.tokens, before && before.tokens) && h("span", { class: "mark" }, "changed"),
      ),
      mine(state.memory),
      state.companion && h("p", { class: "part" }, "companion"),
      state.companion && mine(state.companion),
      shelfView(view, slot, before, believed, stepIndex),
    );
  });
}

/** The attention cells and the recurrent rows of one slot. */
function memoryParts(view, memory, slot, believed) {
  const old = view.previous ? view.previous[memory === view.state.companion ? "companion" : "memory"] : null;
  const cells = memory.cells.map((part, i) => cellsView(view, part, old && old.cells[i], slot, believed));
  const rows = memory.rows
    .filter((row) => row.slots.includes(slot.id))
    .map((row) => rowView(view, row, old && old.rows.find((each) => each.row === row.row), slot, believed));
  return [...cells, ...rows];
}

function cellsView({ run, stepIndex }, part, before, slot, believed) {
  const runs = part.runs.filter((each) => each.slots.includes(slot.id));
  const old = before && before.runs.filter((each) => each.slots.includes(slot.id));
  if (!runs.length && part.stream !== 0 && part.stream !== slot.id) return null;
  const tokens = runs.flatMap((each) => {
    const known = each.holds.step !== undefined || each.holds.tokens;
    const held = known
      ? spelled(run, [each.holds])
      : Array.from({ length: each.count }, (_, i) => ({ ...(believed[each.position + i] || { token: "?", step: null }), part: "unknown" }));
    return heldTokens(run, held, believed, { first: each.position, step: stepIndex }).map((token, i) => ({
      ...token,
      note: [`cell ${each.cell + i}`, each.slots.length > 1 ? `shared by slots ${each.slots.join(", ")}` : "", token.note].filter(Boolean).join(" · "),
    }));
  });
  const count = runs.reduce((sum, each) => sum + each.count, 0);
  const where = runs.map((each) => `cells ${range(each.cell, each.count)} at positions ${range(each.position, each.count)}`);
  const title = part.part === "window" ? `Window attention, ${part.window} back` : "Attention";
  return h(
    "div",
    { class: "lane" },
    h(
      "p",
      { class: "part" },
      h("b", {}, title),
      ` ${plural(count, "cell")} of ${part.size}`,
      h("span", { class: "quiet", "data-tip": where.join("\n") }, where.length === 1 ? ` · ${where[0]}` : where.length ? ` · ${where.length} runs` : " · empty"),
      changed(runs, old || undefined) && h("span", { class: "mark" }, "changed"),
    ),
    foreignLine(tokens, "hold another token than the conversation has"),
    tokens.length > SHORT && scaleView(tokens),
    tokens.length > 0 && ribbonView(tokens),
  );
}

function rowView({ run, stepIndex }, row, before, slot, believed) {
  const tokens = row.tokens && heldTokens(run, spelled(run, row.tokens), believed, { step: stepIndex });
  return h(
    "div",
    { class: "lane" },
    h(
      "p",
      { class: "part" },
      h("b", {}, "Recurrent state"),
      ` row ${row.row}, at position ${row.position}`,
      tokens && h("span", { class: "quiet" }, ` · has processed ${plural(tokens.length, "token")}`),
      changed(row, before || undefined) && h("span", { class: "mark" }, "changed"),
    ),
    tokens && foreignLine(tokens, "processed that the conversation does not have"),
    tokens && tokens.length > row.position + 1 && !run.steps[stepIndex].truncated &&
      h("p", { class: "foreign-line" }, h("b", {}, "✗ "), `${plural(tokens.length - row.position - 1, "token")} more than its position tells.`),
    tokens && tokens.length > SHORT && scaleView(tokens),
    tokens && tokens.length > 0 && ribbonView(tokens),
  );
}

/** The words under a lane that holds what it should not. */
function foreignLine(tokens, what) {
  const strangers = tokens.filter((each) => each.letter === "^");
  if (!strangers.length) return null;
  const first = strangers[0];
  return h(
    "p",
    { class: "foreign-line" },
    h("b", {}, "✗ "),
    `${plural(strangers.length, "token")} ${what}: token ${first.token} of ${first.name} at position ${first.position}`,
    strangers.length > 1 ? " and more." : ".",
  );
}

// --- the checkpoint shelf

/** What became of each checkpoint in this step, up to the cursor. */
function checkpointNews(step, event, slot) {
  const news = new Map();
  const gone = [];
  for (const [index, each] of step.events.slice(0, event + 1).entries()) {
    if (!each.event.startsWith("checkpoint-") || each.pos_max === undefined || each.slot > -1 && each.slot !== slot.id) continue;
    const key = each.pos_min === undefined ? `..${each.pos_max}` : `${each.pos_min}..${each.pos_max}`;
    const note = checkpointNote(each);
    if (each.event === "checkpoint-created") news.set(key, []);
    news.set(key, [...(news.get(key) || []), note]);
    if (["checkpoint-erased", "checkpoint-dropped"].includes(each.event) && each.reason !== "superseded") {
      gone.push([each, news.get(key), index]);
    }
  }
  return { news, gone };
}

const checkpointNote = (event) => [event.tone, event.sentence];

function shelfView({ run, event, step, stepIndex }, slot, before, believed) {
  const { news, gone } = checkpointNews(step, event, slot);
  const cards = slot.checkpoints.map((each) => {
    const notes = news.get(`${each.pos_min}..${each.pos_max}`) || news.get(`..${each.pos_max}`) || [];
    const fresh = before && !before.checkpoints.some((old) => same(old, each));
    return checkpointCard(run, each, notes, believed, { maker: each.made_by, stepIndex, fresh });
  });
  for (const [each, notes, index] of gone) {
    const made = step.events.slice(index, event + 1).some((later) => later.event === "checkpoint-created" && later.pos_max === each.pos_max);
    if (made || !slot.checkpoints.some((kept) => kept.pos_max === each.pos_max)) {
      cards.push(checkpointCard(run, each, notes, [], { lost: true, stepIndex }));
    }
  }
  return h(
    "div",
    { class: "lane" },
    h("p", { class: "part" }, h("b", {}, "Checkpoints"), ` ${slot.checkpoints.length} on the shelf`),
    cards.length > 0 && h("div", { class: "shelf" }, cards),
  );
}

function checkpointCard(run, each, notes, believed, { maker = null, lost = false, fresh = false, stepIndex = null }) {
  const first = each.cells && each.cells.length ? each.cells[0].position : 0;
  const pieces = each.row || (each.cells || []).map((cells) => cells.holds).filter((holds) => holds.step !== undefined || holds.tokens);
  const tokens = heldTokens(run, spelled(run, pieces), believed, { first: each.row ? 0 : first, step: stepIndex });
  const foreign = tokens.some((token) => token.letter === "^");
  return card(
    { class: `${lost ? "gone" : ""} ${foreign ? "bad" : ""}` },
    h("p", { class: "card-title" }, h("code", {}, each.pos_min === undefined ? `..${each.pos_max}` : checkpointWord(each)), maker !== null && h("span", { class: "quiet" }, ` by ${run.steps[maker].name}`), fresh && h("span", { class: "mark" }, "new")),
    notes.map(([tone, text]) => badge(tone, `${GLYPHS[tone]} ${text}`)),
    tokens.length > 0 && h("p", { class: "quiet" }, `${each.row ? "state of" : "window cells of"} ${plural(tokens.length, "token")}, from ${sourceOf(run, pieces)}`),
    foreign && ribbonView(tokens.slice(0, WHOLE), { label: false }),
  );
}

// --- the prompt cache

/** Events that take a conversation out of the prompt cache. */
const TAKES = ["cache-entry-loaded", "prompt-loaded", "cache-entry-obsolete", "cache-entry-dropped", "prompt-evicted", "prompt-cache-consumed", "prompt-cache-evicted", "prompt-cache-pruned", "prompt-cache-replaced"];

/** What each prompt-cache entry went through in this step, up to the cursor; by its content. */
function cacheNews(run, step, last) {
  const notes = new Map();
  const gone = new Map();
  const note = (entry, tone, text) => entry && notes.set(JSON.stringify(entry), [...(notes.get(JSON.stringify(entry)) || []), [tone, text]]);
  let before = stateAfter(run, step, -1);
  let cause = ["loss", "gone"];
  let compared = 0;
  for (let i = 0; i <= last && before; i += 1) {
    const event = step.events[i];
    const now = stateAfter(run, step, i);
    compared = event.event === "cache-entry-compared" ? compared + 1 : 0;
    if (compared) note(now.prompt_cache[compared - 1], "plain", event.sentence);
    if (TAKES.includes(event.event)) cause = [event.tone, event.sentence];
    if (event.event === "cache-entry-loaded" && event.kept) {
      note(now.prompt_cache.find((entry) => entry.n_tokens === event.n_tokens), "gain", event.sentence);
    }
    if (event.event === "prompt-already-cached") {
      note(now.prompt_cache.find((entry) => entry.n_tokens >= event.n_tokens), "plain", event.sentence);
    }
    for (const entry of now.prompt_cache) if (!before.prompt_cache.some((each) => same(each, entry))) note(entry, "gain", "saved");
    for (const entry of before.prompt_cache) if (!now.prompt_cache.some((each) => same(each, entry))) gone.set(JSON.stringify(entry), [entry, cause]);
    before = now;
  }
  return { notes, gone };
}

function promptCacheView({ run, state, previous, step, event }) {
  if (!state) return [quietLine("Left out of this report.")];
  const { notes, gone } = cacheNews(run, step, event);
  const entries = state.prompt_cache.map((entry) => {
    const fresh = previous && !previous.prompt_cache.some((each) => same(each, entry));
    return entryCard(run, entry, notes.get(JSON.stringify(entry)) || [], { fresh });
  });
  const left = [...gone.values()]
    .filter(([entry]) => !state.prompt_cache.some((each) => same(each, entry)))
    .map(([entry, why]) => entryCard(run, entry, [...(notes.get(JSON.stringify(entry)) || []), why], { lost: true }));
  if (!entries.length && !left.length) return [quietLine("The prompt cache is empty.")];
  return [h("div", { class: "shelf" }, entries, left)];
}

function entryCard(run, entry, notes, { fresh = false, lost = false }) {
  const named = spelled(run, entry.tokens).map((each, position) => ({
    token: each.token, position, letter: ".", name: originOf(run, each),
  }));
  const facts = [entry.checkpoints ? plural(entry.checkpoints, "checkpoint") : "", bytes(entry.bytes), entry.kind];
  return card(
    { class: `${lost ? "gone" : ""} ${entry.holds.length ? "bad" : ""}` },
    h("p", { class: "card-title" }, h("span", {}, plural(entry.n_tokens, "token")), h("span", { class: "quiet" }, ` ${facts.filter(Boolean).join(" · ")}`), fresh && h("span", { class: "mark" }, "new")),
    h("p", { class: "parts" }, grouped(named).map((group) => h("span", { "data-tip": `tokens ${group.tokens.slice(0, 12).map((each) => each.token).join(" ")}${group.tokens.length > 12 ? " …" : ""}` }, h("b", {}, String(group.tokens.length)), ` ${group.name}`))),
    notes.map(([tone, text]) => badge(tone, `${GLYPHS[tone]} ${text}`)),
    entry.holds.map((each) => h("p", { class: "foreign-line" }, h("b", {}, "✗ "), `${each.place} holds ${plural(sizeOf(each.tokens), "token")}, not those of its key: ${sourceOf(run, each.tokens)}`)),
  );
}
