// On paper: the tables that belong to a report are open, and plots are as wide as the page.

const PAPER = 680; // CSS pixels between the margins of A4
const PRINTED = ["rows-numbers", "sites-numbers"]; // the numbers of the other plots would fill pages
const opened = [],
  widths = new Map();

addEventListener("beforeprint", () => {
  for (const details of PRINTED.map(byId).filter((one) => one && !one.open)) {
    details.open = true;
    fillNumbers(details.id.replace("-numbers", ""));
    opened.push(details);
  }
  for (const plot of document.querySelectorAll(".js-plotly-plot")) {
    if (!plot.clientWidth) continue; // of a section that is not shown
    widths.set(plot, plot.layout.width);
    Plotly.relayout(plot, { width: PAPER, autosize: false });
  }
});
addEventListener("afterprint", () => {
  for (const details of opened.splice(0)) details.open = false;
  for (const [plot, width] of widths) Plotly.relayout(plot, { width: width ?? null, autosize: true });
  widths.clear();
});
