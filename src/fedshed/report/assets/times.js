// The map of latency and rate: which algorithm is the fastest where, and in how many seconds.

function drawTimes() {
  const times = problem().times;
  if (!section("times", times !== null)) return;
  const narrow = byId("times-plot").clientWidth < 500; // long names on two lines, or they would be very small
  const name = (text) => narrow ? plain(text).replaceAll("-", "-<br>") : plain(text);
  const cell = (row, column) => `<b>${name(times.names[row][column])}</b><br>${plain(times.words[row][column])}`;
  const each = (make) => times.latencies.map((_, row) => times.rates.map((_, column) => make(row, column)));
  draw("times-plot", [{
    type: "heatmap", x: times.rates, y: times.latencies, xgap: 3, ygap: 3, colorscale: "Cividis", reversescale: true,
    z: each((row, column) => Math.log10(times.seconds[row][column])), showscale: false,
    text: each(cell), texttemplate: "%{text}",
    customdata: each((row, column) => times.ranked[row][column].map(plain).join("<br>")),
    hovertemplate: "latency %{y}, rate %{x}<br>%{customdata}<extra></extra>",
  }], {
    height: 360, xaxis: { title: { text: "rate of each link" }, type: "category", showgrid: false },
    yaxis: { title: { text: "latency per exchange", standoff: 12 }, type: "category", autorange: "reversed", showgrid: false },
  });
  byId("times-notes").replaceChildren(...times.notes.map((note) => element("li", {}, note)));
}
