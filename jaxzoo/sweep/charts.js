// Learning curves as small drawings. The first run of each is the one that counts, and stands out.
"use strict";

const DASHES = ["", "5 3", "1.5 2.5", "7 2 1.5 2", "3 2"];

function make(tag, attributes = {}, ...children) {
  const drawn = ["svg", "path", "line", "text", "circle"].includes(tag);
  const node = drawn ? document.createElementNS("http://www.w3.org/2000/svg", tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

function ceiling(value) {
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 1.5, 2, 3, 4, 5, 6, 8, 10].map((m) => m * power).find((m) => m >= value * 0.999);
}

function chart(title, curves, fixed) {
  const [left, right, top, bottom] = [26, 192, 20, 104];
  const svg = make("svg", { viewBox: "0 0 198 120", "aria-hidden": "true" }, make("text", { x: 0, y: 9 }, title));
  const points = curves.flatMap((curve) => curve.points);
  if (!points.length) {
    svg.append(make("text", { x: left, y: 60 }, "none recorded"));
    return svg;
  }
  const steps = Math.max(1, ...points.map((p) => p[0]));
  const high = fixed || ceiling(Math.max(1e-9, ...points.map((p) => p[1])));
  const x = (step) => (left + ((right - left) * step) / steps).toFixed(1);
  const y = (value) => (bottom - ((bottom - top) * value) / high).toFixed(1);
  for (const value of [0, high / 2, high]) {
    svg.append(make("line", { class: "axis", x1: left, x2: right, y1: y(value), y2: y(value) }));
    svg.append(make("text", { x: left - 4, y: +y(value) + 3, "text-anchor": "end" }, String(+value.toPrecision(3))));
  }
  svg.append(make("text", { x: left, y: 117 }, "0"));
  svg.append(make("text", { x: right, y: 117, "text-anchor": "end" }, `${steps.toLocaleString("en")} steps`));
  for (const curve of [...curves].reverse()) {
    if (!curve.points.length) continue;
    const path = curve.points.map((p) => `${x(p[0])} ${y(p[1])}`);
    const [end, style] = [path.at(-1).split(" "), { class: curve.best ? "curve best" : "curve" }];
    svg.append(make("path", { ...style, d: `M${path.join("L")}`, "stroke-dasharray": curve.dash }));
    if (curve.diverged) svg.append(make("path", { ...style, d: `M${end[0] - 3} ${end[1] - 3}l6 6m0-6l-6 6` }));
    else if (path.length === 1) svg.append(make("circle", { ...style, cx: end[0], cy: end[1], r: 2 }));
  }
  return svg;
}

function swatch(i) {
  const line = make("line", { class: i ? "curve" : "curve best", x1: 1, x2: 29, y1: 5, y2: 5 });
  line.setAttribute("stroke-dasharray", dash(i));
  return make("svg", { viewBox: "0 0 30 10", width: 30, height: 10, "aria-hidden": "true" }, line);
}

const dash = (i) => (i ? DASHES[1 + ((i - 1) % (DASHES.length - 1))] : DASHES[0]);
