"use strict";
// What all parts of the page share: the data, what is chosen, and small helpers.

let data = JSON.parse(document.getElementById("data").textContent);
const FLOOR = 1e-16; // below it a gap is rounding

/** What was chosen in an earlier visit, if it is one of these; a browser may keep nothing for a file. */
function recall(name, among) {
  try {
    const kept = localStorage.getItem(`fedshed-${name}`);
    return among.includes(kept) ? kept : among[0];
  } catch {
    return among[0];
  }
}

function remember(name, value) {
  try {
    localStorage.setItem(`fedshed-${name}`, value);
  } catch {
    /* it is chosen again in the next visit */
  }
}

const chosen = {
  problem: 0,
  measure: "gap",
  axes: ["rounds", "kb_up", "hessians", "seconds"],
  hidden: new Set(),
  target: 0,
  scale: recall("scale", ["auto", "log", "linear", "cut"]),
  logY: recall("log-y", ["on", "off"]) === "on",
  sort: { column: null, down: false },
};
const perAgent = (bytes, count) => bytes.map((value) => value / 1000 / count);
const AXES = {
  iteration: { label: "iterations", values: (c) => c.iteration },
  rounds: { label: "rounds", values: (c) => c.rounds },
  exchanges: { label: "exchanges", values: (c) => c.exchanges },
  kb_up: { label: "KB up", values: (c, count) => perAgent(c.uplink_bytes, count), each: true },
  kb_down: { label: "KB down", values: (c, count) => perAgent(c.downlink_bytes, count), each: true },
  vectors: { label: "vectors", values: (c) => c.uplink_vectors, each: true },
  hessians: { label: "Hessians", values: (c) => c.hessians, each: true },
  seconds: { label: "seconds", values: (c) => c.seconds },
};

const byId = (id) => document.getElementById(id);
const problem = () => data.problems[chosen.problem];
const shown = (run) => !chosen.hidden.has(run.name);
const measures = () => ({ gap: problem().gap.name, grad_norm: "gradient norm" });
const measure = () => measures()[chosen.measure];

/** The traces of a run, one for each partition of the rows. */
const tracesOfRun = (run) => (run.repeats.length ? run.repeats : [run.columns]);

function median(values) {
  const sorted = [...values].sort((a, b) => a - b),
    half = sorted.length >> 1;
  return sorted.length % 2 ? sorted[half] : (sorted[half - 1] + sorted[half]) / 2;
}

/** At most so many indices out of `count`, evenly spaced, with both ends. */
function spread(count, most) {
  const few = Math.min(count, most),
    step = few > 1 ? (count - 1) / (few - 1) : 0;
  return Array.from({ length: few }, (_, k) => Math.round(k * step));
}

/** An element; text is always text, never markup. */
function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (value === true) made.setAttribute(name, "");
    else if (value !== false && value !== null) made.setAttribute(name, value);
  }
  made.append(...children.map((child) => (child instanceof Node ? child : String(child))));
  return made;
}

/** Fill a table: the first cell of a row is its head. */
function fillTable(table, heads, rows) {
  const head = element("tr", {}, ...heads.map((text) => element("th", { scope: "col" }, text)));
  const body = rows.map(([first, ...rest]) =>
    element("tr", {}, element("th", { scope: "row" }, first), ...rest.map((cell) => element("td", {}, cell))),
  );
  table.replaceChildren(element("thead", {}, head), element("tbody", {}, ...body));
}

/** Text for the plotting library, which reads some tags as markup. */
const plain = (text) => String(text).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");

/** A name that is not longer than so many letters: its middle is left out. */
function shortened(text, most) {
  if (text.length <= most) return text;
  const half = (most - 1) / 2;
  return `${text.slice(0, Math.ceil(half))}…${text.slice(text.length - Math.floor(half))}`;
}

/** A number as a reader wants it: whole as it is, else three digits. */
function short(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  if (Number.isInteger(value) && Math.abs(value) < 1e7) return String(value);
  const size = Math.abs(value);
  if (size < 1e-3 || size >= 1e7) return value.toExponential(1);
  return size < 100 ? value.toPrecision(3) : value.toFixed(size < 1000 ? 1 : 0);
}

/** Several things as a list in a sentence. */
const listed = (items) => (items.length < 2 ? items.join("") : `${items.slice(0, -1).join(", ")} and ${items.at(-1)}`);

const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const dark = matchMedia("(prefers-color-scheme: dark)");
const coarse = matchMedia("(pointer: coarse)");
const still = matchMedia("(prefers-reduced-motion: reduce)");

/** Fill a select; the choice stays where it can. */
function options(id, pairs) {
  const select = byId(id),
    before = select.value;
  select.replaceChildren(...pairs.map(([value, text]) => element("option", { value }, text)));
  if (pairs.some(([value]) => String(value) === before)) select.value = before;
}

const picked = new Set(); // selects of a run in which the reader has chosen

/** Fill a select of runs: that of a page that goes on follows the present run until the reader chooses another. */
function runOptions(id, runs) {
  options(
    id,
    runs.map((run) => [run.name, shortened(run.name, 40)]),
  );
  if (data.live && !picked.has(id)) byId(id).value = runs.at(-1).name;
}

function section(id, wanted) {
  byId(id).hidden = !wanted;
  return wanted;
}

/** Short sentences below a plot. */
const notes = (id, sentences) => byId(id).replaceChildren(...sentences.map((text) => element("li", {}, text)));
