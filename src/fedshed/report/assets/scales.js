// How the axis of a cost is scaled: by the data, so that every curve can be read, unless the reader chooses.

const SCALES = {
  auto: "automatic",
  log: "logarithmic",
  linear: "linear, all of it",
  cut: "linear, without the slowest",
};
const LEAST_SHARE = 1 / 8; // of the axis that the shortest curve should have
const JUMP = 2.5; // how much further than the others the slowest curves go, if they are cut
const SPARE = 1.06;

/** How much each visible run has spent at its end, in the order of the runs. */
function endsOn(axis) {
  return problem()
    .runs.filter(shown)
    .map((run) => ({
      run,
      end: Math.max(0, ...tracesOfRun(run).map((columns) => AXES[axis].values(columns, problem().count).at(-1) ?? 0)),
    }));
}

/** Where an axis can be cut: the largest end before a jump, at least half of the curves being whole. */
function cutAt(ends) {
  const sorted = [...ends].sort((a, b) => a - b),
    half = Math.ceil(sorted.length / 2);
  for (let k = half - 1; k < sorted.length - 1; k++)
    if (sorted[k] > 0 && sorted[k + 1] > JUMP * sorted[k]) return sorted[k];
  return sorted.at(-1) ?? 0;
}

/** The scale of a cost: its type, its range, and which runs go on beyond it. */
function scaleOf(axis) {
  const all = endsOn(axis),
    ends = all.map(({ end }) => end).filter((end) => end > 0);
  const longest = Math.max(0, ...ends),
    shortest = Math.min(Infinity, ...ends),
    cut = cutAt(ends);
  const wanted =
    chosen.scale !== "auto"
      ? chosen.scale
      : !ends.length || shortest >= LEAST_SHARE * longest
        ? "linear"
        : shortest >= LEAST_SHARE * cut
          ? "cut"
          : "log";
  if (wanted === "log" && ends.length) return logScale(axis, shortest, longest);
  const beyond = wanted === "cut" ? all.filter(({ end }) => end > SPARE * cut) : [];
  return {
    type: "linear",
    range: longest ? [0, SPARE * (beyond.length ? cut : longest)] : [-0.05, 1],
    beyond,
    left: 0,
  };
}

/** A logarithmic scale begins at the first cost; what costs less, as the start does, is drawn at its left end. */
function logScale(axis, shortest, longest) {
  const costs = problem()
    .runs.filter(shown)
    .flatMap((run) => tracesOfRun(run).flatMap((columns) => AXES[axis].values(columns, problem().count)));
  const least = costs.reduce((a, b) => (b > 0 && b < a ? b : a), Infinity);
  const left = Math.max(least, shortest / 100) / 1.5;
  return {
    type: "log",
    range: [Math.log10(left), Math.log10(longest * 1.15)],
    beyond: [],
    left,
    ...costTicks(left, longest),
  };
}

/** 0 at the left end of an axis of costs, then as on any logarithmic axis. */
function costTicks(left, longest) {
  const { tickvals, ticktext } = logTicks(1.25 * left, 1.15 * longest, 7);
  return { tickvals: [left, ...tickvals], ticktext: ["0", ...ticktext] };
}

/** 1, 2, 5, 10, ...; where there is no room for so many numbers, only the decades have theirs. */
function logTicks(low, high, room) {
  const marks = [];
  for (let power = Math.floor(Math.log10(low)); 10 ** power <= high; power++) {
    for (const digit of [1, 2, 5]) marks.push({ digit, value: Number(`${digit}e${power}`) });
  }
  const inside = marks.filter(({ value }) => low <= value && value <= high),
    every = inside.length <= room;
  return {
    tickvals: inside.map(({ value }) => value),
    ticktext: inside.map(({ digit, value }) => (digit === 1 || every ? String(value) : "")),
  };
}

/** Where costs are drawn on a scale. */
const placed = (values, { left }) => (left ? values.map((value) => Math.max(value, left)) : values);

/** What a reader must know of the axes. */
function scaleNotes(scales) {
  const found = [];
  if (scales.some(({ type }) => type === "log"))
    found.push("A logarithmic axis has no zero; the start, which costs nothing, is drawn at its left end.");
  const gone = new Map();
  chosen.axes.forEach((axis, panel) =>
    scales[panel].beyond.forEach(({ run, end }) => {
      gone.set(run, [...(gone.get(run) ?? []), `${short(end)} ${AXES[axis].label}`]);
    }),
  );
  for (const [run, costs] of gone) {
    found.push(
      `${run.name} goes on beyond the axis, to ${listed(costs)}, where its ${measure()} is ${short(run.columns[chosen.measure].at(-1))}.`,
    );
  }
  return found;
}
