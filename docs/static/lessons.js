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

const plain = (word) => {
  const text = word.trim().toLowerCase().replace(/[,;.]+$/, "");
  return /^-?\d+$/.test(text) ? String(Number(text)) : text;
};

for (const form of document.querySelectorAll("form.ask")) {
  const [input, said, hint, more] = ["input", ".said", ".hint", ".more"].map((each) => form.querySelector(each));
  if (more) more.addEventListener("click", () => { hint.hidden = false; });
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    if (!input.value.trim()) {
      said.textContent = "Say what you expect first; a guess will do.";
      return;
    }
    const right = plain(input.value) === plain(form.dataset.answer);
    said.textContent = right ? `Right: ${form.dataset.answer}.` : `You said ${input.value.trim()}; the run says ${form.dataset.answer}.`;
    form.classList.toggle("right", right);
    const reveal = form.nextElementSibling;
    if (reveal && reveal.matches("details.reveal")) reveal.open = true;
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
