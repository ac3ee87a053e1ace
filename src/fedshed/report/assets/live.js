// A run that goes on: rows arrive as events, commands go back with the run's token.

const FIELDS = [
  ["dataset", "data set"], ["algorithms", "algorithms, with commas"], ["agents", "agents"], ["partition", "partition"],
  ["l2", "ridge"], ["budget", "budget"], ["max_iterations", "iterations at most"], ["tol", "gradient norm to stop at"], ["seed", "seed"],
];
const NUMBERS = ["agents", "l2", "max_iterations", "tol", "seed"];
const REFRESH = 3000; // ms between two looks at agents and spectra
const REDRAW = 400; // ms between two drawings of the curves
let live = data.live, changed = false, fetchedAt = 0;

const keyed = (path, more = "") => `${path}?key=${encodeURIComponent(live.key)}${more}`;

function setUpLive() {
  section("live", true);
  if (live.study) {
    byId("study").append(...FIELDS.map(([name, label]) => field(name, label)), element("button", { id: "start" }, "Start"));
    byId("study").addEventListener("submit", (event) => { event.preventDefault(); post("start", wishes()); });
    for (const name of ["pause", "resume", "stop"]) {
      byId("commands").append(element("button", { type: "button", id: name, onclick: () => post(name) }, name[0].toUpperCase() + name.slice(1)));
    }
  }
  byId("commands").append(element("a", { href: keyed("report.html"), download: "report.html" }, "Save the report"));
  showStatus(live.status);
  const events = new EventSource(keyed("events", `&after=${live.after}`));
  events.addEventListener("message", (event) => receive(JSON.parse(event.data)));
  events.addEventListener("error", () => { byId("status").textContent = "The server does not answer; waiting for it."; });
  setInterval(() => { if (changed) { changed = false; drawTable(); drawCurves(); } }, REDRAW);
}

function field(name, label) {
  const value = Array.isArray(live.study[name]) ? live.study[name].join(",") : live.study[name] ?? "";
  const control = name === "dataset"
    ? element("select", { name }, ...live.datasets.map((one) => element("option", { value: one, selected: one === value }, one)))
    : element("input", { name, value, autocomplete: "off" });
  return element("label", { class: name === "algorithms" ? "wide" : null }, label, control);
}

/** The settings of the form; what is left empty is the data set's or the algorithm's own. */
function wishes() {
  const filled = [...new FormData(byId("study"))].map(([name, text]) => [name, text.trim()]).filter(([, text]) => text);
  return Object.fromEntries(filled.map(([name, text]) => [
    name, name === "algorithms" ? text.split(/[\s,]+/).filter(Boolean) : NUMBERS.includes(name) && !Number.isNaN(Number(text)) ? Number(text) : text,
  ]));
}

async function post(command, body = null) {
  const answer = await fetch(command, {
    method: "POST", headers: { "X-Key": live.key, "X-Run-Token": live.status.token ?? "" }, body: body && JSON.stringify(body),
  });
  const said = await answer.json();
  if (said.error) byId("status").textContent = said.error;
  else showStatus(said);
}

function showStatus(status) {
  live.status = status;
  document.body.dataset.state = status.state;
  byId("status").textContent = `${status.state}: ${status.message}`;
  if (!live.study) return;
  const going = status.state === "running" || status.state === "paused";
  byId("start").disabled = going;
  byId("pause").disabled = status.state !== "running";
  byId("resume").disabled = status.state !== "paused";
  byId("stop").disabled = !going;
}

/** New rows go to their curves; a new run, a new algorithm or a new state is looked at as a whole. */
function receive({ status, rows }) {
  const same = status.generation === live.status.generation && status.state === live.status.state;
  showStatus(status);
  const known = new Map(problem().runs.map((run) => [run.name, run]));
  const whole = !same || rows.some(([name]) => !known.has(name)) || (rows.length && Date.now() - fetchedAt > REFRESH);
  if (whole) return refetch();
  for (const [name, run] of known) append(run, rows.filter(([one]) => one === name).map(([, values]) => values));
}

/** Rows that did not come with the whole already. */
function append(run, rows) {
  const last = run.columns.iteration[run.columns.iteration.length - 1], at = live.columns.indexOf("iteration");
  const fresh = rows.filter((values) => values[at] > last);
  if (!fresh.length) return;
  live.columns.forEach((column, k) => { run.columns[column] = run.columns[column].concat(fresh.map((values) => values[k])); });
  run.rows += fresh.length;
  changed = true;
}

async function refetch() {
  fetchedAt = Date.now();
  const answer = await fetch(keyed("data"));
  if (!answer.ok) return;
  const first = !problem().runs.length;
  data = await answer.json();
  live = { ...live, study: data.live.study };
  showStatus(data.live.status);
  document.title = document.querySelector("h1").textContent = data.title;
  if (first) {
    chosen.measure = byId("measure").value = firstMeasure();
    chosen.axes = chosen.axes.length ? chosen.axes : ["rounds"];
  }
  await drawAll();
}
