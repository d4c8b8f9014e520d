(function () {
  "use strict";
  document.documentElement.classList.add("scripted");

  function sortValue(row, index) {
    var cell = row.cells[index];
    var number = cell.getAttribute("data-sort");
    return number === null ? cell.textContent.trim().toLowerCase() : parseFloat(number);
  }

  function compare(left, right) {
    var bothNumbers = typeof left === "number" && typeof right === "number";
    if (bothNumbers && (isNaN(left) || isNaN(right))) { return isNaN(left) - isNaN(right); }
    if (bothNumbers) { return left - right; }
    if (typeof left !== typeof right) { return typeof left === "number" ? -1 : 1; }
    return left < right ? -1 : left > right ? 1 : 0;
  }

  document.querySelectorAll("thead button").forEach(function (button) {
    button.addEventListener("click", function () {
      var header = button.closest("th");
      var body = header.closest("table").tBodies[0];
      var ascending = header.getAttribute("aria-sort") !== "ascending";
      header.parentNode.querySelectorAll("th").forEach(function (other) { other.removeAttribute("aria-sort"); });
      header.setAttribute("aria-sort", ascending ? "ascending" : "descending");
      Array.from(body.rows)
        .map(function (row) { return { row: row, value: sortValue(row, header.cellIndex) }; })
        .sort(function (left, right) { return compare(left.value, right.value) * (ascending ? 1 : -1); })
        .forEach(function (entry) { body.appendChild(entry.row); });
    });
  });

  document.querySelectorAll("input[data-filters]").forEach(function (input) {
    var rows = Array.from(document.getElementById(input.getAttribute("data-filters")).tBodies[0].rows);
    var status = input.parentNode.querySelector("[role=status]");
    input.parentNode.hidden = false;
    input.addEventListener("input", function () {
      var wanted = input.value.trim().toLowerCase();
      var shown = 0;
      rows.forEach(function (row) {
        row.hidden = wanted !== "" && row.textContent.toLowerCase().indexOf(wanted) < 0;
        shown += row.hidden ? 0 : 1;
      });
      status.textContent = wanted === "" ? "" : shown + " of " + rows.length + " rows";
    });
  });
})();
