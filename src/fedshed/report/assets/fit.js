// A fitted model: its coefficients with their intervals on one scale, a table of them, and its summary.

/** The heads of the table; exponentials have no standard error, as in the summary. */
const fitHeads = () => ({
  name: "coefficient",
  estimate: data.fit.exp ? data.fit.ratio : "estimate",
  ...(data.fit.exp ? {} : { standard_error: "std. error" }),
  low: "low",
  high: "high",
  p_value: "p",
});

/** A cell of the table. */
function fitCell(one, key) {
  if (key === "name") return one.name;
  const ratio = data.fit.exp && key !== "p_value" && one[key] !== null;
  return short(ratio ? Math.exp(one[key]) : one[key]);
}

const MOST_COEFFICIENTS = 60; // drawn; the table has all
const UNITS = { deviation: "per standard deviation", unit: "per unit of the table", error: "in standard errors" };
const WIDE = 6; // times the median length: a longer interval would squeeze the others, and is cut

/** The coefficients that are compared: those of columns, unless there are none. */
function compared() {
  const all = data.fit.coefficients,
    ofColumns = all.filter(({ kind }) => kind !== "constant");
  return ofColumns.length ? ofColumns : all;
}

/** The units there are: standard deviations and standard errors as far as they are known. */
function fitUnits() {
  const known = (name) => compared().some((one) => one[name] !== null);
  const order = data.fit.exp ? ["unit", "deviation", "error"] : ["deviation", "unit", "error"]; // the first is shown first
  return order
    .filter((unit) => unit === "unit" || known(unit === "error" ? "standard_error" : "deviation"))
    .map((unit) => [unit, UNITS[unit]]);
}

const fitRatio = () => data.fit.ratio !== "" && byId("fit-unit").value !== "error" && byId("fit-ratio").checked;

/** By what a coefficient is multiplied in the chosen unit; null where it cannot be. */
function factor(one, unit) {
  if (unit === "error") return one.standard_error > 0 ? 1 / one.standard_error : null;
  return unit === "deviation" ? (one.deviation ?? 1) : 1;
}

/** What is drawn: estimate and interval of each coefficient in the chosen unit, as a ratio if that is wanted. */
function fitPoints() {
  const unit = byId("fit-unit").value,
    made = fitRatio() ? Math.exp : (value) => value;
  return compared()
    .filter((one) => factor(one, unit) !== null)
    .map((one) => {
      const [estimate, low, high] = [one.estimate, one.low, one.high].map((value) =>
        value === null ? null : made(value * factor(one, unit)),
      );
      return { one, estimate, low, high };
    });
}

/** A range in which all estimates are, and the intervals but for those that are very long. */
function fitRange(points) {
  const at = fitRatio() ? Math.log10 : (value) => value,
    reference = at(fitRatio() ? 1 : 0);
  const lengths = points
    .filter(({ low }) => low !== null)
    .map(({ low, high }) => at(high) - at(low))
    .filter(Number.isFinite);
  const most = lengths.length ? WIDE * median(lengths) : 0;
  const ends = points.flatMap(({ estimate, low, high }) =>
    low !== null && at(high) - at(low) <= most ? [at(low), at(high)] : [at(estimate)],
  );
  const all = [reference, ...ends].filter(Number.isFinite),
    [left, right] = [Math.min(...all), Math.max(...all)],
    spare = 0.05 * (right - left || 1);
  return [left - spare, right + spare];
}

async function drawFit() {
  if (!section("fit", data.fit !== null)) return;
  const { coefficients, summary } = data.fit;
  options("fit-unit", fitUnits());
  byId("fit-ratio-label").hidden = data.fit.ratio === "";
  byId("fit-ratio").disabled = byId("fit-unit").value === "error";
  byId("fit-ratio-what").textContent = `${data.fit.ratio} on a log scale`;
  const heads = fitHeads();
  fillTable(
    byId("fit-table"),
    Object.values(heads),
    coefficients.map((one) => Object.keys(heads).map((key) => fitCell(one, key))),
  );
  byId("fit-summary").textContent = summary;
  byId("fit-summary").hidden = !summary;
  const points = fitPoints(),
    few = points.slice(0, MOST_COEFFICIENTS),
    range = fitRange(few);
  notes("fit-notes", fitNotes(points, few, range));
  await drawIntervals(few, range);
}

/** What is drawn, in what unit: the name of the scale. */
const scaleWords = () => [fitRatio() ? data.fit.ratio : "coefficient", UNITS[byId("fit-unit").value]];
const scaleName = () => scaleWords().join(" ");
const levelWords = () => `${short(100 * data.fit.level)} % interval`;
const reference = () => (fitRatio() ? 1 : 0);

/** The estimate with its interval, and of how much of the column it is. */
function inWords({ one, estimate, low, high }) {
  const interval = low === null ? "" : `, from ${short(low)} to ${short(high)}`;
  const each = byId("fit-unit").value === "deviation" && one.deviation !== null ? `, per ${short(one.deviation)}` : "";
  return short(estimate) + interval + each;
}

