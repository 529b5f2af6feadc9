// The overlay on the picture.

// Dark blue to yellow (after cividis): monotone in lightness, alike for all kinds of colour vision.
const RAMP = [[0, 32, 77], [60, 77, 110], [124, 123, 120], [188, 175, 105], [255, 234, 70]];
const FALLS = [33, 102, 172], RISES = [217, 95, 2];

function ramp(share) {
  const at = Math.max(0, Math.min(1, share)) * (RAMP.length - 1);
  const low = Math.min(Math.floor(at), RAMP.length - 2);
  return RAMP[low].map((value, i) => Math.round(value + (at - low) * (RAMP[low + 1][i] - value)));
}

function paint(map, share, look) {
  if (map.diverging) {
    const [r, g, b] = share < 0.5 ? FALLS : RISES;
    return `rgba(${r}, ${g}, ${b}, ${(0.85 * Math.abs(2 * share - 1)).toFixed(3)})`;
  }
  if (look === "light") return `rgba(8, 8, 14, ${(0.84 * (1 - share)).toFixed(3)})`;
  const [r, g, b] = ramp(share);
  return `rgba(${r}, ${g}, ${b}, ${(0.45 + 0.3 * share).toFixed(3)})`;
}

// Draws the map on the canvas; returns where it is strongest, in words, or null.
function drawMap(canvas, picture, grids, imageIndex, map, look) {
  const scale = Math.min(2, Math.max(1, 900 / picture.width));
  canvas.width = Math.round(picture.width * scale);
  canvas.height = Math.round(picture.height * scale);
  const context = canvas.getContext("2d");
  context.clearRect(0, 0, canvas.width, canvas.height);
  const placed = grids.filter((grid) => grid.image === imageIndex && grid.kind !== "queries");
  if (!map.values || !placed.length) return null;
  const span = map.high - map.low;
  const share = (value) => (span > 0 ? (value - map.low) / span : 0.5);
  let peak = null;
  for (const grid of placed) {
    const [left, top, right, bottom] = grid.box;
    const x = (column) => Math.round((left + ((right - left) * column) / grid.width) * canvas.width);
    const y = (row) => Math.round((top + ((bottom - top) * row) / grid.height) * canvas.height);
    for (let row = 0; row < grid.height; row++) {
      for (let column = 0; column < grid.width; column++) {
        const value = map.values[grid.start + row * grid.stride + column];
        const box = [x(column), y(row), x(column + 1) - x(column), y(row + 1) - y(row)];
        if (look !== "none") {
          context.fillStyle = paint(map, share(value), look);
          context.fillRect(...box);
        }
        if (peak === null || value > peak.value) peak = { value, box, row, column, grid };
      }
    }
    // Outside of what the model was given there is nothing to see: a processor crops some pictures.
    context.fillStyle = "rgba(8, 8, 14, 0.9)";
    if (grid.kind === "image" && look !== "none") shadeOutside(context, canvas, x(0), y(0), x(grid.width), y(grid.height));
  }
  if (look !== "none" && span > 0) {
    context.lineWidth = Math.max(2, canvas.width / 200);
    context.strokeStyle = "#000";
    context.strokeRect(...peak.box);
    context.lineWidth /= 2;
    context.strokeStyle = "#ffe94a";
    context.strokeRect(...peak.box);
  }
  return span > 0 ? `${side(peak)}, row ${peak.row + 1} of ${peak.grid.height}, column ${peak.column + 1} of ${peak.grid.width}` : null;
}

function shadeOutside(context, canvas, left, top, right, bottom) {
  context.fillRect(0, 0, canvas.width, top);
  context.fillRect(0, bottom, canvas.width, canvas.height - bottom);
  context.fillRect(0, top, left, bottom - top);
  context.fillRect(right, top, canvas.width - right, bottom - top);
}

function side(peak) {
  const third = (index, count) => Math.min(2, Math.floor((3 * index) / count));
  const down = ["top", "middle", "bottom"][third(peak.row, peak.grid.height)];
  const across = ["left", "centre", "right"][third(peak.column, peak.grid.width)];
  return `${down} ${across}`;
}
