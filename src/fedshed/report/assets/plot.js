// A plot for everybody: drawn by the library, named, read with the arrow keys, and as a table of its numbers.

const KEYS =
  "Left and right arrows move along a curve, up and down go to another curve, Home and End to its ends; Escape leaves it.";
const readings = new Map(); // of each plot: its label, its curves in words, its table
const cursors = new Map(); // of each plot: the curve and the point that are read

/** Whether a plot has the width of a phone. */
const narrow = (name) => byId(`${name}-figure`).clientWidth < 560;

/** Draw a plot into its figure; `reading` says the same in words: { label, curves: [{ name, length, say, spots }], table }. */
async function draw(name, traces, layout, reading) {
  const plot = plotOf(name);
  readings.set(name, reading);
  plot.setAttribute("aria-label", reading.label);
  await Plotly.react(plot, traces, dressed(layout, name), {
    displaylogo: false,
    displayModeBar: false,
    responsive: true,
  });
  for (const svg of document.querySelectorAll("svg")) svg.setAttribute("aria-hidden", "true"); // labels speak for them
  if (cursors.has(name)) point(name, cursors.get(name), false);
  if (byId(`${name}-numbers`).open) fillNumbers(name);
}

/** A layout in the page's colours. */
function dressed(layout, name) {
  const axis = { gridcolor: css("--grid"), linecolor: css("--edge"), zeroline: false, automargin: true };
  const whole = {
    paper_bgcolor: css("--ground"),
    plot_bgcolor: css("--ground"),
    font: { color: css("--ink"), family: "system-ui, sans-serif", size: 13 },
    margin: { l: 56, r: 16, t: 16, b: 44 },
    showlegend: false,
    hovermode: "closest",
    dragmode: coarse.matches ? false : "zoom",
    hoverlabel: {
      bgcolor: css("--panel"),
      font: { color: css("--ink"), size: narrow(name) ? 11 : 13 },
      bordercolor: css("--edge"),
      align: "left",
    },
    ...layout,
  };
  for (const key of Object.keys(whole)) {
    if (/^[xy]axis/.test(key)) whole[key] = { ...axis, ...whole[key] };
  }
  return whole;
}

/** The place of a plot, with all that belongs to it; made once. */
function plotOf(name) {
  const figure = byId(`${name}-figure`);
  if (!figure.childElementCount) {
    const plot = element("div", {
      id: `${name}-plot`,
      class: "plot",
      tabindex: 0,
      role: "application",
      "aria-roledescription": "plot",
      "aria-describedby": "plot-keys",
      onkeydown: (event) => moveCursor(name, event),
      onfocus: () => hint(name),
      onblur: () => leaveAfterClick(name),
    });
    figure.append(plot, element("p", { id: `${name}-said`, class: "readout", role: "status" }), numbers(name));
  }
  return byId(`${name}-plot`);
}

function numbers(name) {
  const save = () => Plotly.downloadImage(byId(`${name}-plot`), { format: "svg", filename: `fedshed-${name}` });
  const region = element(
    "div",
    { class: "scroll tall", tabindex: 0, role: "region", "aria-label": `Numbers of the plot: ${name}` },
    element("table"),
  );
  return element(
    "details",
    { id: `${name}-numbers`, class: "numbers", ontoggle: () => byId(`${name}-numbers`).open && fillNumbers(name) },
    element("summary", {}, "Numbers of this plot"),
    region,
    element("p", { class: "notes" }),
    element("button", { type: "button", onclick: save }, "Save the plot as SVG"),
  );
}

function fillNumbers(name) {
  const { heads, rows, note = "" } = readings.get(name).table(),
    details = byId(`${name}-numbers`);
  fillTable(details.querySelector("table"), heads, rows);
  details.querySelector(".notes").textContent = note;
}

// --- reading with the keyboard -----------------------------------------------------------------------

const STEPS = { ArrowRight: 1, ArrowLeft: -1, PageDown: 10, PageUp: -10, Home: -Infinity, End: Infinity };
const LINES = { ArrowDown: 1, ArrowUp: -1 };
const within = (value, length) => Math.min(Math.max(value, 0), length - 1);

function moveCursor(name, event) {
  if (event.ctrlKey || event.altKey || event.metaKey) return;
  const { curves } = readings.get(name),
    before = cursors.get(name);
  const lone = curves.length === 1,
    step = STEPS[event.key] ?? (lone ? LINES[event.key] : undefined),
    line = LINES[event.key];
  if (event.key === "Escape") return leave(name);
  if ((step === undefined && line === undefined) || !curves.length) return;
  event.preventDefault();
  if (!before) return point(name, { curve: 0, at: event.key === "End" ? Infinity : 0 });
  point(name, step === undefined ? { ...before, curve: before.curve + line } : { ...before, at: before.at + step });
}

/** Show a point as if the pointer were there, and say it. */
function point(name, wanted, aloud = true) {
  const { curves } = readings.get(name),
    curve = within(wanted.curve, curves.length);
  if (!curves.length) return leave(name);
  const at = within(wanted.at, curves[curve].length),
    spots = curves[curve].spots(at);
  cursors.set(name, { curve, at });
  Plotly.Fx.hover(
    byId(`${name}-plot`),
    spots.map(({ place, ...spot }) => spot),
    spots.map(({ place }) => place ?? "xy"),
  );
  if (aloud) byId(`${name}-said`).textContent = curves[curve].say(at);
}

function hint(name) {
  if (byId(`${name}-plot`).matches(":focus-visible")) byId(`${name}-said`).textContent = KEYS;
}

let pressed = false; // a button of the pointer
addEventListener("pointerdown", () => (pressed = true), true);
for (const end of ["pointerup", "pointercancel"]) addEventListener(end, () => (pressed = false), true);

/** Leave a plot that lost the focus; not while a click is under way, which would miss what then moves. */
function leaveAfterClick(name) {
  if (pressed) addEventListener("click", () => leave(name), { once: true });
  else leave(name);
}

function leave(name) {
  cursors.delete(name);
  byId(`${name}-said`).textContent = "";
  Plotly.Fx.unhover(byId(`${name}-plot`));
}
