// The site: what scrolls can be reached by keys, and what is alike is told apart by name.
// Lessons: a number to commit to before a run is seen, and controls that change a number in it.
"use strict";

for (const each of document.querySelectorAll("pre, .table-wrapper")) each.tabIndex = 0;
for (const table of document.querySelectorAll("article table")) {
  const titles = [...table.querySelectorAll("thead th")].map((each) => each.textContent);
  table.classList.toggle("stack", titles.length > 3);
  for (const row of table.querySelectorAll("tbody tr")) [...row.children].forEach((cell, i) => { cell.dataset.title = titles[i] || ""; });
}
for (const [part, name] of [[".sidebar-drawer", "Contents of the site"], [".toc-drawer", "Contents of this page"]]) {
  for (const each of document.querySelectorAll(part)) each.setAttribute("aria-label", name);
}

const SAME = { y: "yes", true: "yes", n: "no", false: "no" };
const plain = (word) => {
  const text = word.trim().toLowerCase().replace(/^[`'"]+|[`'",;.]+$/g, "");
  return /^-?\d+$/.test(text) ? String(Number(text)) : SAME[text] || text;
};

for (const form of document.querySelectorAll("form.ask")) {
  const inputs = [...form.querySelectorAll("input")];
  const [said, hint, more] = [".said", ".hint", ".more"].map((each) => form.querySelector(each));
  const answers = JSON.parse(form.dataset.answers);
  let tries = 0;
  if (more) more.addEventListener("click", () => { hint.hidden = false; });
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    if (inputs.some((each) => !each.value.trim())) {
      said.textContent = inputs.length > 1 ? "Fill in every field first; a guess is enough." : "Write what you expect first; a guess is enough.";
      return;
    }
    const rights = inputs.map((each, i) => plain(each.value) === plain(answers[i]));
    inputs.forEach((each, i) => each.setAttribute("aria-invalid", String(!rights[i])));
    const right = rights.every(Boolean);
    tries += 1;
    form.classList.toggle("right", right);
    const reveal = form.nextElementSibling && form.nextElementSibling.matches("details") ? form.nextElementSibling : null;
    if (!right && tries === 1 && hint) {
      hint.hidden = false;
      said.textContent = inputs.length > 1 ? `${rights.filter(Boolean).length} of ${rights.length} right. Try again with the hint.` : "Not yet. Try again with the hint.";
      return;
    }
    said.textContent = right ? `Right: ${answers.join(", ")}.` : `You answered ${inputs.map((each) => each.value.trim()).join(", ")}; the run gives ${answers.join(", ")}.`;
    if (reveal) reveal.open = true;
  });
}

for (const sweep of document.querySelectorAll(".sweep")) {
  const slider = sweep.querySelector("input");
  const figures = [...sweep.querySelectorAll("figure")];
  const show = () => {
    figures.forEach((figure, i) => { figure.hidden = i !== Number(slider.value); });
    slider.setAttribute("aria-valuetext", figures[Number(slider.value)].dataset.value);
  };
  slider.addEventListener("input", show);
  show();
}
