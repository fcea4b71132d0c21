// A request in moments: one picture at a time, with the rule that decides.
"use strict";

const SVG = "http://www.w3.org/2000/svg";
const PACE = 1600; // milliseconds of a moment

/** A drawing that Python made; it escapes every text. */
const drawing = (text) => document.importNode(new DOMParser().parseFromString(text, "image/svg+xml").documentElement, true);

class Player {
  constructor(load) {
    this.load = load;
    this.data = null;
    this.timer = 0;
    this.whole = false; // every row of memory is shown, and not only those that matter to the request
    byId("rows").addEventListener("click", () => { this.whole = !this.whole; this.show(this.at); });
    byId("which").addEventListener("change", () => this.open(Number(byId("which").value)));
    byId("moment").addEventListener("input", () => { this.stop(); this.show(Number(byId("moment").value)); });
    byId("back").addEventListener("click", () => { this.stop(); this.show(this.at - 1); });
    byId("on").addEventListener("click", () => { this.stop(); this.show(this.at + 1); });
    byId("go").addEventListener("click", () => (this.timer ? this.stop() : this.go()));
  }

  /** The requests of a run; the one that matters most is shown first, at the moment that decides it. */
  async begin(names, worst) {
    this.stop();
    byId("player").hidden = names.length === 0;
    byId("which").replaceChildren(...names.map((name, i) => h("option", { value: i, selected: i === worst }, name)));
    if (names.length) await this.open(worst);
  }

  async open(index) {
    this.stop();
    const data = await this.load(index);
    if (!data || !data.frames || !data.frames.length) { byId("player").hidden = true; return; }
    this.data = data;
    byId("moment").max = data.frames.length - 1;
    this.at = -1;
    this.show(data.begin);
  }

  show(at) {
    if (!this.data) return;
    const { frames, pool } = this.data;
    const before = this.at >= 0 ? new Set(frames[this.at].rows.map((i) => pool[i])) : null;
    this.at = Math.max(0, Math.min(frames.length - 1, at));
    const { word, sentence } = frames[this.at];
    const shown = this.shown(frames[this.at]);
    byId("rows").hidden = frames.every(({ short }) => !short.length);
    byId("rows").setAttribute("aria-expanded", String(this.whole));
    byId("rows").textContent = this.whole ? "Show the rows that matter" : "Show all rows of memory";
    byId("moment").value = this.at;
    byId("moment").setAttribute("aria-valuetext", `${this.at + 1} of ${frames.length}: ${word}`);
    byId("back").disabled = this.at === 0;
    byId("on").disabled = this.at === frames.length - 1;
    byId("sentence").replaceChildren(h("b", {}, `${this.at + 1}/${frames.length} ${word}`), ` ${sentence}`);
    byId("frame").replaceChildren(this.picture(shown.map((i) => pool[i]), before, `${word}: ${sentence}`));
  }

  /** The rows of a moment: those that matter, or all of them. */
  shown({ rows, short }) {
    return this.whole || !short.length ? rows : short.map((i) => rows[i]);
  }

  picture(rows, before, name) {
    const { line, foot, axis, legend, note, hatches } = this.data;
    const most = Math.max(...this.data.frames.map((each) => this.shown(each).length));
    const end = most * line + 4;
    const drawn = rows.map((row, i) => `<svg class="r${before && !before.has(row) ? " changed" : ""}" y="${i * line}" width="100%" height="${line}">${row}</svg>`).join("");
    const svg = drawing(`<svg xmlns="${SVG}" class="cs-pic" role="img" width="100%" height="${end + foot + note}">${hatches}${drawn}<svg y="${end}" width="100%" height="${foot}">${axis}</svg><svg y="${end + foot}" width="100%" height="${note}">${legend}</svg></svg>`);
    const told = [...svg.querySelectorAll(".r")].map((row) => `${row.querySelector(".l").textContent}: ${[...row.querySelectorAll("title")].map((each) => each.textContent).join("; ") || "empty"}`);
    const [title, about] = ["title", "desc"].map((tag) => document.createElementNS(SVG, tag));
    title.textContent = name;
    about.textContent = told.join(". ");
    svg.setAttribute("aria-label", name);
    svg.prepend(title, about);
    return svg;
  }

  go() {
    if (!this.data) return;
    if (this.at === this.data.frames.length - 1) this.show(this.data.begin);
    byId("player").scrollIntoView({ block: "nearest" });
    this.timer = window.setInterval(() => {
      this.show(this.at + 1);
      if (this.at === this.data.frames.length - 1) this.stop();
    }, PACE);
    byId("go").textContent = "Pause";
    byId("go").setAttribute("aria-pressed", "true");
  }

  stop() {
    window.clearInterval(this.timer);
    this.timer = 0;
    byId("go").textContent = "Play";
    byId("go").setAttribute("aria-pressed", "false");
  }
}
