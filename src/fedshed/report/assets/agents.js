// Agents: rows by class, and a map of the pairs held or the budget drawn, agent by iteration.

const MAPS = { pairs: "pairs held", budget: "budget drawn (pairs the link carries)" };
const CLASS_COLOURS = ["#0072B2", "#E69F00", "#009E73", "#CC79A7", "#D55E00", "#56B4E9", "#777777"];

async function drawAgents() {
  const { agents, runs } = problem(),
    maps = runs.filter((run) => run.pairs || run.budget);
  if (!section("agents", agents.length > 0 || maps.length > 0)) return;
  byId("rows-figure").hidden = !agents.length;
  if (agents.length) await drawRows(agents);
  byId("grid-controls").hidden = byId("grid-figure").hidden = byId("grid-note").hidden = !maps.length;
  if (maps.length) {
    runOptions("grid-run", maps);
    await drawMap();
  }
}

const classesOf = (agents) => [...new Set(agents.flatMap((agent) => Object.keys(agent.classes)))];

/** Names beside an axis, if there is room for them. */
function nameAxis(names, most, letters) {
  if (names.length > most) return { title: { text: "agents" }, showticklabels: false };
  return { tickvals: names.map((_, k) => k), ticktext: names.map((name) => plain(shortened(name, letters))) };
}

function drawRows(agents) {
  const classes = classesOf(agents),
    x = agents.map((_, k) => k);
  const counts = classes.length
    ? classes.map((label) => [label, agents.map((agent) => agent.classes[label] ?? 0)])
    : [["rows", agents.map((agent) => agent.rows)]];
  const traces = counts.map(([label, y], k) => ({
    type: "bar",
    x,
    y,
    name: plain(shortened(label, 30)),
    marker: { color: CLASS_COLOURS[k % CLASS_COLOURS.length] },
    text: agents.map((agent) => plain(shortened(agent.name, 40))),
    textposition: "none",
    hovertemplate: `%{text}<br>${plain(shortened(label, 40))}: %{y}<extra></extra>`,
  }));
  return draw(
    "rows",
    traces,
    {
      barmode: "stack",
      height: 320,
      bargap: agents.length > 30 ? 0 : 0.2,
      showlegend: classes.length > 1,
      legend: { orientation: "h", y: 1.02, yanchor: "bottom", x: 0 },
      yaxis: { title: { text: "rows", standoff: 8 } },
      xaxis: {
        ...nameAxis(
          agents.map(({ name }) => name),
          30,
          16,
        ),
        tickangle: narrow("rows") && agents.length > 6 ? 90 : undefined,
      },
    },
    {
      label: `Bars: rows of ${agents.length} agents${classes.length ? `, by class: ${listed(classes)}` : ""}.`,
      curves: counts.map(([label, y], curveNumber) => ({
        name: label,
        length: agents.length,
        spots: (k) => [{ curveNumber, pointNumber: k }],
        say: (k) =>
          `${agents[k].name}: ${y[k]} ${classes.length ? `rows of ${label}, ${agents[k].rows} in all` : "rows"}.`,
      })),
      table: () => ({
        heads: ["agent", "rows", ...classes],
        rows: agents.map((agent) => [agent.name, agent.rows, ...classes.map((label) => agent.classes[label] ?? 0)]),
      }),
    },
  );
}

function drawMap() {
  const run = problem().runs.find((one) => one.name === byId("grid-run").value);
  options(
    "grid-what",
    Object.entries(MAPS).filter(([name]) => run[name]),
  );
  const what = byId("grid-what").value,
    grid = run[what],
    [agents, iterations] = grid.of,
    last = grid.iterations.at(-1);
  const part = grid.agents.length < agents || grid.iterations.length < iterations;
  byId("grid-note").textContent =
    `${run.name} up to iteration ${last}.` +
    (part
      ? ` ${grid.agents.length} of ${agents} agents and ${grid.iterations.length} of ${iterations} iterations are shown, evenly spaced.`
      : "");
  return draw(
    "grid",
    [
      {
        type: "heatmap",
        x: grid.iterations,
        y: grid.agents.map((_, k) => k),
        z: grid.values,
        colorscale: "Cividis",
        colorbar: { title: { text: "pairs", side: "right" }, thickness: 12 },
        text: grid.agents.map((name) => grid.iterations.map(() => plain(shortened(name, 40)))),
        hovertemplate: "%{text}<br>iteration %{x}: %{z} pairs<extra></extra>",
      },
    ],
    {
      height: grid.agents.length <= 40 ? Math.max(220, 22 * grid.agents.length + 90) : 520,
      xaxis: { title: { text: "iteration" } },
      yaxis: { ...nameAxis(grid.agents, 40, narrow("grid") ? 14 : 28), autorange: "reversed" },
    },
    {
      label: `Map of the ${MAPS[what]} by ${run.name}: ${agents} agents, up to iteration ${last}.`,
      curves: grid.agents.map((name, row) => ({
        name,
        length: grid.iterations.length,
        spots: (k) => [{ curveNumber: 0, xval: grid.iterations[k], yval: row }],
        say: (k) => `${name}, iteration ${grid.iterations[k]}: ${short(grid.values[row][k])} pairs.`,
      })),
      table: () => ({
        heads: ["agent", ...grid.iterations],
        rows: grid.agents.map((name, row) => [name, ...grid.values[row].map(short)]),
        note: `${MAPS[what]}, by iteration.`,
      }),
    },
  );
}

function setUpAgents() {
  byId("grid-run").addEventListener("change", () => picked.add("grid-run"));
  for (const id of ["grid-run", "grid-what"]) byId(id).addEventListener("change", drawMap);
}
