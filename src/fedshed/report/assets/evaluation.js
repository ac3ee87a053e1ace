// An evaluation on rows that were not fitted: ROC curve, calibration curve, and its text.

function drawEvaluation() {
  const found = data.evaluation ?? null;
  if (!section("evaluation", found !== null)) return;
  byId("evaluation-text").textContent = found.text;
  const diagonal = { x: [0, 1], y: [0, 1], mode: "lines", line: { color: css("--soft"), width: 1 }, hoverinfo: "skip", showlegend: false };
  const range = [-0.02, 1.02];
  byId("evaluation-roc").hidden = found.roc === null;
  byId("evaluation-calibration").hidden = !found.calibration.length;
  if (found.roc !== null) {
    const { false_positive: x, true_positive: y, low, high } = found.roc;
    const edge = (values, fill) => ({ x, y: values, mode: "lines", line: { width: 0 }, hoverinfo: "skip", showlegend: false, ...fill });
    draw("evaluation-roc", [
      diagonal, edge(low, {}), edge(high, { fill: "tonexty", fillcolor: "rgba(86, 180, 233, 0.3)" }),
      { x, y, mode: "lines", line: { color: css("--mark") }, showlegend: false, hovertemplate: "false positive %{x:.3f}<br>true positive %{y:.3f}<extra></extra>" },
    ], { height: 420, xaxis: { range, title: { text: "false positive share" } }, yaxis: { range, title: { text: "true positive share, 95 % band" } } });
  }
  if (found.calibration.length) {
    const take = (name) => found.calibration.map((group) => group[name]);
    const y = take("observed"), reach = (name) => take(name).map((end, k) => Math.abs(end - y[k]));
    draw("evaluation-calibration", [diagonal, {
      x: take("predicted"), y, mode: "markers", marker: { color: css("--mark"), size: 8 }, showlegend: false,
      error_y: { type: "data", symmetric: false, array: reach("high"), arrayminus: reach("low"), color: css("--mark") },
      text: take("weight").map((rows) => `${short(rows)} rows`), hovertemplate: "predicted %{x:.3f}<br>observed %{y:.3f}<br>%{text}<extra></extra>",
    }], { height: 420, xaxis: { range, title: { text: "predicted probability" } }, yaxis: { range, title: { text: "observed share, 95 % interval" } } });
  }
}
