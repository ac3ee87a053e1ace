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
  drawAgents();
  drawSpectrum();
  drawFit();
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

start().catch((error) => {
  byId("failure").hidden = false;
  byId("failure").textContent = `This browser cannot show the report (${error}).`;
  throw error;
});
