// Rows of the page's tables without the words that are typed are hidden; words match by their beginnings.
document.addEventListener("DOMContentLoaded", () => {
  const field = document.querySelector("input.filter");
  if (!field) return;
  const told = document.querySelector("output.filtered");
  const rows = [...document.querySelectorAll("table tbody tr")].filter(
    (row) => row.querySelector("a[href*='reports/']"),
  );
  const texts = rows.map((row) => row.textContent.toLowerCase());
  field.addEventListener("input", () => {
    const words = field.value.toLowerCase().split(/\s+/).filter((word) => word.length > 2);
    let left = 0;
    rows.forEach((row, index) => {
      row.hidden = !words.every((word) => texts[index].includes(word.slice(0, 5)));
      left += row.hidden ? 0 : 1;
    });
    told.textContent = words.length ? `${left} of ${rows.length}` : "";
  });
});
