// The overlays on the pictures.

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

// The grids of one picture that are drawn: with a place, no thumbnail beside tiles, of a video one frame.
function placedGrids(grids, image, peak) {
  const own = grids.filter((grid) => grid.image === image && grid.kind !== "queries");
  const fine = own.filter((grid) => grid.kind !== "thumbnail");
  const used = fine.length ? fine : own;
  const frames = used.filter((grid) => grid.kind === "frame");
  if (frames.length < 2) return used;
  return [peak && frames.includes(peak.grid) ? peak.grid : frames[0]];
}

function valueAt(map, grid, row, column) {
  return map.values[grid.start + row * grid.stride + column];
}

// Every place of a map that can be drawn, as {value, grid, row, column}: of a video all frames.
function* places(map, grids, count) {
  for (const grid of map.values ? grids : []) {
    const drawn = grid.kind === "frame" || placedGrids(grids, grid.image, null).includes(grid);
    if (grid.image >= count || !drawn) continue;
    for (let row = 0; row < grid.height; row++) {
      for (let column = 0; column < grid.width; column++) yield { value: valueAt(map, grid, row, column), grid, row, column };
    }
  }
}

// Where a map is strongest among the grids of all pictures; null without values or places.
function strongest(map, grids, count) {
  let peak = null;
  for (const place of places(map, grids, count)) if (peak === null || place.value > peak.value) peak = place;
  return peak;
}

// The scale of what is drawn: thumbnails and tokens between rows do not count.
function rescaled(map, grids, count) {
  const drawn = map.own ? [...places(map, grids, count)].map((place) => place.value) : [];
  return drawn.length ? { ...map, ...extremes(drawn) } : map;
}

function drawMap(canvas, picture, grids, image, map, look, peak) {
  const scale = Math.min(2, Math.max(1, 900 / picture.width));
  canvas.width = Math.round(picture.width * scale);
  canvas.height = Math.round(picture.height * scale);
  const context = canvas.getContext("2d");
  context.clearRect(0, 0, canvas.width, canvas.height);
  if (!map.values || look === "none") return;
  const span = map.high - map.low;
  const share = (value) => (span > 0 ? (value - map.low) / span : 0.5);
  for (const grid of placedGrids(grids, image, peak)) {
    const [left, top, right, bottom] = grid.box;
    const x = (column) => Math.round((left + ((right - left) * column) / grid.width) * canvas.width);
    const y = (row) => Math.round((top + ((bottom - top) * row) / grid.height) * canvas.height);
    const box = (row, column) => [x(column), y(row), x(column + 1) - x(column), y(row + 1) - y(row)];
    for (let row = 0; row < grid.height; row++) {
      for (let column = 0; column < grid.width; column++) {
        context.fillStyle = paint(map, share(valueAt(map, grid, row, column)), look);
        context.fillRect(...box(row, column));
      }
    }
    // Outside of what the model was given there is nothing to see: a processor crops some pictures.
    context.fillStyle = "rgba(8, 8, 14, 0.9)";
    if (grid.kind === "image") shadeOutside(context, canvas, x(0), y(0), x(grid.width), y(grid.height));
    if (peak && peak.grid === grid && span > 0) frameAround(context, canvas, box(peak.row, peak.column));
  }
}

function frameAround(context, canvas, box) {
  context.lineWidth = Math.max(2, canvas.width / 200);
  context.strokeStyle = "#000";
  context.strokeRect(...box);
  context.lineWidth /= 2;
  context.strokeStyle = "#ffe94a";
  context.strokeRect(...box);
}

function shadeOutside(context, canvas, left, top, right, bottom) {
  context.fillRect(0, 0, canvas.width, top);
  context.fillRect(0, bottom, canvas.width, canvas.height - bottom);
  context.fillRect(0, top, left, bottom - top);
  context.fillRect(right, top, canvas.width - right, bottom - top);
}

// A peak in words.
function placeOf(peak, grids, pictures) {
  const { grid, row, column } = peak;
  const [left, top, right, bottom] = grid.box;
  const third = (share) => Math.min(2, Math.floor(3 * share));
  const down = ["top", "middle", "bottom"][third(top + ((row + 0.5) / grid.height) * (bottom - top))];
  const across = ["left", "centre", "right"][third(left + ((column + 0.5) / grid.width) * (right - left))];
  const frames = grids.filter((other) => other.image === grid.image && other.kind === "frame");
  const parts = pictures > 1 ? [`picture ${grid.image + 1}`] : [];
  if (grid.kind === "frame" && frames.length > 1) parts.push(`frame ${frames.indexOf(grid) + 1} of ${frames.length}`);
  parts.push(`${down} ${across}`);
  if (grid.kind === "image") parts.push(`row ${row + 1} of ${grid.height}, column ${column + 1} of ${grid.width}`);
  return parts.join(", ");
}
