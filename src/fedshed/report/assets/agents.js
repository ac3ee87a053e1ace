// Agents: rows by class, and a map of the pairs held or the budget drawn, agent by iteration.

const MAPS = { pairs: "pairs held", budget: "budget drawn (pairs the link carries)" };
const CLASS_COLOURS = ["#0072B2", "#E69F00", "#009E73", "#CC79A7", "#D55E00", "#56B4E9", "#777777"];

function drawAgents() {
  const { agents, runs } = problem(), maps = runs.filter((run) => run.pairs || run.budget);
  if (!section("agents", agents.length > 0 || maps.length > 0)) return;
  byId("agents-plot").hidden = byId("agents-details").hidden = !agents.length;
  if (agents.length) drawRows(agents);
  byId("grid-controls").hidden = byId("grid-plot").hidden = byId("grid-note").hidden = !maps.length;
  if (maps.length) {
    options("grid-run", maps.map((run) => [run.name, run.name]));
    drawMap();
  }
}

function classesOf(agents) {
  return [...new Set(agents.flatMap((agent) => Object.keys(agent.classes)))];
}

function drawRows(agents) {
  const classes = classesOf(agents), x = agents.map((_, k) => k), many = agents.length > 30;
  const counts = classes.length ? classes.map((label) => [label, agents.map((agent) => agent.classes[label] ?? 0)])
    : [["rows", agents.map((agent) => agent.rows)]];
  const traces = counts.map(([label, y], k) => ({
    type: "bar", x, y, name: plain(label), marker: { color: CLASS_COLOURS[k % CLASS_COLOURS.length] },
    text: agents.map((agent) => plain(agent.name)), textposition: "none",
    hovertemplate: `%{text}<br>${plain(label)}: %{y}<extra></extra>`,
  }));
  draw("agents-plot", traces, {
    barmode: "stack", height: 300, bargap: many ? 0 : 0.2, showlegend: classes.length > 1,
    legend: { orientation: "h", y: 1.02, yanchor: "bottom" }, yaxis: { title: { text: "rows" } },
    xaxis: many ? { title: { text: "agents" }, showticklabels: false } : { tickvals: x, ticktext: agents.map((a) => plain(a.name)) },
  });
  const row = (tag, cells) => element("tr", {}, ...cells.map((cell) => element(tag, tag === "th" ? { scope: "col" } : {}, cell)));
  const body = agents.map((agent) => row("td", [agent.name, agent.rows, ...classes.map((label) => agent.classes[label] ?? 0)]));
  byId("agents-table").replaceChildren(
    element("thead", {}, row("th", ["agent", "rows", ...classes])), element("tbody", {}, ...body),
  );
}

function drawMap() {
  const run = problem().runs.find((one) => one.name === byId("grid-run").value);
  options("grid-what", Object.entries(MAPS).filter(([name]) => run[name]));
  const what = byId("grid-what").value, grid = run[what];
  const rows = grid.agents.map((_, k) => k), few = grid.agents.length <= 40;
  draw("grid-plot", [{
    type: "heatmap", x: grid.iterations, y: rows, z: grid.values, colorscale: "Cividis",
    colorbar: { title: { text: "pairs" }, thickness: 12 }, text: grid.agents.map((name) => grid.iterations.map(() => plain(name))),
    hovertemplate: "%{text}, iteration %{x}: %{z} pairs<extra></extra>",
  }], {
    height: few ? Math.max(220, 22 * rows.length + 90) : 520, xaxis: { title: { text: "iteration" } },
    yaxis: few ? { tickvals: rows, ticktext: grid.agents.map(plain), autorange: "reversed" }
      : { title: { text: "agents" }, showticklabels: false, autorange: "reversed" },
  });
  const [agents, iterations] = grid.of;
  const part = grid.agents.length < agents || grid.iterations.length < iterations;
  byId("grid-note").textContent = part
    ? `${grid.agents.length} of ${agents} agents and ${grid.iterations.length} of ${iterations} iterations are shown, evenly spaced.` : "";
}

function setUpAgents() {
  for (const id of ["grid-run", "grid-what"]) byId(id).addEventListener("change", drawMap);
}
