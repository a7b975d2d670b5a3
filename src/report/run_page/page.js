"use strict";
// Sorts the table of ranks, opens the log that a link names, and zooms the timeline. The page is complete without it.
(() => {
  const key = (row, column) => {
    const cell = row.cells[column];
    return "v" in cell.dataset ? Number(cell.dataset.v) : cell.classList.contains("num") ? null : cell.textContent;
  };
  const compare = (a, b) => (typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b)));
  const sort = (table, header) => {
    const descending = header.ariaSort === "ascending" || (!header.ariaSort && header.classList.contains("num"));
    for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
    header.ariaSort = descending ? "descending" : "ascending";
    const rows = Array.from(table.tBodies[0].rows, (row) => [key(row, header.cellIndex), row]);
    // Missing numbers are last in both orders.
    rows.sort(([a], [b]) => (a === null) - (b === null) || (a === null ? 0 : compare(a, b) * (descending ? -1 : 1)));
    table.tBodies[0].append(...rows.map(([, row]) => row));
  };
  for (const table of document.querySelectorAll("table[data-sort]")) {
    for (const header of table.tHead.rows[0].cells) {
      const button = document.createElement("button");
      button.type = "button";
      button.append(...header.childNodes);
      button.addEventListener("click", () => sort(table, header));
      header.append(button);
    }
  }
  const open = () => {
    const named = document.getElementById(decodeURIComponent(location.hash.slice(1)));
    if (named instanceof HTMLDetailsElement) named.open = true;
  };
  addEventListener("hashchange", open);
  open();
  for (const place of document.querySelectorAll("[data-zoom]")) {
    const lanes = place.closest("section").querySelector(".wide");
    let zoom = 1;
    for (const [text, label, factor] of [["\u2212", "Zoom out", 0.5], ["+", "Zoom in", 2]]) {
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = text;
      button.ariaLabel = label;
      button.addEventListener("click", () => {
        zoom = Math.min(64, Math.max(1, zoom * factor));
        lanes.style.setProperty("--zoom", zoom);
      });
      place.append(button);
    }
  }
})();
