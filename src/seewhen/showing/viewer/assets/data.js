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
const RUNNERS = 5; // likeliest tokens that a full trace keeps, as in decoding/recorder.py
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
  if (!maps) return { values: null, why: answer.why || "This answer has no maps (beam search, or a loop of its own)." };
  if (kind === "evidence" || kind === "weights") {
    // Beside answers that have evidence there may be one of the library, which has none, only weights.
    const evident = kind === "evidence" && maps.similarity;
    const kept = evident ? maps.similarity : maps.relevance;
    if (!kept || !kept[token] || !kept[token].bytes) return { values: null, why: "This was not recorded: give attach or generate trace=True." };
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

// Words that say nothing about the picture; as SMALL in viewer/word_risk.py.
const SMALL = new Set((
  "a an the this that these those and or but as at by for from in into of on onto to with " +
  "is are was were be been being am do does did has have had having can could may might will would " +
  "i it its he him his she her hers they them their there here we us our you your who which what also too well while"
).split(" "));

const bare = (word) => (word.text ?? word).trim().toLowerCase();

// Which words tell something that is not among the words `said` (a set).
function fresh(words, said) {
  const tells = (text) => /[\p{L}\p{N}]/u.test(text) && !SMALL.has(text) && !said.has(text);
  return new Set([...words.keys()].filter((index) => tells(bare(words[index]))));
}

// For each answer what is new in it: against the first that says anything; in that one, what no other says.
function news(answers) {
  const said = answers.map((answer) => new Set(answer.words.map(bare)));
  const first = said.findIndex((words) => words.size);
  const others = said.filter((words, number) => words.size && number !== first);
  if (!others.length) return answers.map(() => new Set());
  const elsewhere = new Set(others.flatMap((words) => [...words]));
  return answers.map((answer, number) => fresh(answer.words, number === first ? elsewhere : said[first]));
}

function wordOf(answer, token) {
  const index = answer.words.findIndex((word) => token >= word.start && token < word.end);
  return index < 0 ? answer.words.length - 1 : index;
}

function plainToken(text) {
  return { id: -1, text, special: false, entropy: null, risk: null, probability: null, fired: [], runners: [] };
}

// A sentence whose commands stand between backticks, as a page shows it.
const coded = (text) => text.split("`").map((part, number) => element(number % 2 ? "code" : "span", {}, part));

function element(name, attributes = {}, text = null) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== null) made.textContent = text;
  return made;
}
