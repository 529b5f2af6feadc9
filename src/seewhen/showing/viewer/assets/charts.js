// Entropy by layer of one token (SVG), and the grid of layers and tokens (canvas).

function shape(parent, name, attributes, text = null) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== null) made.textContent = text;
  parent.append(made);
  return made;
}

function entropyChart(host, answer, token) {
  host.replaceChildren();
  const rows = answer.maps && answer.maps.entropy;
  if (!rows || !rows[token] || rows[token].every((value) => value === null)) {
    host.append(element("p", { class: "quiet" }, "No entropies were recorded."));
    return;
  }
  const entropy = rows[token], threshold = (answer.maps.threshold || [])[token] || [];
  const fired = new Set(answer.tokens[token].fired);
  const width = 420, height = 176, left = 30, right = 8, top = 8, bottom = 34;
  const known = [...entropy, ...threshold].filter((value) => value !== null && value !== undefined);
  const most = Math.max(1, ...known);
  const last = Math.max(entropy.length - 1, 1);
  const x = (layer) => left + ((width - left - right) * layer) / last;
  const y = (value) => height - bottom - ((height - top - bottom) * value) / most;
  const told = entropy.map((value, layer) => (value === null ? null : `layer ${layer}: ${value.toFixed(2)}`)).filter(Boolean);
  const label = `Entropy in nats by layer. ${told.join(", ")}. Fired in ${fired.size ? "layers " + [...fired].join(", ") : "no layer"}.`;
  const svg = shape(host, "svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label });
  if (answer.tilted_layers.length) {
    const first = Math.min(...answer.tilted_layers) - 0.5, final = Math.max(...answer.tilted_layers) + 0.5;
    const from = x(first), to = Math.min(x(final), width - right + 4);
    shape(svg, "rect", { class: "band", x: from, y: top, width: to - from, height: height - top - bottom });
  }
  for (const value of [0, most / 2, most]) {
    shape(svg, "line", { class: "axis", x1: left, x2: width - right, y1: y(value), y2: y(value) });
    shape(svg, "text", { x: left - 5, y: y(value) + 4, "text-anchor": "end" }, value.toFixed(1));
  }
  const every = Math.max(1, Math.ceil(entropy.length / 12));
  for (let layer = 0; layer < entropy.length; layer += every) {
    shape(svg, "text", { x: x(layer), y: height - bottom + 15, "text-anchor": "middle" }, String(layer));
  }
  shape(svg, "text", { x: width - right, y: height - 3, "text-anchor": "end" }, "layer; entropy in nats");
  // A threshold of layer l is held against the entropy of the layer before.
  threshold.forEach((value, layer) => {
    if (value === null) return;
    const tick = shape(svg, "line", { class: "threshold", x1: x(layer - 1.4), x2: x(layer - 0.6), y1: y(value), y2: y(value) });
    shape(tick, "title", {}, `layer ${layer} is tilted above ${value.toFixed(3)} nats`);
  });
  const points = entropy.map((value, layer) => (value === null ? null : `${x(layer)},${y(value)}`)).filter(Boolean);
  shape(svg, "polyline", { class: "line", points: points.join(" ") });
  entropy.forEach((value, layer) => {
    if (value === null) return;
    const opened = fired.has(layer + 1);
    const dot = shape(svg, "circle", { class: opened ? "dot fired" : "dot", cx: x(layer), cy: y(value), r: opened ? 5 : 2.5 });
    shape(dot, "title", {}, `layer ${layer}: ${value.toFixed(3)} nats` + (opened ? `; layer ${layer + 1} was tilted` : ""));
  });
}

const CELL = 15, GUTTER = 26;

// Rows are layers, the deepest on top; columns are tokens. Returns the function that turns a click into a place.
function layerGrid(canvas, answer, token) {
  const rows = answer.maps && answer.maps.entropy;
  const layers = answer.layers, count = answer.tokens.length;
  const density = window.devicePixelRatio || 1;
  const width = GUTTER + CELL * count + 2, height = CELL * layers + 18;
  canvas.width = width * density; canvas.height = height * density;
  canvas.style.setProperty("width", width + "px"); canvas.style.setProperty("height", height + "px");
  const context = canvas.getContext("2d");
  context.scale(density, density);
  const ink = getComputedStyle(canvas).color;
  const most = Math.max(1e-6, ...(rows || []).flat().filter((value) => value !== null));
  const y = (layer) => CELL * (layers - 1 - layer);
  for (let step = 0; step < count; step++) {
    for (let layer = 0; layer < layers; layer++) {
      // With a method that takes sentences back, words come before their entropies.
      const value = (rows && rows[step] && rows[step][layer]) ?? null;
      if (value === null) context.strokeStyle = "rgba(128, 128, 128, 0.35)";
      else context.fillStyle = `rgb(${ramp(value / most).join(", ")})`;
      const box = [GUTTER + CELL * step, y(layer), CELL - 1, CELL - 1];
      if (value === null) context.strokeRect(box[0] + 0.5, box[1] + 0.5, CELL - 2, CELL - 2);
      else context.fillRect(...box);
    }
    for (const layer of answer.tokens[step].fired) {
      context.beginPath();
      context.arc(GUTTER + CELL * step + (CELL - 1) / 2, y(layer) + (CELL - 1) / 2, 4, 0, 7);
      context.fillStyle = "#fff"; context.fill();
      context.lineWidth = 2; context.strokeStyle = "#000"; context.stroke();
      context.lineWidth = 1;
    }
  }
  context.fillStyle = ink; context.font = "10px system-ui, sans-serif"; context.textAlign = "right"; context.textBaseline = "middle";
  const every = Math.max(1, Math.ceil(layers / 16));
  for (let layer = 0; layer < layers; layer += every) context.fillText(String(layer), GUTTER - 5, y(layer) + CELL / 2);
  context.textAlign = "left";
  for (let step = 0; step < count; step += 5) context.fillText(String(step + 1), GUTTER + CELL * step + 2, CELL * layers + 10);
  context.lineWidth = 2; context.strokeStyle = ink;
  context.strokeRect(GUTTER + CELL * token - 1, -2, CELL + 1, CELL * layers + 3);
  return (x, down) => ({ token: Math.floor((x - GUTTER) / CELL), layer: layers - 1 - Math.floor(down / CELL) });
}

function gridSummary(answer) {
  const counts = answer.tilted_layers.map((layer) => answer.tokens.filter((token) => token.fired.includes(layer)).length);
  if (!answer.tilted_layers.length) return "This method does not tilt attention; the colours show the entropy after each layer.";
  const each = answer.tilted_layers.map((layer, i) => `layer ${layer}: ${counts[i]}`).join(", ");
  return `Tilted ${answer.fired.tokens} of ${answer.fired.of} tokens (${each}). A ring marks a layer that was tilted; the layer below it decided.`;
}

function scaleBar(host, answer) {
  const rows = (answer.maps && answer.maps.entropy) || [];
  const most = Math.max(0, ...rows.flat().filter((value) => value !== null));
  const bar = element("canvas", { width: 120, height: 10, "aria-hidden": "true" });
  const context = bar.getContext("2d");
  for (let x = 0; x < 120; x++) { context.fillStyle = `rgb(${ramp(x / 119).join(", ")})`; context.fillRect(x, 0, 1, 10); }
  host.replaceChildren("entropy 0", bar, `${most.toFixed(1)} nats`);
}
