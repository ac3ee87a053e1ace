// Put the page together.

async function drawAll() {
  const runs = problem().runs.length > 0;
  section("curves", runs);
  section("costs", runs);
  if (runs) {
    drawLegend();
    drawTable();
    await drawCurves();
  }
  drawTimes();
  drawAgents();
  drawSpectrum();
  drawFit();
  drawEvaluation();
  drawRerun();
  const sections = [...document.querySelectorAll("main > section:not([hidden])")];
  byId("nav").replaceChildren(...sections.map((one) => element("a", { href: `#${one.id}` }, one.dataset.title)));
}

function drawRerun() {
  const { command, seed, data: hashes, versions } = data.rerun;
  byId("command").textContent = command;
  const facts = [
    ["seed", seed], ...Object.entries(hashes).map(([name, hash]) => [`data, ${name}`, hash]),
    ["versions", Object.entries(versions).map((pair) => pair.join(" ")).join(", ")],
  ];
  byId("facts").replaceChildren(...facts.flatMap(([name, value]) => [element("dt", {}, name), element("dd", {}, value)]));
}

/** The gap where it is known, else the gradient norm. */
function firstMeasure() {
  const known = problem().runs.some((run) => run.columns.gap.some((value) => value !== null));
  return known || !problem().runs.length ? "gap" : "grad_norm";
}

async function start() {
  document.querySelector("main").hidden = false;
  chosen.measure = firstMeasure();
  options("problem", data.problems.map((one, k) => [k, one.title]));
  byId("choose-problem").hidden = data.problems.length < 2;
  byId("problem").addEventListener("change", (event) => { chosen.problem = Number(event.target.value); drawAll(); });
  setUpTable();
  setUpCurves();
  setUpAgents();
  setUpSpectrum();
  if (data.live) setUpLive();
  await drawAll();
  dark.addEventListener("change", drawAll);
  document.body.dataset.ready = "true";
}

/** On paper everything is open, and plots are as wide as the page. */
const PAPER = 680; // CSS pixels between the margins of A4
const closed = [], widths = new Map();
addEventListener("beforeprint", () => {
  for (const details of document.querySelectorAll("details:not([open])")) {
    details.open = true;
    closed.push(details);
  }
  for (const plot of document.querySelectorAll(".js-plotly-plot")) {
    if (!plot.clientWidth) continue; // of a section that is not shown
    widths.set(plot, plot.layout.width);
    Plotly.relayout(plot, { width: PAPER, autosize: false });
  }
});
addEventListener("afterprint", () => {
  for (const details of closed.splice(0)) details.open = false;
  for (const [plot, width] of widths) Plotly.relayout(plot, { width: width ?? null, autosize: true });
  widths.clear();
});

start().catch((error) => {
  byId("failure").hidden = false;
  byId("failure").textContent = `This browser cannot show the report (${error}).`;
  throw error;
});
