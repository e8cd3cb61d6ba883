"use strict";
// A click on a column's head sorts the rows by it: numbers from the best end down, then up, names by the alphabet.
for (const table of document.querySelectorAll("table.sortable")) {
  const body = table.tBodies[0];
  table.tHead.addEventListener("click", (event) => {
    const head = event.target.closest("th");
    if (!head) return;
    const column = head.cellIndex;
    const descending = head.getAttribute("aria-sort") !== "descending" && column > 0
      || head.getAttribute("aria-sort") === "ascending";
    for (const other of head.parentElement.cells) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", descending ? "descending" : "ascending");
    const key = (row) => row.cells[column].dataset.value;
    const compare = (a, b) => {
      const [x, y] = [key(a), key(b)];
      if (x === undefined || y === undefined) return (x === undefined) - (y === undefined);
      const order = column === 0 ? x.localeCompare(y) : Number(x) - Number(y);
      return descending ? -order : order;
    };
    body.append(...[...body.rows].sort(compare));
  });
}
