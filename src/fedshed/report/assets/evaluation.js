// An evaluation on rows that were not fitted: ROC curve, calibration curve, and its text.

const WHOLE = [-0.02, 1.02];
const diagonal = () => ({
  x: [0, 1],
  y: [0, 1],
  mode: "lines",
  line: { color: css("--soft"), width: 1 },
  hoverinfo: "skip",
  showlegend: false,
});

async function drawEvaluation() {
  const found = data.evaluation ?? null;
  if (!section("evaluation", found !== null)) return;
  byId("evaluation-text").textContent = found.text;
  byId("roc-figure").hidden = found.roc === null;
  byId("calibration-figure").hidden = !found.calibration.length;
  if (found.roc !== null) await drawRoc(found.roc);
  if (found.calibration.length) await drawCalibration(found.calibration);
}

function drawRoc({ false_positive: x, true_positive: y, low, high }) {
  const edge = (values, fill) => ({
    x,
    y: values,
    mode: "lines",
    line: { width: 0 },
    hoverinfo: "skip",
    showlegend: false,
    ...fill,
  });
  return draw(
    "roc",
    [
      diagonal(),
      edge(low, {}),
      edge(high, { fill: "tonexty", fillcolor: "rgba(86, 180, 233, 0.3)" }),
      {
        x,
        y,
        mode: "lines",
        line: { color: css("--mark") },
        showlegend: false,
        hovertemplate: "false positive %{x:.3f}<br>true positive %{y:.3f}<extra></extra>",
      },
    ],
    {
      height: 420,
      xaxis: { range: WHOLE, title: { text: "false positive share" } },
      yaxis: { range: WHOLE, title: { text: "true positive share, 95 % band", standoff: 8 } },
    },
    {
      label: "ROC curve: true positive share against false positive share, with a 95 % band.",
      curves: [
        {
          name: "ROC",
          length: x.length,
          spots: (k) => [{ curveNumber: 3, pointNumber: k }],
          say: (k) =>
            `False positive share ${short(x[k])}: true positive share ${short(y[k])}, from ${short(low[k])} to ${short(high[k])}.`,
        },
      ],
      table: () => ({
        heads: ["false positive share", "true positive share", "low", "high"],
        rows: x.map((value, k) => [value, y[k], low[k], high[k]].map(short)),
      }),
    },
  );
}

function drawCalibration(groups) {
  const take = (name) => groups.map((group) => group[name]),
    x = take("predicted"),
    y = take("observed"),
    rows = take("weight");
  const reach = (name) => take(name).map((end, k) => Math.abs(end - y[k]));
  return draw(
    "calibration",
    [
      diagonal(),
      {
        x,
        y,
        mode: "markers",
        marker: { color: css("--mark"), size: 8 },
        showlegend: false,
        error_y: {
          type: "data",
          symmetric: false,
          array: reach("high"),
          arrayminus: reach("low"),
          color: css("--mark"),
        },
        text: rows.map((count) => `${short(count)} rows`),
        hovertemplate: "predicted %{x:.3f}<br>observed %{y:.3f}<br>%{text}<extra></extra>",
      },
    ],
    {
      height: 420,
      xaxis: { range: WHOLE, title: { text: "predicted probability" } },
      yaxis: { range: WHOLE, title: { text: "observed share, 95 % interval", standoff: 8 } },
    },
    {
      label: `Calibration: observed share against predicted probability in ${groups.length} groups of rows, with 95 % intervals.`,
      curves: [
        {
          name: "groups",
          length: groups.length,
          spots: (k) => [{ curveNumber: 1, pointNumber: k }],
          say: (k) =>
            `Predicted ${short(x[k])}: observed ${short(y[k])}, from ${short(groups[k].low)} to ${short(groups[k].high)}, ${short(rows[k])} rows.`,
        },
      ],
      table: () => ({
        heads: ["predicted", "observed", "low", "high", "rows"],
        rows: groups.map((group) =>
          ["predicted", "observed", "low", "high", "weight"].map((name) => short(group[name])),
        ),
      }),
    },
  );
}
