// Cards of the gallery without the words that are typed are hidden; words match by their beginnings.
document.addEventListener("DOMContentLoaded", () => {
  const field = document.querySelector("input.filter");
  if (!field) return;
  const found = document.querySelector("output.filtered");
  const cards = [...document.querySelectorAll(".card")];
  const texts = cards.map((card) => card.textContent.toLowerCase());
  field.addEventListener("input", () => {
    const words = field.value.toLowerCase().split(/\s+/).filter((word) => word.length > 2);
    let left = 0;
    cards.forEach((card, index) => {
      card.hidden = !words.every((word) => texts[index].includes(word.slice(0, 5)));
      left += card.hidden ? 0 : 1;
    });
    found.textContent = words.length ? `${left} of ${cards.length}` : "";
  });
});
