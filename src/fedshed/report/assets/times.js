// The map of latency and rate: which algorithm is the fastest where, and in how many seconds.

const PALE = [
  [0, "#fff3b0"],
  [1, "#a39a86"],
]; // short to long; black text can be read on all of it

async function drawTimes() {
  const times = problem().times;
  if (!section("times", times !== null)) return;
  const name = (text) => (narrow("times") ? plain(text).replaceAll("-", "-<br>") : plain(text)); // on two lines, or it would be very small
  const cell = (row, column) => `<b>${name(times.names[row][column])}</b><br>${plain(times.words[row][column])}`;
  const each = (make) => times.latencies.map((_, row) => times.rates.map((_, column) => make(row, column)));
  notes("times-notes", times.notes);
  await draw(
    "times",
    [
      {
        type: "heatmap",
        x: times.rates,
        y: times.latencies,
        xgap: 3,
        ygap: 3,
        colorscale: PALE,
        showscale: false,
        z: each((row, column) => Math.log10(times.seconds[row][column])),
        text: each(cell),
        texttemplate: "%{text}",
        textfont: { color: "#000000" },
        customdata: each((row, column) => times.ranked[row][column].map(plain).join("<br>")),
        hovertemplate: "latency %{y}, rate %{x}<br>%{customdata}<extra></extra>",
      },
    ],
    {
      height: 360,
      xaxis: { title: { text: "rate of each link" }, type: "category", showgrid: false },
      yaxis: {
        title: { text: "latency per exchange", standoff: 12 },
        type: "category",
        autorange: "reversed",
        showgrid: false,
      },
    },
    timesReading(times),
  );
}

function timesReading(times) {
  return {
    label:
      `Map of the fastest algorithm at ${times.latencies.length} latencies, from ${times.latencies[0]} to ${times.latencies.at(-1)}, and ` +
      `${times.rates.length} rates, from ${times.rates[0]} to ${times.rates.at(-1)}.`,
    curves: times.latencies.map((latency, row) => ({
      name: latency,
      length: times.rates.length,
      spots: (column) => [{ curveNumber: 0, xval: column, yval: row }],
      say: (column) =>
        `Latency ${latency}, rate ${times.rates[column]}: ${times.names[row][column]} in ${times.words[row][column]}; all, the fastest first: ${times.ranked[row][column].join(", ")}.`,
    })),
    table: () => ({
      heads: ["latency", "rate", "algorithms, the fastest first"],
      rows: times.latencies.flatMap((latency, row) =>
        times.rates.map((rate, column) => [latency, rate, times.ranked[row][column].join(", ")]),
      ),
    }),
  };
}
