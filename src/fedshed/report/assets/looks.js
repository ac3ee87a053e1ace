// The look of an algorithm, as in every figure: its colour, its line, its marker, and a sample of both.

const SVG = "http://www.w3.org/2000/svg";
const DASHES = { solid: "", dash: "6 3", dashdot: "6 3 2 3", dot: "2 3" };

/** The colour of an algorithm; black is not seen on a dark ground. */
const colour = (run) => (dark.matches && run.look.color === "#000000" ? "#f2f2f2" : run.look.color);

// Markers by the names of the plotting library: polygons as [corners, turn in degrees], stars and crosses as [arms, turn, width].
const POLYGONS = {
  circle: [24, 0],
  square: [4, 45],
  diamond: [4, 0],
  "diamond-tall": [4, 0],
  pentagon: [5, -90],
  hexagon: [6, -90],
  hexagon2: [6, 0],
  octagon: [8, 22.5],
  "triangle-up": [3, -90],
  "triangle-down": [3, 90],
  "triangle-left": [3, 180],
  "triangle-right": [3, 0],
};
const ARMS = {
  cross: [4, 0],
  x: [4, 45],
  "cross-thin": [4, 0],
  "x-thin": [4, 45],
  "y-down": [3, 90],
  "y-up": [3, -90],
  "y-left": [3, 180],
  "y-right": [3, 0],
};

function around(count, turn, radius) {
  return Array.from({ length: count }, (_, k) => {
    const angle = ((turn + (360 * k) / count) * Math.PI) / 180,
      r = radius(k);
    return [r * Math.cos(angle), r * Math.sin(angle)];
  });
}

const drawn = (points) => points.map(([x, y]) => `${x.toFixed(2)} ${y.toFixed(2)}`).join(" L ");

/** The outline of a marker about the origin, and how wide its lines are. */
function outline(name) {
  if (name === "star") return { d: `M ${drawn(around(10, -90, (k) => (k % 2 ? 2.1 : 5.5)))} Z`, wide: 1 };
  if (name in ARMS) {
    const [arms, turn] = ARMS[name];
    return {
      d: around(arms, turn, () => 4.5)
        .map((end) => `M 0 0 L ${drawn([end])}`)
        .join(" "),
      wide: name === "cross" || name === "x" ? 3.2 : 1.6,
    };
  }
  const [corners, turn] = POLYGONS[name] ?? POLYGONS.circle,
    slim = name === "diamond-tall" ? 0.6 : 1;
  return { d: `M ${drawn(around(corners, turn, () => 4.5).map(([x, y]) => [slim * x, y]))} Z`, wide: 1.4 };
}

function shape(tag, attributes) {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  return made;
}

/** The line and the marker of a run, beside its name. */
function sample(run) {
  const svg = shape("svg", { width: 34, height: 14, viewBox: "0 0 34 14", "aria-hidden": "true" }),
    ink = colour(run);
  const open = run.look.symbol.endsWith("-open"),
    { d, wide } = outline(run.look.symbol.replace(/-open$/, ""));
  svg.append(
    shape("line", {
      x1: 0,
      x2: 34,
      y1: 7,
      y2: 7,
      stroke: ink,
      "stroke-width": 2.5,
      "stroke-dasharray": DASHES[run.look.dash],
    }),
    shape("path", {
      d,
      transform: "translate(17 7)",
      stroke: ink,
      "stroke-width": wide,
      fill: open ? css("--panel") : ink,
    }),
  );
  return svg;
}
