// What a study over sites took: Hessians and bytes by exchange, and the bytes of each site.

const UP = "#0072B2",
  DOWN = "#E69F00";

async function drawTraffic() {
  const [run] = problem().runs;
  const lone = problem().runs.length === 1 && !run.repeats.length;
  if (!section("traffic", lone && (run.traffic.length > 0 || data.fit !== null))) return;
  await drawCourse(run.columns);
  byId("sites-figure").hidden = !run.traffic.length;
  if (run.traffic.length) await drawSites(run.traffic);
}

/** Hessians and bytes, counted up to each exchange. */
function drawCourse(columns) {
  const x = columns.exchanges,
    one = narrow("course"),
    known = columns.hessians.some((value) => value !== null);
  const lines = [
    ["Hessians, per site", columns.hessians, css("--mark"), "y", "hv"],
    ["KB up, per site", perAgent(columns.uplink_bytes, problem().count), UP, "y2", "linear"],
    ["KB down, per site", perAgent(columns.downlink_bytes, problem().count), DOWN, "y2", "linear"],
  ].filter(([, , , axis]) => known || axis === "y2");
  const place = (axis) => (axis === "y" ? "xy" : "x2y2");
  const bottom = { title: { text: "exchanges", standoff: 6 }, rangemode: "tozero" };
  return draw(
    "course",
    lines.map(([name, y, color, axis, shape]) => ({
      x,
      y,
      name,
      xaxis: axis === "y" ? "x" : "x2",
      yaxis: axis,
      mode: "lines",
      line: { color, shape, width: 2, dash: name.startsWith("KB down") ? "dash" : "solid" },
      hovertemplate: `exchange %{x}<br>${name}: %{y:.4~g}<extra></extra>`,
    })),
    {
      height: one ? 560 : 300,
      grid: { rows: one ? 2 : 1, columns: one ? 1 : 2, pattern: "independent", ygap: 0.3, xgap: 0.16 },
      xaxis: bottom,
      xaxis2: bottom,
      yaxis: { title: { text: "Hessians, per site", standoff: 8 }, rangemode: "tozero" },
      yaxis2: { title: { text: "KB, per site:<br>up (line), down (dashes)", standoff: 8 }, rangemode: "tozero" },
    },
    {
      label: `Curves by exchange, up to exchange ${x.at(-1)}: ${listed(lines.map(([name]) => name))}.`,
      curves: lines.map(([name, y, , axis], curveNumber) => ({
        name,
        length: x.length,
        spots: (k) => [{ curveNumber, pointNumber: k, place: place(axis) }],
        say: (k) => `Exchange ${x[k]}: ${name} ${short(y[k])}.`,
      })),
      table: () => ({
        heads: ["exchanges", ...lines.map(([name]) => name), measures().gap, measures().grad_norm],
        rows: x.map((count, k) => [
          count,
          ...lines.map(([, y]) => short(y[k])),
          short(columns.gap[k]),
          short(columns.grad_norm[k]),
        ]),
      }),
    },
  );
}

function drawSites(sites) {
  const y = sites.map((_, k) => k),
    kb = (name) => sites.map((site) => site[name] / 1000);
  const bar = (name, x, color) => ({
    type: "bar",
    orientation: "h",
    x,
    y,
    name,
    marker: { color },
    text: sites.map((site) => plain(shortened(site.name, 40))),
    textposition: "none",
    hovertemplate: `%{text}<br>${name}: %{x:.4~g}<extra></extra>`,
  });
  const both = [
    ["KB up", kb("uplink_bytes"), UP],
    ["KB down", kb("downlink_bytes"), DOWN],
  ];
  return draw(
    "sites",
    both.map((one) => bar(...one)),
    {
      barmode: "group",
      height: Math.min(900, 110 + 34 * sites.length),
      showlegend: true,
      legend: { orientation: "h", y: 1.02, yanchor: "bottom", x: 0, traceorder: "normal" },
      xaxis: { title: { text: "KB", standoff: 6 } },
      yaxis: {
        ...nameAxis(
          sites.map(({ name }) => name),
          40,
          narrow("sites") ? 14 : 28,
        ),
        autorange: "reversed",
      },
    },
    {
      label: `Bars: KB up and down of ${sites.length} sites.`,
      curves: both.map(([name, x], curveNumber) => ({
        name,
        length: sites.length,
        spots: (k) => [{ curveNumber, pointNumber: k }],
        say: (k) => `${sites[k].name}: ${name} ${short(x[k])}.`,
      })),
      table: () => ({
        heads: ["site", "KB up", "KB down", "last answered in exchange", "answers refused"],
        rows: sites.map((site) => [
          site.name,
          short(site.uplink_bytes / 1000),
          short(site.downlink_bytes / 1000),
          site.last,
          site.refused,
        ]),
      }),
    },
  );
}
