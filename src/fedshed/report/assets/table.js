// Costs up to a target, recomputed as the slider moves, sorted by any column.

const COSTS = ["iteration", "rounds", "exchanges", "kb_up", "kb_down", "vectors", "hessians", "seconds"];
const HEADS = {
  name: "algorithm",
  ...Object.fromEntries(COSTS.map((name) => [name, AXES[name].label])),
  last: "at the end",
  ended: "ended",
};

/** The first iterate below the target, as its index; -1 if there is none. */
const reaches = (columns, target) => columns[chosen.measure].findIndex((value) => value !== null && value < target);

/** What each repeat has spent when it reaches the target; none if one of them does not. */
function spent(run, name) {
  const costs = tracesOfRun(run).map((columns) => {
    const k = reaches(columns, data.targets[chosen.target]);
    return k < 0 ? null : AXES[name].values(columns, problem().count)[k];
  });
  return costs.includes(null) ? [] : costs;
}

function costsOf(run) {
  const all = Object.fromEntries(COSTS.map((name) => [name, spent(run, name)]));
  const costs = COSTS.map((name) => [name, all[name].length ? median(all[name]) : null]);
  const ends = tracesOfRun(run).map((columns) => columns[chosen.measure].at(-1) ?? null);
  const last = ends.includes(null) ? null : median(ends);
  return {
    run,
    all,
    name: run.name,
    ...Object.fromEntries(costs),
    last,
    ended: run.converged ? "converged" : run.ended,
  };
}

/** A cell's text; with repeats also the least and the most. */
function cell(row, column) {
  if (typeof row[column] === "string") return row[column];
  const all = row.all[column] ?? [],
    least = Math.min(...all),
    most = Math.max(...all);
  return short(row[column]) + (all.length > 1 && least < most ? ` (${short(least)}–${short(most)})` : "");
}

/** By the chosen column; what is unknown comes last, either way. */
function sorted(rows) {
  const { column, down } = chosen.sort;
  if (column === null) return rows;
  const compare = (a, b) => (typeof a === "string" ? a.localeCompare(b) : a - b) * (down ? -1 : 1);
  const known = rows.filter((row) => row[column] !== null),
    unknown = rows.filter((row) => row[column] === null);
  return [...known.sort((a, b) => compare(a[column], b[column])), ...unknown];
}

function drawTable() {
  const text = short(data.targets[chosen.target]);
  byId("target-what").textContent = measure();
  byId("target-value").textContent = text;
  byId("target").setAttribute("aria-valuetext", `${measure()} below ${text}`);
  const body = sorted(problem().runs.map(costsOf)).map((row) =>
    element(
      "tr",
      { "data-run": row.name, class: shown(row.run) ? null : "hidden-run" },
      ...Object.keys(HEADS).map((column) =>
        element(
          column === "name" ? "th" : "td",
          {
            "data-column": column,
            "data-value": row[column] ?? "",
            class: column === "ended" ? "words" : null,
            scope: column === "name" ? "row" : null,
          },
          cell(row, column),
        ),
      ),
    ),
  );
  const focused = document.activeElement?.closest?.("#table th")?.dataset.column;
  byId("table").replaceChildren(element("thead", {}, element("tr", {}, ...heads())), element("tbody", {}, ...body));
  if (focused) byId("table").querySelector(`thead th[data-column="${focused}"] button`).focus();
}

function heads() {
  const { column, down } = chosen.sort;
  return Object.entries(HEADS).map(([name, text]) =>
    element(
      "th",
      { scope: "col", "data-column": name, "aria-sort": name !== column ? "none" : down ? "descending" : "ascending" },
      element("button", { type: "button", onclick: () => sortBy(name) }, text),
    ),
  );
}

function sortBy(column) {
  chosen.sort = { column, down: chosen.sort.column === column && !chosen.sort.down };
  drawTable();
}

/** 1e-6, or the best that any run reaches. */
function firstTarget() {
  const wanted = data.targets.findIndex((target) => target <= 1.0001e-6);
  const reached = (index) => problem().runs.some((run) => reaches(run.columns, data.targets[index]) >= 0);
  for (let index = wanted; index >= 0; index--) if (reached(index)) return index;
  return wanted;
}

function setUpTable() {
  const slider = byId("target");
  slider.max = data.targets.length - 1;
  slider.value = chosen.target = firstTarget();
  slider.addEventListener("input", () => {
    chosen.target = Number(slider.value);
    drawTable();
    if (problem().runs.length) Plotly.relayout("curves-plot", { shapes: targetLines() });
  });
}
