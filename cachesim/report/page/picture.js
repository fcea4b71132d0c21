// --- the picture of memory: rows that Python has drawn, put below each other

const SVG = "http://www.w3.org/2000/svg";
const BAR = '<g class="c">';

/** A row with the bars outlined that were not there a moment ago. */
function outlined(row, before) {
  if (before === null) return row;
  return row.split(BAR).map((part, i) => (i === 0 ? part : (before.includes(part) ? BAR : '<g class="c changed">') + part)).join("");
}

let whole = false; // every row of memory is shown, and not only those that matter to the request

/** The picture as an element: what the request got, then what the server holds. */
function pictureView(run, step, number, previous) {
  const { line, foot, axis, legend, note, requests, states, short } = run.picture;
  const held = number >= 0 ? states[number] : null;
  if (!held) return h("p", { class: "quiet" }, "What the server held here was left out of this report.");
  const old = previous >= 0 && states[previous] ? states[previous].flat().join("") : null;
  const chosen = whole ? undefined : short[step][number];
  const rows = [...requests[step].flat(), ...held.flat().filter((_, i) => !chosen || chosen.includes(i)).map((row) => outlined(row, old))];
  const high = rows.length * line + foot + note;
  const drawn = rows.map((row, i) => `<svg class="r" x="0" y="${i * line}" width="100%" height="${line}">${row}</svg>`).join("");
  const name = `Memory at request ${run.steps[step].name}`;
  const text = `<svg xmlns="${SVG}" class="cs-pic" role="img" width="100%" height="${high}">${drawn}<svg x="0" y="${rows.length * line}" width="100%" height="${foot}">${axis}</svg><svg x="0" y="${high - note}" width="100%" height="${note}">${legend}</svg></svg>`;
  const found = new DOMParser().parseFromString(text, "image/svg+xml").documentElement;
  const told = [...found.querySelectorAll(".r")].map((row) => `${row.querySelector(".l").textContent}: ${[...row.querySelectorAll("title")].map((each) => each.textContent).join("; ") || "empty"}`);
  const [title, about] = ["title", "desc"].map((tag) => document.createElementNS(SVG, tag));
  title.textContent = name;
  about.textContent = told.join(". ");
  found.setAttribute("aria-label", name);
  found.prepend(title, about);
  return document.importNode(found, true);
}

/** The button that opens the picture to all rows, and closes it again. */
function rowsButton(run, step, number) {
  if (number < 0 || !run.picture.states[number] || !run.picture.short[step][number]) return null;
  return h("button", { type: "button", id: "rows", "aria-expanded": String(whole), onclick: () => { whole = !whole; drawStage(); byId("rows").focus(); } }, whole ? "Show the rows that matter" : "Show all rows of memory");
}

/** The walk to what went wrong, as links; the one at the cursor is marked. */
function chainView(run, index) {
  const links = run.picture.chains[index];
  if (!links.length) return null;
  return h(
    "ol",
    { class: "chain", "aria-label": "how it came to this" },
    links.map((link) => {
      const here = link.step === at.step && eventAt(runs.indexOf(run) === at.right ? 1 : 0).event === link.event;
      return h("li", {}, h("button", { type: "button", "aria-current": here ? "step" : null, onclick: () => goTo(run, link) }, h("b", {}, link.word), h("span", { class: "quiet" }, ` request ${run.steps[link.step].name}: `), link.sentence));
    }),
  );
}

/** The step whose walk is shown: the worst of the run. */
const chainStep = (run) => worstStep(run) ?? at.step;

function goTo(run, link) {
  const side = runs.indexOf(run) === at.left ? 0 : 1;
  place(link.step, Math.max(0, rows[link.step].findIndex((pair) => pair[side] === link.event)));
}

/** One station further on the walk; after the last comes the first. */
function walk() {
  const run = shownRuns()[0];
  const links = run.picture.chains[chainStep(run)];
  if (!links.length) return say("Nothing went wrong here.");
  const here = eventAt(0).event;
  const now = links.findIndex((link) => link.step === at.step && link.event === here);
  const next = (now + 1) % links.length;
  goTo(run, links[next]);
  return say(`${next + 1} of ${links.length}: ${links[next].word}`);
}

/** The other profile in the same picture. */
function swap() {
  if (at.right === null) return say("There is one profile only.");
  [at.left, at.right] = [at.right, at.left];
  return story();
}