function drawIntervals(points, range) {
  const y = points.map((_, k) => k);
  const inside = (value) => (fitRatio() ? Math.min(Math.max(value, 1e-300), 1e300) : value);
  // Ends are drawn where they are: their distances from the estimate, on the scale of ratios, would lose the lower one.
  const drawn = points.flatMap((one, k) => (one.low === null ? [] : [{ ...one, k }]));
  const intervals = {
    x: drawn.flatMap(({ low, high }) => [inside(low), inside(high), null]),
    y: drawn.flatMap(({ k }) => [k, k, null]),
    mode: "lines+markers",
    connectgaps: false,
    line: { color: css("--mark"), width: 2 },
    marker: { symbol: "line-ns", size: 9, line: { color: css("--mark"), width: 2 } },
    hoverinfo: "skip",
  };
  const trace = {
    x: points.map(({ estimate }) => inside(estimate)),
    y,
    mode: "markers",
    marker: { color: css("--mark"), size: 8 },
    text: points.map((point) => `${plain(shortened(point.one.name, 34))}<br>${inWords(point)}`),
    hovertemplate: "%{text}<extra></extra>",
  };
  return draw("fit", [trace, intervals], fitLayout(points, y, range), fitReading(points));
}

function fitLayout(points, y, range) {
  const slim = narrow("fit"),
    [what, unit] = scaleWords().map(plain);
  const log = () => ({ type: "log", ...logTicks(...range, slim ? 4 : 6) });
  const line = { color: css("--soft"), width: 1.5, dash: "dash" };
  return {
    height: 92 + 24 * points.length,
    margin: { l: 56, r: 24, t: 16, b: 60 },
    yaxis: {
      tickvals: y,
      ticktext: points.map(({ one }) => plain(shortened(one.name, slim ? 16 : 34))),
      range: [points.length - 0.4, -0.6],
      showgrid: false,
    },
    xaxis: {
      title: {
        text: [what, `${unit},`, levelWords()].join(slim ? "<br>" : " "),
        standoff: 8,
        font: { size: slim ? 12 : 14 },
      },
      range,
      exponentformat: "none",
      minexponent: 6,
      nticks: slim ? 5 : 10,
      ...(fitRatio() ? log() : { type: "linear" }),
    },
    shapes: [{ type: "line", x0: reference(), x1: reference(), yref: "paper", y0: 0, y1: 1, line }],
  };
}

function fitReading(points) {
  const all = {
    name: "coefficients",
    length: points.length,
    spots: (k) => [{ curveNumber: 0, pointNumber: k }],
    say: (k) => `${points[k].one.name}: ${inWords(points[k])}.`,
  };
  const row = ({ one, estimate, low, high }) => [one.name, ...[estimate, low, high].map(short), unitOf(one)];
  return {
    label:
      `Estimates of ${points.length} coefficients on one scale, ${scaleName()}, each with its ${levelWords()}, ` +
      `and a line at ${reference()}.`,
    curves: points.length ? [all] : [],
    table: () => ({ heads: ["coefficient", scaleName(), "low", "high", "unit"], rows: fitPoints().map(row) }),
  };
}

/** In what unit a coefficient is drawn, in words. */
function unitOf(one) {
  const unit = byId("fit-unit").value;
  if (unit === "error") return `a standard error of ${short(one.standard_error)}`;
  if (one.kind === "level") return "level against the reference";
  return unit === "deviation" && one.deviation !== null ? `a standard deviation of ${short(one.deviation)}` : "1";
}

function fitNotes(points, few, [left, right]) {
  const unit = byId("fit-unit").value,
    found = [`The dashed line is at ${fitRatio() ? "1" : "0"}: no effect.`],
    named = (some) => listed(some.map(({ one }) => one.name));
  if (unit === "deviation") {
    found.push(
      "Each coefficient is that of one standard deviation of its column over all rows, so that the coefficients can be compared; a level of a category is compared with its reference.",
    );
    const others = points.filter(({ one }) => one.kind === "number" && one.deviation === null);
    if (others.length)
      found.push(
        `Per unit of the table, because no standard deviation is known (columns of two values and transformed ones have none here): ${named(others)}.`,
      );
  }
  if (unit === "error")
    found.push(
      "Every interval has the same length here: the scale compares how sure the signs are, not how large the effects are.",
    );
  const at = fitRatio() ? Math.log10 : (value) => value,
    cut = few.filter(({ low, high }) => low !== null && (at(low) < left || at(high) > right));
  if (cut.length)
    found.push(
      `Intervals that go on beyond the axis: ${cut.map(({ one, low, high }) => `${one.name} (${short(low)} to ${short(high)})`).join(", ")}.`,
    );
  const constants = data.fit.coefficients.filter(({ kind }) => kind === "constant");
  if (constants.length && constants.length < data.fit.coefficients.length)
    found.push(`Not drawn, because they have no column: ${listed(constants.map(({ name }) => name))}.`);
  if (few.length < points.length)
    found.push(`The first ${few.length} of ${points.length} coefficients are drawn; the tables have all.`);
  return found;
}

function setUpFit() {
  for (const id of ["fit-unit", "fit-ratio"]) byId(id).addEventListener("change", drawFit);
}
