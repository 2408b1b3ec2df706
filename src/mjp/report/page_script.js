"use strict";
/* Sorting of tables, Escape for enlarged figures, and links into folded parts. All of the page can
   be read without it. */

const CLOCK = /^(?:(\d+):)?(\d+):(\d\d)$/;
const NUMBER = /[-+−]?\d[\d,]*(\.\d+)?(e[-+]?\d+)?/i;

function valueOf(row, column) {
  const text = (row.cells[column] ? row.cells[column].innerText : "").trim();
  const time = text.match(CLOCK);
  if (time) {
    return 3600 * Number(time[1] ?? 0) + 60 * Number(time[2]) + Number(time[3]);
  }
  const found = text.match(NUMBER);
  if (found && text.search(NUMBER) < 3) {
    return Number(found[0].replace("−", "-").replace(/,/g, ""));
  }
  return text.toLowerCase();
}

function compare(one, other) {
  if (typeof one === typeof other) {
    return one < other ? -1 : one > other ? 1 : 0;
  }
  return typeof one === "number" ? -1 : 1; // Numbers first, dashes and words last.
}

function sortBy(table, column, header) {
  const rising = header.getAttribute("aria-sort") !== "ascending";
  for (const other of table.tHead.rows[0].cells) {
    other.removeAttribute("aria-sort");
  }
  header.setAttribute("aria-sort", rising ? "ascending" : "descending");
  for (const body of table.tBodies) {
    const rows = [...body.rows].filter((row) => !row.classList.contains("group"));
    const keyed = rows.map((row) => [valueOf(row, column), row]);
    keyed.sort((a, b) => (rising ? 1 : -1) * compare(a[0], b[0]));
    body.append(...keyed.map((pair) => pair[1]));
  }
}

for (const table of document.querySelectorAll("table.sortable")) {
  [...table.tHead.rows[0].cells].forEach((header, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...header.childNodes);
    button.title = "Sort by this column";
    button.addEventListener("click", () => sortBy(table, column, header));
    header.append(button);
  });
}

document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") {
    for (const box of document.querySelectorAll("figure input:checked")) {
      box.checked = false;
      box.focus();
    }
  }
});

function unfold() {
  const target = document.getElementById(location.hash.slice(1));
  const folded = target && target.closest("details");
  if (folded && !folded.open) {
    folded.open = true;
    target.scrollIntoView();
  }
}
window.addEventListener("hashchange", unfold);
unfold();

const contents = document.querySelector("nav details");
if (contents && matchMedia("(max-width: 1099px)").matches) {
  contents.open = false; // On a phone the page itself comes first.
}
