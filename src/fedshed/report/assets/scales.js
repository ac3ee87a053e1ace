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
  const { tickvals, ticktext } = logTicks(Math.log10(1.25 * left), Math.log10(1.15 * longest), 7);
  return { tickvals: [left, ...tickvals], ticktext: ["0", ...ticktext] };
}

/** The ticks of a logarithmic axis between two powers of ten: as many labels as there is room for, as in the figures. */
function logTicks(left, right, room) {
  const values = ticksBetween(left, right, room),
    isPlain = plainOnLogAxis(values);
  const power = (value) => {
    const [factor, exponent] = value.toExponential(3).split("e");
    return `${Number(factor) === 1 ? "" : `${Number(factor)}×`}10<sup>${Number(exponent)}</sup>`;
  };
  const label = (value) => String(Number(value.toPrecision(10)));
  return { tickvals: values, ticktext: values.map(isPlain ? label : power) };
}

const plainOnLogAxis = (values) => values.every((value) => 0.999e-3 <= value && value <= 1.001e5);

/** 1, 2, 5, 10, ... or 1, 3, 10, ... over short ranges, powers of ten over long ones, every second, third, fifth, ... over still longer ones. */
function ticksBetween(left, right, room) {
  const digits = [[1, 2, 5], [1, 3], [1]];
  const inside = (value) => left <= Math.log10(value) && Math.log10(value) <= right;
  const powers = (step) =>
    Array.from({ length: Math.floor(right / step) - Math.ceil(left / step) + 1 }, (_, k) => (Math.ceil(left / step) + k) * step);
  if (right - left < 2 * room) {
    const from = Array.from({ length: Math.floor(right) - Math.floor(left) + 1 }, (_, k) => Math.floor(left) + k);
    for (const some of plainOnLogAxis([10 ** left, 10 ** right]) ? digits : digits.reverse()) {
      const found = from.flatMap((power) => some.map((digit) => Number(`${digit}e${power}`))).filter(inside);
      if (found.length >= 3 && found.length <= room) return found;
    }
  }
  if (right - left < 1) return equallySpaced(10 ** left, 10 ** right, room);
  const most = room - (Math.max(-left, right) >= 100 ? 2 : 0); // exponents of three digits are wide
  let step = 1;
  for (let k = 1; powers(step).length > most; k++) step = [1, 2, 3, 5][k % 4] * 10 ** Math.floor(k / 4);
  return powers(step).map((power) => Number(`1e${power}`));
}

/** Multiples of 1, 2 or 5 times a power of ten, fewer of them if their labels are long. */
function equallySpaced(low, high, room) {
  const power = Math.floor(Math.log10((high - low) / room));
  let found = [];
  for (let k = 0; k < 9; k++) {
    const step = Number(`${[1, 2, 5][k % 3]}e${power + Math.floor(k / 3)}`),
      first = Math.ceil(low / step);
    const count = Math.floor(high / step) - first + 1;
    if (count > room) continue;
    found = Array.from({ length: count }, (_, each) => Number(((first + each) * step).toPrecision(12)));
    if ((plainOnLogAxis(found) ? found.join("").length : 5 * found.length) <= 4 * room) break;
  }
  return found;
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
