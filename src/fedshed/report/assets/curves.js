// Curves: one panel for each cost, one axis of accuracy for all, one point under the pointer in each.

/** What is drawn of a run: accuracy not below rounding, unknown where it is unknown. */
function accuracy(columns) {
  const lowest = chosen.logY ? FLOOR : -Infinity;
  return columns[chosen.measure].map((value) => (value === null ? null : Math.max(value, lowest)));
}

const renewals = (run) => run.columns.renewed.map((count, k) => (count ? k : -1)).filter((k) => k >= 0);
/** Marks of a run that renews nearly always would only hide its curve. */
const marksMean = (run) => renewals(run).length <= Math.max(4, run.columns.iteration.length / 2);

const MOST_GRID = 500; // points of a median curve

/** Costs at which some repeat has a new iterate, and the accuracies of all repeats there. */
function repeatsOn(run, axis) {
  const repeats = run.repeats
    .map((columns) => {
      const x = AXES[axis].values(columns, problem().count),
        y = accuracy(columns);
      return x.map((value, k) => [value, y[k]]).filter(([, value]) => value !== null);
    })
    .filter((points) => points.length);
  const all = [...new Set(repeats.flatMap((points) => points.map(([x]) => x)))].sort((a, b) => a - b);
  const every = Math.max(1, Math.ceil(all.length / MOST_GRID));
  const x = all.filter((_, k) => k % every === 0 || k === all.length - 1);
  return { x, y: x.map((cost) => repeats.map((points) => lastUntil(points, cost))) };
}

/** The accuracy of a run when it has spent so much: that of its last iterate until then. */
function lastUntil(points, cost) {
  let low = 0,
    high = points.length - 1;
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (points[middle][0] <= cost) low = middle;
    else high = middle - 1;
  }
  return points[low][1];
}

/** A run with repeats: the median, and a band from the least to the largest value. */
function bandTraces(run, axis, scale, place) {
  const { x, y } = repeatsOn(run, axis),
    least = y.map((v) => Math.min(...v)),
    most = y.map((v) => Math.max(...v)),
    at = placed(x, scale);
  const band = {
    ...place,
    mode: "lines",
    x: [...at, ...[...at].reverse()],
    y: [...most, ...least.reverse()],
    fill: "toself",
    fillcolor: colour(run) + "30",
    line: { width: 0 },
    hoverinfo: "skip",
    meta: { band: run.name },
  };
  const line = {
    ...place,
    mode: "lines",
    x: at,
    y: y.map(median),
    customdata: x,
    meta: { median: run.name },
    line: { color: colour(run), dash: run.look.dash, width: 2 },
    hovertemplate: `${title(run)}, median<br>${AXES[axis].label} %{customdata:.4~g}<br>${measure()} %{y:.2e}<extra></extra>`,
  };
  return [band, line];
}

/** The name of a run above what is said of a point. */
const title = (run) => `<b>${plain(shortened(run.name, 26))}</b>`;

/** What a label says of each iterate besides the accuracy: the iteration, the cost, the step, the pairs, who renewed. */
function details(columns, costs) {
  return columns.iteration.map((t, k) => [
    t,
    costs[k],
    short(columns.eta[k]),
    columns.q_max[k] || "–",
    columns.renewed[k] ? `${columns.renewed[k]} agents` : "none",
  ]);
}

function tracesOf(run, axis, panel, scale) {
  const number = panel ? String(panel + 1) : "",
    place = { xaxis: `x${number}`, yaxis: `y${number}`, type: "scatter", name: plain(run.name) };
  if (run.repeats.length) return bandTraces(run, axis, scale, place);
  const costs = AXES[axis].values(run.columns, problem().count),
    x = placed(costs, scale),
    y = accuracy(run.columns),
    ink = colour(run);
  const line = {
    ...place,
    x,
    y,
    mode: "lines",
    customdata: details(run.columns, costs),
    meta: { run: run.name },
    line: { color: ink, dash: run.look.dash, width: 2 },
    hovertemplate:
      `${title(run)}, iteration %{customdata[0]}<br>${AXES[axis].label} %{customdata[1]:.4~g}<br>${measure()} %{y:.2e}` +
      "<br>η %{customdata[2]}, q %{customdata[3]}<br>renewal: %{customdata[4]}<extra></extra>",
  };
  const marks = (meta, places, size) => ({
    ...place,
    meta,
    mode: "markers",
    hoverinfo: "skip",
    x: places.map((k) => x[k]),
    y: places.map((k) => y[k]),
    marker: { color: ink, symbol: run.look.symbol, size, line: { color: ink, width: 1.2 } },
  });
  const last = y.findLastIndex((value) => value !== null);
  return [
    line,
    marks({ renewals: run.name }, marksMean(run) ? renewals(run) : [], 7),
    marks({ end: run.name }, last < 0 ? [] : [last], 10),
  ];
}

const columnsOfPanels = () => (byId("curves-figure").clientWidth < 640 || chosen.axes.length < 2 ? 1 : 2);

