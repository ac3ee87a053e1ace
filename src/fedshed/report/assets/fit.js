// A fitted model: coefficients with their intervals, and its summary.

const FIT_HEADS = { name: "coefficient", estimate: "estimate", standard_error: "std. error", low: "low", high: "high", p_value: "p" };
const MOST_COEFFICIENTS = 60; // drawn; the table has all

function drawFit() {
  if (!section("fit", data.fit !== null)) return;
  const { coefficients, level, summary } = data.fit;
  const drawn = coefficients.slice(0, MOST_COEFFICIENTS), y = drawn.map((_, k) => k);
  const reach = (end) => drawn.map((one) => (one[end] === null ? 0 : Math.abs(one[end] - one.estimate)));
  draw("fit-plot", [{
    x: drawn.map((one) => one.estimate), y, mode: "markers", marker: { color: css("--mark"), size: 8 },
    error_x: { type: "data", symmetric: false, array: reach("high"), arrayminus: reach("low"), color: css("--mark") },
    text: drawn.map((one) => plain(one.name)), hovertemplate: "%{text}: %{x:.4g}<extra></extra>",
  }], {
    height: 80 + 22 * drawn.length, yaxis: { tickvals: y, ticktext: drawn.map((one) => plain(one.name)), autorange: "reversed" },
    xaxis: { title: { text: `estimate and ${short(100 * level)} % interval` }, zeroline: true, zerolinecolor: css("--soft") },
  });
  const cells = (tag, values) => element("tr", {}, ...values.map((value) => element(tag, tag === "th" ? { scope: "col" } : {}, value)));
  const body = coefficients.map((one) => cells("td", Object.keys(FIT_HEADS).map((key) => (key === "name" ? one.name : short(one[key])))));
  byId("fit-table").replaceChildren(element("thead", {}, cells("th", Object.values(FIT_HEADS))), element("tbody", {}, ...body));
  byId("fit-summary").textContent = summary;
  byId("fit-summary").hidden = !summary;
}
