// The form of the live page: what can be chosen for each data set, and what is wrong with a choice.

const FIELDS = [
  { name: "agents", label: "agents", type: "number", min: 1, step: 1 },
  { name: "l2", label: "ridge (l2)", type: "number", min: 0, step: "any" },
  { name: "budget", label: "eigenpairs per round, or rayleigh", type: "text" },
  { name: "max_iterations", label: "iterations at most", type: "number", min: 1, step: 1 },
  { name: "tol", label: "gradient norm to stop at", type: "number", min: 0, step: "any" },
  { name: "seed", label: "seed", type: "number", min: 0, step: 1 },
];
const HINT = "Left empty, it is that of the data set or the algorithm.";

const choice = (list, name) => list.find((one) => one.name === name);
const dataset = () => choice(live.choices.datasets, byId("study-dataset").value);

function setUpForm() {
  const data = element(
    "select",
    { name: "dataset", id: "study-dataset", onchange: () => offer(null) },
    ...live.choices.datasets.map((one) =>
      element(
        "option",
        { value: one.name, disabled: Boolean(one.missing), selected: one.name === live.study.dataset },
        one.missing ? `${one.name} (its files are not here)` : one.name,
      ),
    ),
  );
  const partition = element("select", { name: "partition", id: "study-partition", onchange: describe });
  const fields = FIELDS.map(({ name, label, ...kind }) =>
    element(
      "label",
      {},
      label,
      element("input", { name, ...kind, value: live.study[name] ?? "", autocomplete: "off", title: HINT }),
    ),
  );
  byId("study").append(
    element(
      "div",
      { class: "fields" },
      element("label", {}, "data set", data),
      element("label", {}, "rows are dealt by", partition),
      ...fields,
    ),
    element("p", { id: "study-about", class: "notes" }),
    element("fieldset", { id: "study-algorithms", "aria-describedby": "status" }, element("legend", {}, "Algorithms")),
    element("button", { id: "start" }, "Start"),
  );
  byId("study").noValidate = true; // the server checks, and says what is wrong
  offer(live.study.algorithms);
}

/** What is possible on the chosen data set; `ticked` are its algorithms, null for the usual ones. */
function offer(ticked) {
  const data = dataset(),
    wanted = ticked ?? data.usual,
    first = [...new Set([...data.usual, ...wanted])];
  const partition = byId("study-partition"),
    before = ticked ? live.study.partition : data.partition;
  partition.replaceChildren(
    ...data.partitions.map((name) => element("option", { value: name, selected: name === before }, name)),
  );
  if (!ticked) document.querySelector("#study input[name=agents]").value = data.agents;
  const box = (name) =>
    element(
      "label",
      {},
      element("input", { type: "checkbox", name: "algorithms", value: name, checked: wanted.includes(name) }),
      element("span", {}, element("b", {}, name), ` ${choice(live.choices.algorithms, name)?.about ?? ""}`),
    );
  const others = data.algorithms.filter((name) => !first.includes(name));
  byId("study-algorithms").replaceChildren(
    element("legend", {}, "Algorithms"),
    element("div", { class: "choices" }, ...first.filter((name) => data.algorithms.includes(name)).map(box)),
    element(
      "details",
      {},
      element("summary", {}, `${others.length} more algorithms for this data set`),
      element("div", { class: "choices" }, ...others.map(box)),
    ),
  );
  describe();
}

/** What the chosen data set and partition are, in words. */
function describe() {
  const data = dataset(),
    partition = byId("study-partition").value,
    agents = document.querySelector("#study input[name=agents]");
  byId("study-about").textContent =
    `${data.name}: ${data.about}. ${partition}: ${choice(live.choices.partitions, partition)?.about ?? ""}.`;
  agents.disabled = partition === "natural"; // the data set has its own sites
}

/** The settings of the form; what is left empty is the data set's or the algorithm's own. */
function wishes() {
  const form = new FormData(byId("study")),
    numbers = FIELDS.filter(({ type }) => type === "number").map(({ name }) => name);
  const filled = [...form].filter(([name, text]) => name !== "algorithms" && text.trim());
  const settings = filled.map(([name, text]) => [
    name,
    numbers.includes(name) && !Number.isNaN(Number(text)) ? Number(text) : text.trim(),
  ]);
  return { ...Object.fromEntries(settings), algorithms: form.getAll("algorithms") };
}

/** Mark the field that the server refused, and go there. */
function markWrong(field) {
  for (const one of byId("study").querySelectorAll("[aria-invalid]")) one.removeAttribute("aria-invalid");
  const wrong = field && byId("study").querySelector(`[name="${CSS.escape(field)}"]`);
  if (!wrong) return;
  wrong.setAttribute("aria-invalid", "true");
  wrong.setAttribute("aria-describedby", "status");
  wrong.focus();
}