function curveLayout(scales) {
  const columns = columnsOfPanels(),
    rows = Math.ceil(chosen.axes.length / columns);
  const layout = {
    grid: { rows, columns, pattern: "independent", ygap: 0.24, xgap: columns > 1 ? 0.16 : 0 },
    height: 330 * rows + 20,
    shapes: targetLines(),
    uirevision: [chosen.problem, chosen.measure, chosen.scale, chosen.logY, ...chosen.axes].join(),
    margin: { l: 72, r: 16, t: 16, b: 48 },
  };
  chosen.axes.forEach((axis, panel) => {
    const number = panel ? String(panel + 1) : "",
      { type, range, tickvals, ticktext } = scales[panel];
    layout[`xaxis${number}`] = {
      title: {
        text: AXES[axis].label + (AXES[axis].each ? ", per agent" : "") + (type === "log" ? " (log)" : ""),
        standoff: 6,
      },
      type,
      range,
      tickvals,
      ticktext,
      nticks: 8,
      uirevision: type,
      exponentformat: "none",
      minexponent: 6,
      hoverformat: ".4~g",
    };
    layout[`yaxis${number}`] = {
      type: chosen.logY ? "log" : "linear",
      exponentformat: "power",
      matches: panel ? "y" : undefined,
      title: { text: panel % columns ? "" : plain(measure()), standoff: 10 },
    };
  });
  return layout;
}

/** The target of the slider, in every panel. */
function targetLines() {
  return chosen.axes.map((_, panel) => ({
    type: "line",
    xref: `x${panel ? panel + 1 : ""} domain`,
    yref: `y${panel ? panel + 1 : ""}`,
    x0: 0,
    x1: 1,
    y0: data.targets[chosen.target],
    y1: data.targets[chosen.target],
    line: { color: css("--soft"), width: 1, dash: "dot" },
  }));
}

async function drawCurves() {
  byId("log-y-what").textContent = measure();
  const visible = problem().runs.filter(shown),
    scales = chosen.axes.map(scaleOf);
  const traces = chosen.axes.flatMap((axis, panel) =>
    visible.flatMap((run) => tracesOf(run, axis, panel, scales[panel])),
  );
  notes("curve-notes", [...scaleNotes(scales), ...curveNotes()]);
  await draw("curves", traces, curveLayout(scales), curveReading(visible, traces));
  if (!hoverLinked) linkHover();
}

// --- what can be chosen --------------------------------------------------------------------------------

function drawLegend() {
  const toggle = (run) => {
    if (!chosen.hidden.delete(run.name)) chosen.hidden.add(run.name);
    drawCurves();
    drawTable();
    for (const button of byId("legend").children)
      button.setAttribute("aria-pressed", !chosen.hidden.has(button.dataset.run));
  };
  byId("legend").replaceChildren(
    ...problem().runs.map((run) =>
      element(
        "button",
        { type: "button", "aria-pressed": shown(run), "data-run": run.name, onclick: () => toggle(run) },
        sample(run),
        element("span", {}, run.name),
      ),
    ),
  );
}

let hoverLinked = false;
/** The iterate under the pointer is shown in every panel. */
function linkHover() {
  hoverLinked = true;
  const plot = byId("curves-plot");
  let busy = false;
  plot.on("plotly_hover", ({ points: [point] }) => {
    if (busy || cursors.has("curves") || !point || !point.data.meta.run) return;
    busy = true;
    const spots = spotsOf(plot.data, (meta) => meta.run === point.data.meta.run);
    Plotly.Fx.hover(
      plot,
      spots.map(({ curveNumber }) => ({ curveNumber, pointNumber: point.pointNumber })),
      spots.map(({ place }) => place),
    );
    busy = false;
  });
}

function setUpCurves() {
  byId("measure").addEventListener("change", (event) => {
    chosen.measure = event.target.value;
    drawCurves();
    drawTable();
  });
  for (const [name, axis] of Object.entries(AXES)) {
    const box = element("input", {
      type: "checkbox",
      value: name,
      checked: chosen.axes.includes(name),
      onchange: chooseAxes,
    });
    byId("axes").append(element("label", {}, box, " ", axis.label));
  }
  options("scale", Object.entries(SCALES));
  byId("scale").value = chosen.scale;
  byId("log-y").checked = chosen.logY;
  byId("scale").addEventListener("change", (event) => {
    remember("scale", (chosen.scale = event.target.value));
    drawCurves();
  });
  byId("log-y").addEventListener("change", (event) => {
    chosen.logY = event.target.checked;
    remember("log-y", chosen.logY ? "on" : "off");
    drawCurves();
  });
}

/** The costs that are ticked; the last one stays. */
function chooseAxes(event) {
  const ticked = [...byId("axes").querySelectorAll("input:checked")].map((box) => box.value);
  if (!ticked.length) event.target.checked = true;
  else chosen.axes = ticked;
  drawCurves();
}
