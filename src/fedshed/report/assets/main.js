// Put the page together.

async function drawAll() {
  const runs = problem().runs.length > 0;
  section("curves", runs);
  section("costs", runs);
  options("measure", Object.entries(measures()));
  byId("measure").value = chosen.measure;
  if (runs) {
    drawLegend();
    drawTable();
    await drawCurves();
  }
  for (const part of [drawTimes, drawTraffic, drawAgents, drawSpectrum, drawFit, drawEvaluation]) await part();
  drawRerun();
  const sections = [...document.querySelectorAll("main > section:not([hidden])")];
  byId("nav").replaceChildren(...sections.map((one) => element("a", { href: `#${one.id}` }, one.dataset.title)));
}

function drawRerun() {
  const { command, seed, data: hashes, versions } = data.rerun;
  byId("command").textContent = command;
  const facts = [
    ["seed", seed],
    ...Object.entries(hashes).map(([name, hash]) => [`data, ${name}`, hash]),
    [
      "versions",
      Object.entries(versions)
        .map((pair) => pair.join(" "))
        .join(", "),
    ],
  ];
  byId("facts").replaceChildren(
    ...facts.flatMap(([name, value]) => [element("dt", {}, name), element("dd", {}, value)]),
  );
}

/** The gap where it is known, else the gradient norm. */
function firstMeasure() {
  const known = problem().runs.some((run) => run.columns.gap.some((value) => value !== null));
  return known || !problem().runs.length ? "gap" : "grad_norm";
}

/** Of a study over sites, exchanges are what takes time. */
function firstAxes() {
  if (data.fit !== null || problem().runs.some((run) => run.traffic.length))
    chosen.axes = ["exchanges", "kb_up", "hessians", "seconds"];
}

/** Names, titles and panels are arranged for the width of a phone or of a desk: another width, another drawing. */
function redrawOnOtherWidth() {
  const kind = () => [560, 640].filter((width) => document.querySelector("main").clientWidth < width).length;
  let before = kind(),
    waiting = null;
  addEventListener("resize", () => {
    clearTimeout(waiting);
    waiting = setTimeout(() => {
      if (before !== kind()) drawAll();
      before = kind();
    }, 150);
  });
}

async function start() {
  document.querySelector("main").hidden = false;
  byId("plot-keys").textContent = KEYS;
  chosen.measure = firstMeasure();
  firstAxes();
  options(
    "problem",
    data.problems.map((one, k) => [k, one.title]),
  );
  byId("choose-problem").hidden = data.problems.length < 2;
  byId("problem").addEventListener("change", (event) => {
    chosen.problem = Number(event.target.value);
    drawAll();
  });
  for (const part of [setUpTable, setUpCurves, setUpAgents, setUpSpectrum, setUpFit]) part();
  if (data.live) setUpLive();
  await drawAll();
  dark.addEventListener("change", drawAll);
  redrawOnOtherWidth();
  document.body.dataset.ready = "true";
}

start().catch((error) => {
  byId("failure").hidden = false;
  byId("failure").textContent = `This browser cannot show the report (${error}).`;
  throw error;
});
