// Curves: one panel for each cost, one axis of accuracy for all, one point under the pointer in each.

/** What is drawn of a run: accuracy not below rounding, unknown where it is unknown. */
function accuracy(columns) {
  const lowest = chosen.logY ? FLOOR : -Infinity;
  return columns[chosen.measure].map((value) => (value === null ? null : Math.max(value, lowest)));
}

function details(run) {
  const c = run.columns;
  return c.iteration.map((t, k) => [
    t, short(c.eta[k]), c.q_max[k] || "–", c.renewed[k] ? `${c.renewed[k]} agents` : "none",
  ]);
}

const renewals = (run) => run.columns.renewed.map((count, k) => (count ? k : -1)).filter((k) => k >= 0);
/** Marks of a run that renews nearly always would only hide its curve. */
const marksMean = (run) => renewals(run).length <= Math.max(4, run.columns.iteration.length / 2);

function curveTraces() {
  const visible = problem().runs.filter(shown).map((run) => ({
    run, y: accuracy(run.columns), about: details(run), renewals: marksMean(run) ? renewals(run) : [],
  }));
  return chosen.axes.flatMap((axis, panel) => visible.flatMap((one) => tracesOf(one, axis, panel)));
}

const MOST_GRID = 500; // points of a median curve

/** Costs at which some repeat has a new iterate, and the accuracies of all repeats there. */
function repeatsOn(run, axis) {
  const repeats = run.repeats.map((columns) => {
    const x = AXES[axis].values(columns, problem().count), y = accuracy(columns);
    return x.map((value, k) => [value, y[k]]).filter(([, value]) => value !== null);
  }).filter((points) => points.length);
  const all = [...new Set(repeats.flatMap((points) => points.map(([x]) => x)))].sort((a, b) => a - b);
  const every = Math.max(1, Math.ceil(all.length / MOST_GRID));
  const x = all.filter((_, k) => k % every === 0 || k === all.length - 1);
  return { x, y: x.map((cost) => repeats.map((points) => lastUntil(points, cost))) };
}

/** The accuracy of a run when it has spent so much: that of its last iterate until then. */
function lastUntil(points, cost) {
  let low = 0, high = points.length - 1;
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (points[middle][0] <= cost) low = middle;
    else high = middle - 1;
  }
  return points[low][1];
}

/** A run with repeats: the median, and a band from the least to the largest value. */
function bandTraces(run, axis, place) {
  const { x, y } = repeatsOn(run, axis), least = y.map((v) => Math.min(...v)), most = y.map((v) => Math.max(...v));
  const band = {
    ...place, mode: "lines", x: [...x, ...[...x].reverse()], y: [...most, ...least.reverse()], fill: "toself",
    fillcolor: colour(run) + "30", line: { width: 0 }, hoverinfo: "skip", meta: { band: run.name },
  };
  const line = {
    ...place, mode: "lines", x, y: y.map(median), meta: { median: run.name }, line: { color: colour(run), dash: run.look.dash, width: 2 },
    hovertemplate: `<b>${plain(run.name)}</b>, median<br>${AXES[axis].label} %{x:.4~g}, ${MEASURES[chosen.measure]} %{y:.2e}<extra></extra>`,
  };
  return [band, line];
}

function tracesOf({ run, y, about, renewals }, axis, panel) {
  const x = AXES[axis].values(run.columns, problem().count), number = panel ? String(panel + 1) : "";
  const place = { xaxis: `x${number}`, yaxis: `y${number}`, type: "scatter", name: plain(run.name) };
  if (run.repeats.length) return bandTraces(run, axis, place);
  const lone = run.columns.iteration.length === 1;
  const hovertemplate = `<b>${plain(run.name)}</b>, iteration %{customdata[0]}<br>${AXES[axis].label} %{x:.4~g}, ` +
    `${MEASURES[chosen.measure]} %{y:.2e}<br>η %{customdata[1]}, q %{customdata[2]}, renewal: %{customdata[3]}<extra></extra>`;
  const line = {
    ...place, x, y, mode: lone ? "markers" : "lines", customdata: about, hovertemplate, meta: { run: run.name },
    line: { color: colour(run), dash: run.look.dash, width: 2 }, marker: { color: colour(run), symbol: run.look.symbol, size: 8 },
  };
  const marks = {
    ...place, mode: "markers", hoverinfo: "skip", meta: { renewals: run.name },
    x: renewals.map((k) => x[k]), y: renewals.map((k) => y[k]),
    marker: { color: colour(run), symbol: run.look.symbol, size: 7, line: { color: colour(run), width: 1.2 } },
  };
  return [line, marks];
}

const columnsOfPanels = () => (byId("curves-plot").clientWidth < 640 || chosen.axes.length < 2 ? 1 : 2);

function curveLayout() {
  const columns = columnsOfPanels(), rows = Math.ceil(chosen.axes.length / columns);
  const layout = {
    grid: { rows, columns, pattern: "independent", ygap: 0.22, xgap: 0.12 },
    height: 330 * rows + 20, shapes: targetLines(), uirevision: [chosen.problem, chosen.measure, chosen.logX, chosen.logY, ...chosen.axes].join(),
  };
  chosen.axes.forEach((axis, panel) => {
    const number = panel ? String(panel + 1) : "";
    const kb = axis.startsWith("kb") || axis === "vectors" || axis === "hessians" ? ", per agent" : "";
    layout[`xaxis${number}`] = {
      title: { text: AXES[axis].label + kb, standoff: 6 }, type: chosen.logX ? "log" : "linear",
      rangemode: chosen.logX ? "normal" : "tozero",
    };
    layout[`yaxis${number}`] = {
      type: chosen.logY ? "log" : "linear", exponentformat: "power", matches: panel ? "y" : undefined,
      title: { text: panel % columns ? "" : MEASURES[chosen.measure] }, dtick: chosen.logY ? undefined : null,
    };
  });
  return layout;
}

