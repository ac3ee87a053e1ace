// Curves in words: what a point says, a table of the iterates, and what a reader must know of the drawing.

function curveReading(visible, traces) {
  const axes = listed(chosen.axes.map((axis) => AXES[axis].label));
  return {
    label: `Curves of the ${measure()} against ${axes}, one for each of ${visible.length} algorithms: ${listed(visible.map((run) => run.name))}.`,
    curves: visible
      .map((run) => (run.repeats.length ? medianInWords(run, traces) : runInWords(run, traces)))
      .filter(({ length }) => length),
    table: () => curveTable(visible),
  };
}

const spotsOf = (traces, is) =>
  traces
    .map((trace, curveNumber) => ({ curveNumber, place: trace.xaxis + trace.yaxis, meta: trace.meta }))
    .filter(({ meta }) => is(meta))
    .map(({ curveNumber, place }) => ({ curveNumber, place }));

function runInWords(run, traces) {
  const c = run.columns,
    spots = spotsOf(traces, (meta) => meta.run === run.name);
  const costs = (k) =>
    chosen.axes.map((axis) => `${AXES[axis].label} ${short(AXES[axis].values(c, problem().count)[k])}`).join(", ");
  return {
    name: run.name,
    length: c.iteration.length,
    spots: (k) => spots.map((spot) => ({ ...spot, pointNumber: k })),
    say: (k) =>
      `${run.name}, iteration ${c.iteration[k]}: ${measure()} ${short(c[chosen.measure][k])}; ${costs(k)}${c.renewed[k] ? `; ${c.renewed[k]} agents renewed` : ""}.`,
  };
}

function medianInWords(run, traces) {
  const spots = spotsOf(traces, (meta) => meta.median === run.name).slice(0, 1),
    { customdata: x, y } = traces[spots[0].curveNumber];
  return {
    name: run.name,
    length: x.length,
    spots: (k) => spots.map((spot) => ({ ...spot, pointNumber: k })),
    say: (k) => `${run.name}, median: ${AXES[chosen.axes[0]].label} ${short(x[k])}, ${measure()} ${short(y[k])}.`,
  };
}

const MOST_ROWS = 100; // of a run, in the table

function curveTable(visible) {
  const rows = visible.flatMap((run) => {
    const c = run.columns,
      costs = COSTS.map((name) => AXES[name].values(c, problem().count));
    return spread(c.iteration.length, MOST_ROWS).map((k) => [
      run.name,
      ...costs.map((values) => short(values[k])),
      short(c.gap[k]),
      short(c.grad_norm[k]),
    ]);
  });
  const heads = ["algorithm", ...COSTS.map((name) => AXES[name].label), ...Object.values(measures())];
  const thinned = visible.some((run) => run.columns.iteration.length > MOST_ROWS)
    ? [`At most ${MOST_ROWS} iterations of a run, evenly spaced.`]
    : [];
  const first = visible.some((run) => run.repeats.length) ? ["Of the first partition of the rows."] : [];
  return { heads, rows, note: [...thinned, ...first].join(" ") };
}

function curveNotes() {
  const runs = problem().runs,
    found = [],
    repeats = Math.max(0, ...runs.map((run) => run.repeats.length));
  if (problem().gap.note && chosen.measure === "gap") found.push(problem().gap.note);
  if (repeats)
    found.push(
      `Lines are medians over ${repeats} partitions of the rows; bands reach from the least value to the largest.`,
    );
  const renewing = runs.filter((run) => renewals(run).length),
    unmarked = renewing.filter((run) => !marksMean(run));
  if (renewing.length > unmarked.length && !repeats)
    found.push("Small marks on a curve are renewals: some agent took a new Hessian. The large mark is its end.");
  if (unmarked.length && !repeats)
    found.push(
      `Renewals are not marked where they happen in nearly every iteration: ${unmarked.map((run) => run.name).join(", ")}.`,
    );
  if (runs.some((run) => run.columns[chosen.measure].some((v) => v !== null && v < FLOOR)) && chosen.logY) {
    found.push(`Values below ${FLOOR.toExponential(0)}, negative ones too, are drawn there.`);
  }
  if (runs.some((run) => run.columns[chosen.measure].includes(null)))
    found.push("Where the value is not known a curve has a hole.");
  for (const run of runs) {
    const points = run.columns.iteration.length;
    if (points < run.rows)
      found.push(
        `${run.name}: ${points} of ${run.rows} iterations are drawn, with all that answer a target of the slider.`,
      );
  }
  return found;
}
