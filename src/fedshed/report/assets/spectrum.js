// The spectrum: which eigenvalues the Master holds of an agent's Hessian, and rho, moving with the iteration.

let playing = null,
  following = true; // of a run that goes on, the last iteration is shown until another is chosen

const withSpectra = () => problem().runs.filter((run) => run.spectra.length);

async function drawSpectrum() {
  const runs = withSpectra();
  if (!section("spectrum", runs.length > 0)) return;
  runOptions("spectrum-run", runs);
  await chooseSpectrum();
}

function currentSpectrum() {
  const run = withSpectra().find((one) => one.name === byId("spectrum-run").value);
  return { run, spectrum: run.spectra.find((one) => one.agent === byId("spectrum-agent").value) };
}

function chooseSpectrum() {
  const run = withSpectra().find((one) => one.name === byId("spectrum-run").value),
    slider = byId("spectrum-step");
  options(
    "spectrum-agent",
    run.spectra.map((one) => [one.agent, shortened(one.agent, 40)]),
  );
  slider.max = currentSpectrum().spectrum.iterations.length - 1;
  if (data.live && following) slider.value = slider.max;
  return drawStep();
}

function drawStep() {
  const { run, spectrum } = currentSpectrum(),
    step = Number(byId("spectrum-step").value);
  const q = spectrum.q[step],
    rho = spectrum.rho[step],
    held = spectrum.values[spectrum.hessian[step]].slice(0, q);
  const n = Math.max(spectrum.whole.length, q + 1, ...spectrum.values.map((one) => one.length));
  const label = `${spectrum.iterations[step]}, q = ${q}, ρ = ${short(rho)}`;
  byId("spectrum-value").textContent = label;
  byId("spectrum-step").setAttribute("aria-valuetext", `iteration ${label}`);
  const numbers = (list) => list.map((_, k) => k + 1),
    positive = (list) => list.map((value) => (value > 0 ? value : null));
  const template = "λ<sub>%{x}</sub> = %{y:.3g}<extra></extra>",
    mark = css("--mark");
  return draw(
    "spectrum",
    [
      {
        x: numbers(spectrum.whole),
        y: positive(spectrum.whole),
        mode: "lines",
        name: "whole spectrum at the end",
        line: { color: css("--soft"), width: 1 },
        hovertemplate: template,
      },
      {
        x: numbers(held),
        y: positive(held),
        mode: "markers",
        name: `q = ${q} held`,
        marker: { color: mark, size: 7 },
        hovertemplate: template,
      },
      {
        x: [q + 1, n],
        y: [rho, rho].map((value) => (value > 0 ? value : null)),
        mode: "lines+markers",
        name: "ρ",
        line: { color: "#D55E00", width: 3 },
        marker: { size: 5 },
        hovertemplate: "ρ = %{y:.3g}<extra></extra>",
      },
    ],
    {
      height: 400,
      showlegend: true,
      legend: { orientation: "h", y: 1.02, yanchor: "bottom", x: 0 },
      uirevision: run.name + spectrum.agent,
      xaxis: { title: { text: "eigenvalue number" }, range: [0, n + 1] },
      yaxis: {
        type: "log",
        exponentformat: "power",
        title: { text: "eigenvalue", standoff: 10 },
        range: spectrumRange(spectrum),
      },
    },
    spectrumReading(run, spectrum, { step, q, rho, held }),
  );
}

function spectrumReading(run, spectrum, { step, q, rho, held }) {
  const values = (name, curveNumber, list) => ({
    name,
    length: list.length,
    spots: (k) => [{ curveNumber, pointNumber: k }],
    say: (k) => `${name}: eigenvalue ${k + 1} is ${short(list[k])}.`,
  });
  const longest = Math.max(held.length, spectrum.whole.length);
  return {
    label: `Eigenvalues that the Master holds of the Hessian of ${spectrum.agent} in iteration ${spectrum.iterations[step]} of ${run.name}: ${q} of them, and ρ = ${short(rho)} for the others.`,
    curves: [
      values("held", 1, held),
      {
        name: "ρ",
        length: 1,
        spots: () => [{ curveNumber: 2, pointNumber: 0 }],
        say: () => `ρ is ${short(rho)}, for all eigenvalues after number ${q}.`,
      },
      values("whole spectrum at the end", 0, spectrum.whole),
    ].filter(({ length }) => length),
    table: () => ({
      heads: ["number", `held in iteration ${spectrum.iterations[step]}`, "at the end of the runs"],
      rows: Array.from({ length: longest }, (_, k) => [k + 1, short(held[k]), short(spectrum.whole[k])]),
      note: `For the others stands ρ = ${short(rho)}.`,
    }),
  };
}

/** One range for all iterations, so that the eye sees what moves; eigenvalues that are rounding are left out. */
function spectrumRange(spectrum) {
  const all = [...spectrum.values.flat(), ...spectrum.whole, ...spectrum.rho];
  const top = all.reduce((a, b) => Math.max(a, b), 0);
  const low = all.filter((value) => value > 1e-13 * top).reduce((a, b) => Math.min(a, b), top);
  return [Math.log10(low || 1e-16) - 0.3, Math.log10(top || 1) + 0.3];
}

function play() {
  const button = byId("spectrum-play"),
    slider = byId("spectrum-step");
  const stop = () => {
    clearInterval(playing);
    playing = null;
    button.setAttribute("aria-pressed", "false");
    button.textContent = "Play";
  };
  if (playing) return stop();
  if (slider.value === slider.max) slider.value = 0;
  following = false;
  button.setAttribute("aria-pressed", "true");
  button.textContent = "Stop";
  playing = setInterval(() => {
    slider.value = Number(slider.value) + 1;
    drawStep();
    if (slider.value === slider.max) stop();
  }, 150);
}

function setUpSpectrum() {
  byId("spectrum-run").addEventListener("change", () => picked.add("spectrum-run"));
  for (const id of ["spectrum-run", "spectrum-agent"]) byId(id).addEventListener("change", chooseSpectrum);
  byId("spectrum-step").value = 0;
  byId("spectrum-step").addEventListener("input", (event) => {
    following = event.target.value === event.target.max;
    drawStep();
  });
  byId("spectrum-play").addEventListener("click", play);
  byId("spectrum-play").hidden = still.matches; // who wants no motion moves the slider
}
