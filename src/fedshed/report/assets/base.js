"use strict";
// What all parts of the page share: the data, what is chosen, small helpers, and drawing.

let data = JSON.parse(document.getElementById("data").textContent);
const FLOOR = 1e-16; // below it a gap is rounding
const chosen = {
  problem: 0, measure: "gap", axes: ["rounds", "kb_up", "hessians", "seconds"], logX: false, logY: true,
  hidden: new Set(), target: 0, sort: { column: null, down: false },
};
const MEASURES = { gap: "gap f − f*", grad_norm: "gradient norm" };
const perAgent = (bytes, count) => bytes.map((value) => value / 1000 / count);
const AXES = {
  iteration: { label: "iterations", values: (c) => c.iteration },
  rounds: { label: "rounds", values: (c) => c.rounds },
  exchanges: { label: "exchanges", values: (c) => c.exchanges },
  kb_up: { label: "KB up", values: (c, count) => perAgent(c.uplink_bytes, count) },
  kb_down: { label: "KB down", values: (c, count) => perAgent(c.downlink_bytes, count) },
  vectors: { label: "vectors", values: (c) => c.uplink_vectors },
  hessians: { label: "Hessians", values: (c) => c.hessians },
  seconds: { label: "seconds", values: (c) => c.seconds },
};

const byId = (id) => document.getElementById(id);
const problem = () => data.problems[chosen.problem];
const shown = (run) => !chosen.hidden.has(run.name);

/** The traces of a run, one for each partition of the rows. */
const tracesOfRun = (run) => (run.repeats.length ? run.repeats : [run.columns]);

function median(values) {
  const sorted = [...values].sort((a, b) => a - b), half = sorted.length >> 1;
  return sorted.length % 2 ? sorted[half] : (sorted[half - 1] + sorted[half]) / 2;
}

/** An element; text is always text, never markup. */
function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (value === true) made.setAttribute(name, "");
    else if (value !== false && value !== null) made.setAttribute(name, value);
  }
  made.append(...children.map((child) => child instanceof Node ? child : String(child)));
  return made;
}

/** Text for the plotting library, which reads some tags as markup. */
const plain = (text) => String(text).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");

/** A number as a reader wants it: whole as it is, else three digits. */
function short(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  if (Number.isInteger(value) && Math.abs(value) < 1e7) return String(value);
  const size = Math.abs(value);
  if (size < 1e-3 || size >= 1e7) return value.toExponential(1);
  return size < 100 ? value.toPrecision(3) : value.toFixed(size < 1000 ? 1 : 0);
}

const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const dark = matchMedia("(prefers-color-scheme: dark)");
const coarse = matchMedia("(pointer: coarse)");
/** The colour of an algorithm; black is not seen on a dark ground. */
const colour = (run) => (dark.matches && run.look.color === "#000000" ? "#f2f2f2" : run.look.color);

/** Draw a plot in the page's colours. */
function draw(id, traces, layout) {
  const axis = { gridcolor: css("--grid"), linecolor: css("--line"), zeroline: false, automargin: true };
  const whole = {
    paper_bgcolor: css("--ground"), plot_bgcolor: css("--ground"),
    font: { color: css("--ink"), family: "system-ui, sans-serif", size: 13 },
    margin: { l: 60, r: 12, t: 24, b: 44 }, showlegend: false, hovermode: "closest",
    dragmode: coarse.matches ? false : "zoom",
    hoverlabel: { bgcolor: css("--panel"), font: { color: css("--ink") }, bordercolor: css("--line") },
    ...layout,
  };
  for (const name of Object.keys(whole)) {
    if (/^[xy]axis/.test(name)) whole[name] = { ...axis, ...whole[name] };
  }
  const config = {
    displaylogo: false, responsive: true, displayModeBar: coarse.matches ? false : "hover", modeBarButtonsToRemove: ["lasso2d", "select2d"],
  };
  return Plotly.react(id, traces, whole, config);
}

/** Fill a select; the choice stays where it can. */
function options(id, pairs) {
  const select = byId(id), before = select.value;
  select.replaceChildren(...pairs.map(([value, text]) => element("option", { value }, text)));
  if (pairs.some(([value]) => String(value) === before)) select.value = before;
}

function section(id, wanted) {
  byId(id).hidden = !wanted;
  return wanted;
}
