// The map of latency and rate: which algorithm is the fastest where, and in how many seconds.

const TINT = 0.4; // of an algorithm's colour behind black letters, as in networks.png
const INK = "#000000";

/** A colour on white, so pale that black text can be read on it. */
function tint(hex) {
  const parts = [1, 3, 5].map((at) => 255 - TINT * (255 - parseInt(hex.slice(at, at + 2), 16)));
  return `rgb(${parts.map(Math.round).join(",")})`;
}

/** A scale with one flat step for each algorithm. */
function steps(names) {
  const looks = names.map((name) => problem().runs.find((run) => run.name === name).look);
  return looks.flatMap((look, k) => [k, k + 1].map((end) => [end / names.length, tint(look.color)]));
}

async function drawTimes() {
  const times = problem().times;
  if (!section("times", times !== null)) return;
  const name = (text) => (narrow("times") ? plain(text).replaceAll("-", "-<br>") : plain(text)); // on two lines, or it would be very small
  const cell = (row, column) => `<b>${name(times.names[row][column])}</b><br>${plain(times.words[row][column])}`;
  const each = (make) => times.latencies.map((_, row) => times.rates.map((_, column) => make(row, column)));
  const fastest = [...new Set(times.names.flat())];
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
        colorscale: steps(fastest),
        zmin: -0.5,
        zmax: fastest.length - 0.5,
        showscale: false,
        z: each((row, column) => fastest.indexOf(times.names[row][column])),
        text: each(cell),
        texttemplate: "%{text}",
        textfont: { color: INK },
        customdata: each((row, column) => times.ranked[row][column].map(plain).join("<br>")),
        hovertemplate: "latency %{y}, rate %{x}<br>%{customdata}<extra></extra>",
      },
    ],
    {
      height: 360,
      xaxis: { title: { text: "rate of each site's link" }, type: "category", showgrid: false },
      yaxis: {
        title: { text: "latency of an exchange", standoff: 12 },
        type: "category",
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
