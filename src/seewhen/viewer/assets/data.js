"use strict";
// What is shown now, and pure functions on it. Shapes are described in viewer/payload.py.

let DATA = { model: "", prompt: "", images: [], truth: null, about: {}, answers: [] };

const MAPS = {
  evidence: "evidence for the word",
  weights: "weights used for the word",
  before: "attention before",
  after: "attention after",
  change: "attention, change",
};
const LEVELS = ["sure", "some doubt", "unsure", "guessing"];

function riskLevel(risk) {
  return risk === null ? 0 : Math.min(Math.floor(risk * LEVELS.length), LEVELS.length - 1);
}

function percent(share) {
  const value = 100 * share;
  return (value > 0 && value < 1 ? "< 1" : value.toFixed(0)) + " %";
}

// A packed map as numbers.
function unpack(packed) {
  const bytes = atob(packed.bytes);
  const span = (packed.high - packed.low) / 255;
  return Float32Array.from(bytes, (byte) => packed.low + byte.charCodeAt(0) * span);
}

function extremes(values) {
  let low = Infinity, high = -Infinity;
  for (const value of values) { low = Math.min(low, value); high = Math.max(high, value); }
  return { low, high };
}

// The map of one token: {values, low, high, diverging} or null with the reason in `why`. With `own`, its scale is
// that of what is drawn of it.
function mapOf(answer, token, kind, layer) {
  const maps = answer.maps;
  if (!maps) return { values: null, why: "This answer has no maps (beam search, or a loop of its own)." };
  if (kind === "evidence" || kind === "weights") {
    // Traces of the library have no evidence, only weights.
    const evident = kind === "evidence" && maps.similarity;
    const kept = evident ? maps.similarity : maps.relevance;
    if (!kept || !kept[token] || !kept[token].bytes) return { values: null, why: "This was not recorded." };
    const values = unpack(kept[token]);
    return { values, name: evident ? MAPS.evidence : MAPS.weights, own: true, ...extremes(values) };
  }
  const attention = (name) => {
    const index = layer === "mean" ? -1 : maps.attention_layers.indexOf(Number(layer));
    if (index >= 0 && maps[name]) return unpack(maps[name][token][index]);
    return maps[name + "_mean"] ? unpack(maps[name + "_mean"][token]) : null;
  };
  const before = attention("before"), after = attention("after");
  if (!before || !after) return { values: null, why: "No attention was recorded." };
  if (kind === "change") {
    const values = after.map((value, i) => value - before[i]);
    const { low, high } = extremes(values);
    const most = Math.max(Math.abs(low), Math.abs(high));
    return { values, low: -most, high: most, diverging: true };
  }
  // Before and after share a scale, or switching between them would show nothing.
  const high = Math.max(extremes(before).high, extremes(after).high);
  return { values: kind === "before" ? before : after, low: 0, high };
}

// Which words of `a` and `b`, punctuation aside, are not in their longest common subsequence.
function differing(a, b) {
  const same = (x, y) => x.text.trim().toLowerCase() === y.text.trim().toLowerCase();
  const best = Array.from({ length: a.length + 1 }, () => new Uint16Array(b.length + 1));
  for (let i = a.length - 1; i >= 0; i--) {
    for (let j = b.length - 1; j >= 0; j--) {
      best[i][j] = same(a[i], b[j]) ? best[i + 1][j + 1] + 1 : Math.max(best[i + 1][j], best[i][j + 1]);
    }
  }
  const spoken = (words) => new Set([...words.keys()].filter((i) => /[\p{L}\p{N}]/u.test(words[i].text)));
  const left = spoken(a), right = spoken(b);
  let i = 0, j = 0;
  while (i < a.length && j < b.length) {
    if (same(a[i], b[j])) { left.delete(i++); right.delete(j++); }
    else if (best[i + 1][j] >= best[i][j + 1]) i++;
    else j++;
  }
  return [left, right];
}

function wordOf(answer, token) {
  const index = answer.words.findIndex((word) => token >= word.start && token < word.end);
  return index < 0 ? answer.words.length - 1 : index;
}

function element(name, attributes = {}, text = null) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== null) made.textContent = text;
  return made;
}