/** The target of the slider, in every panel. */
function targetLines() {
  return chosen.axes.map((_, panel) => ({
    type: "line", xref: `x${panel ? panel + 1 : ""} domain`, yref: `y${panel ? panel + 1 : ""}`, x0: 0, x1: 1,
    y0: data.targets[chosen.target], y1: data.targets[chosen.target],
    line: { color: css("--soft"), width: 1, dash: "dot" },
  }));
}

async function drawCurves() {
  byId("log-y-what").textContent = MEASURES[chosen.measure];
  await draw("curves-plot", curveTraces(), curveLayout());
  if (!hoverLinked) linkHover();
  byId("curve-notes").replaceChildren(...curveNotes().map((note) => element("li", {}, note)));
}

function curveNotes() {
  const runs = problem().runs, notes = [], repeats = Math.max(0, ...runs.map((run) => run.repeats.length));
  if (repeats) notes.push(`Lines are medians over ${repeats} partitions of the rows; bands reach from the least value to the largest.`);
  const renewing = runs.filter((run) => renewals(run).length), unmarked = renewing.filter((run) => !marksMean(run));
  if (renewing.length > unmarked.length && !repeats) notes.push("Marks on a curve are renewals: some agent took a new Hessian.");
  if (unmarked.length && !repeats) notes.push(`Not marked, because they renew in nearly every iteration: ${unmarked.map((run) => run.name).join(", ")}.`);
  if (runs.some((run) => run.columns[chosen.measure].some((v) => v !== null && v < FLOOR)) && chosen.logY) {
    notes.push(`Values below ${FLOOR.toExponential(0)}, negative ones too, are drawn there.`);
  }
  if (runs.some((run) => run.columns[chosen.measure].includes(null))) notes.push("Where the value is not a number a curve has a hole.");
  for (const run of runs) {
    const drawn = run.columns.iteration.length;
    if (drawn < run.rows) {
      notes.push(`${run.name}: ${drawn} of ${run.rows} iterations are drawn, with all that answer a target of the slider.`);
    }
  }
  return notes;
}

/** The sample of a line beside its name. */
function sample(run) {
  const ns = "http://www.w3.org/2000/svg", svg = document.createElementNS(ns, "svg"), line = document.createElementNS(ns, "line");
  const dashes = { solid: "", dash: "6 3", dashdot: "6 3 2 3", dot: "2 3" };
  for (const [name, value] of Object.entries({ width: 28, height: 10, "aria-hidden": "true" })) svg.setAttribute(name, value);
  const look = { x1: 0, x2: 28, y1: 5, y2: 5, stroke: colour(run), "stroke-width": 3, "stroke-dasharray": dashes[run.look.dash] };
  for (const [name, value] of Object.entries(look)) line.setAttribute(name, value);
  svg.append(line);
  return svg;
}

function drawLegend() {
  const toggle = (run) => {
    if (!chosen.hidden.delete(run.name)) chosen.hidden.add(run.name);
    drawCurves();
    drawTable();
    for (const button of byId("legend").children) button.setAttribute("aria-pressed", !chosen.hidden.has(button.dataset.run));
  };
  byId("legend").replaceChildren(...problem().runs.map((run) => element("button", {
    type: "button", "aria-pressed": shown(run), "data-run": run.name, onclick: () => toggle(run),
  }, sample(run), run.name)));
}

let hoverLinked = false;
/** The iterate under the pointer is shown in every panel. */
function linkHover() {
  hoverLinked = true;
  const plot = byId("curves-plot");
  let busy = false;
  plot.on("plotly_hover", ({ points: [point] }) => {
    if (busy || !point || !point.data.meta.run) return;
    busy = true;
    const same = plot.data.map((trace, curveNumber) => ({ trace, curveNumber }))
      .filter(({ trace }) => trace.meta.run === point.data.meta.run);
    const where = same.map(({ curveNumber }) => ({ curveNumber, pointNumber: point.pointNumber }));
    Plotly.Fx.hover(plot, where, same.map(({ trace }) => trace.xaxis + trace.yaxis));
    busy = false;
  });
}

function setUpCurves() {
  options("measure", Object.entries(MEASURES));
  byId("measure").value = chosen.measure;
  byId("measure").addEventListener("change", (event) => {
    chosen.measure = event.target.value;
    drawCurves();
    drawTable();
  });
  for (const [name, axis] of Object.entries(AXES)) {
    const box = element("input", { type: "checkbox", value: name, checked: chosen.axes.includes(name), onchange: chooseAxes });
    byId("axes").append(element("label", {}, box, " ", axis.label));
  }
  byId("log-x").addEventListener("change", (event) => { chosen.logX = event.target.checked; drawCurves(); });
  byId("log-y").addEventListener("change", (event) => { chosen.logY = event.target.checked; drawCurves(); });
  let columns = columnsOfPanels();
  addEventListener("resize", () => {
    if (columns !== columnsOfPanels()) drawCurves();
    columns = columnsOfPanels();
  });
}

/** The costs that are ticked; the last one stays. */
function chooseAxes(event) {
  const ticked = [...byId("axes").querySelectorAll("input:checked")].map((box) => box.value);
  if (!ticked.length) event.target.checked = true;
  else chosen.axes = ticked;
  drawCurves();
}
