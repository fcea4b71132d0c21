// The first screen: five frames that play once and stop; a slider and the fix choose another run.
"use strict";

const first = document.querySelector(".first");
const { lengths, stories, replies, pool } = JSON.parse(first.querySelector("script").textContent);
const [slider, fix, play, said] = ["[type=range]", "[type=checkbox]", ".play", ".said"].map((each) => first.querySelector(each));
const frames = [...first.querySelectorAll("[data-frame]")];
const rows = [...first.querySelectorAll("svg.r")];
const LAST = frames.length - 1;
const EACH = 1600; // milliseconds of a frame
let at = LAST;
let timer = 0;

function show(frame) {
  at = frame;
  const position = Number(slider.value);
  const story = stories[Number(fix.checked)][position];
  const [reply, right] = replies[Number(fix.checked)][position];
  const [, sentence, answered, drawn] = story[at];
  said.textContent = sentence;
  said.classList.toggle("bad", answered && reply !== right);
  rows.forEach((row, i) => { row.innerHTML = pool[drawn[i]]; });
  frames.forEach((button, i) => {
    button.textContent = `${i + 1} ${story[i][0]}`;
    button.setAttribute("aria-current", String(i === at));
  });
  const told = first.querySelector(".told");
  told.classList.toggle("waits", !answered);
  told.firstChild.data = `${reply} `;
  const mark = told.querySelector("i");
  mark.className = reply === right ? "ok" : "bad";
  mark.textContent = reply === right ? "✓" : `✗ that is A's code, B's is ${right}`;
  for (const each of first.querySelectorAll(".long, output")) each.textContent = lengths[position];
  slider.setAttribute("aria-valuetext", `${lengths[position]} words: ${reply === right ? "right" : "wrong"}`);
}

function stop() {
  clearInterval(timer);
  timer = 0;
  play.textContent = "▶ Play";
}

function start() {
  show(0);
  play.textContent = "■ Stop";
  timer = setInterval(() => {
    show(at + 1);
    if (at === LAST) stop();
  }, EACH);
}

play.addEventListener("click", () => { if (timer) stop(); else start(); });
frames.forEach((button, i) => button.addEventListener("click", () => { stop(); show(i); }));
for (const each of [slider, fix]) each.addEventListener("input", () => { stop(); show(LAST); });
for (const each of first.querySelectorAll("[hidden]")) each.hidden = false;
if (matchMedia("(prefers-reduced-motion: reduce)").matches) show(LAST); else start();
