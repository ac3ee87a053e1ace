// A run that goes on: rows arrive as events, commands go back with the run's token.

const REFRESH = 1000; // ms at least between two looks at everything; more where that takes long
const REDRAW = still.matches ? 2000 : 400; // ms between two drawings of the curves
let live = data.live,
  changed = false,
  stale = false,
  fetching = false,
  fetchedAt = 0,
  pause = REFRESH;

const keyed = (path, more = "") => `${path}?key=${encodeURIComponent(live.key)}${more}`;

function setUpLive() {
  section("live", true);
  if (live.study) {
    setUpForm();
    byId("study").addEventListener("submit", (event) => {
      event.preventDefault();
      post("start", wishes());
    });
    for (const name of ["pause", "resume", "stop"]) {
      byId("commands").append(
        element(
          "button",
          { type: "button", id: name, onclick: () => post(name) },
          name[0].toUpperCase() + name.slice(1),
        ),
      );
    }
  }
  byId("commands").append(element("a", { href: keyed("report.html"), download: "report.html" }, "Save the report"));
  showStatus(live.status);
  const events = new EventSource(keyed("events", `&after=${live.after}`));
  events.addEventListener("message", (event) => {
    const said = JSON.parse(event.data);
    if (said.over) events.close();
    receive(said);
  });
  events.addEventListener("error", () =>
    lost(
      events.readyState === EventSource.CLOSED
        ? "The server refuses this page. Open the address that `fedshed ui` printed last."
        : "The server does not answer; this page waits for it.",
    ),
  );
  setInterval(() => {
    if (stale && Date.now() - fetchedAt > pause) refetch();
    else if (changed) {
      changed = false;
      drawTable();
      drawCurves();
    }
  }, REDRAW);
}

async function post(command, body = null) {
  try {
    const answer = await fetch(command, {
      method: "POST",
      headers: { "X-Key": live.key, "X-Run-Token": live.status.token ?? "" },
      body: body && JSON.stringify(body),
    });
    const said = await answer.json();
    markWrong(said.error && said.field);
    if (said.error) say(said.error, true); // else the stream of events says what became of it, in the right order
  } catch {
    lost("The server does not answer. Start it again with `fedshed ui`, and open the address that it prints.");
  }
}

/** A sentence below the form; one about a mistake is marked. */
function say(sentence, wrong = false) {
  byId("status").textContent = sentence;
  byId("status").classList.toggle("wrong", wrong);
}

/** Without its server a page can still be looked at, but not commanded. */
function lost(sentence) {
  document.body.dataset.state = "lost";
  say(sentence, true);
  for (const button of document.querySelectorAll("#live button")) button.disabled = true;
}

function showStatus(status) {
  live.status = status;
  document.body.dataset.state = status.state;
  say(`${status.state}: ${status.message}`, status.state === "failed");
  if (!live.study) return;
  const going = status.state === "running" || status.state === "paused";
  byId("start").disabled = going;
  byId("pause").disabled = status.state !== "running";
  byId("resume").disabled = status.state !== "paused";
  byId("stop").disabled = !going;
}

/** New rows go to their curves at once; agents, spectra, a new run or a new state are looked at as a whole soon. */
function receive({ status, rows, over }) {
  const same = status.generation === live.status.generation && status.state === live.status.state;
  if (over)
    lost(
      `The server has ended (${status.state}: ${status.message}). What was computed until then is still in this page.`,
    );
  else showStatus(status);
  const known = new Map(problem().runs.map((run) => [run.name, run]));
  stale = stale || rows.length > 0;
  if (!over && (!same || rows.some(([name]) => !known.has(name)))) return refetch();
  for (const [name, run] of known)
    append(
      run,
      rows.filter(([one]) => one === name).map(([, values]) => values),
    );
}

/** Rows that did not come with the whole already. */
function append(run, rows) {
  const last = run.columns.iteration[run.columns.iteration.length - 1],
    at = live.columns.indexOf("iteration");
  const fresh = rows.filter((values) => values[at] > last);
  if (!fresh.length) return;
  live.columns.forEach((column, k) => {
    run.columns[column] = run.columns[column].concat(fresh.map((values) => values[k]));
  });
  run.rows += fresh.length;
  changed = true;
}

/** Everything anew; what changes meanwhile is looked at after the next pause. */
async function refetch() {
  if (fetching) return void (stale = true);
  fetching = true;
  stale = false;
  const began = Date.now();
  try {
    const answer = await fetch(keyed("data"));
    if (answer.ok) await take(await answer.json());
  } catch {
    /* the stream of events says so */
  } finally {
    fetching = false;
    fetchedAt = Date.now();
    pause = Math.max(REFRESH, 2 * (fetchedAt - began));
  }
}

async function take(fresh) {
  const first = !problem().runs.length;
  data = fresh;
  live = { ...live, study: data.live.study };
  document.title = document.querySelector("h1").textContent = data.title;
  if (first) chosen.measure = firstMeasure();
  await drawAll();
}
