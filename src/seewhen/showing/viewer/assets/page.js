// What is selected, and everything that follows from it. Model text reaches the page as textContent only.

const at = (id) => document.getElementById(id);
const state = { answer: 0, token: 0, kind: "evidence", layer: "mean", look: "light", timer: 0, pinned: false };
let placeInGrid = () => null;

function stats(answer) {
  const count = answer.count ?? answer.tokens.length;
  const parts = [`${count} token${count === 1 ? "" : "s"}`];
  if (answer.fired) parts.push(`tilted ${answer.fired.tokens} (${percent(answer.fired.tokens / Math.max(answer.fired.of, 1))})`);
  if (answer.cost) {
    const ratio = answer.cost.ratio === 1 ? "" : `, ${answer.cost.ratio.toFixed(2)}× regular`;
    parts.push(`${answer.cost.ms_per_token.toFixed(1)} ms/token${ratio}`);
  }
  if (answer.cost && answer.cost.extra_rows) parts.push(`+${answer.cost.extra_rows} row`);
  if (answer.asked) {
    const { asked, taken_back: back, steps, tokens } = answer.asked;
    if (asked) parts.push(`${answer.asked.later ? "afterwards " : ""}asked about ${asked}`);
    if (back.length) parts.push(`${back.length} sentence${back.length > 1 ? "s" : ""} taken back, ${(steps / Math.max(tokens, 1)).toFixed(1)} steps per token`);
  }
  if (DATA.truth !== null && !answer.busy) {
    const named = (present) => new Set(answer.words.filter((word) => word.object && word.present === present).map((word) => word.object)).size;
    const things = (count) => `${count} thing${count === 1 ? "" : "s"}`;
    // An answer such as "yes" names nothing, and need not.
    if (named(true) + named(false)) parts.push(`names ${things(named(true))} that ${named(true) === 1 ? "is" : "are"} there, ${named(false)} that ${named(false) === 1 ? "is" : "are"} not`);
    else if (answer.words.length > 3) parts.push("names nothing");
  }
  return parts.join(" · ");
}

function wordLabel(word, differs) {
  const parts = [word.text.trim() || "space"];
  if (word.risk !== null) parts.push(`risk ${percent(word.risk)}, ${LEVELS[riskLevel(word.risk)]}`);
  if (word.object) parts.push(word.present ? "in the picture" : "not in the picture");
  if (word.asked) parts.push(verdictNote(word.asked));
  if (differs) parts.push("differs");
  return parts.join("; ");
}

function buildAnswers() {
  const marked = news(DATA.answers);
  at("answers").classList.toggle("several", DATA.answers.length > 1);
  at("answers").replaceChildren(...DATA.answers.map((answer, number) => answerCard(answer, number, marked[number])));
}

function answerCard(answer, number, marked) {
  const card = element("article", { class: "card answer", "aria-labelledby": `method-${number}` });
  const header = element("header");
  header.append(element("h2", { id: `method-${number}` }, answer.label), element("span", { class: "quiet" }, stats(answer)));
  const words = element("div", { class: "words" });
  let part = null; // a list of words may hold nothing else, so it ends where something was taken back
  answer.words.forEach((word, index) => {
    const text = word.text.replace(/^\s+/, "");
    const space = word.text.slice(0, word.text.length - text.length);
    const fold = takenBack(answer, index, number);
    if (fold) words.append(fold);
    // The space before a word is not part of its mark.
    if (space && index) words.append(space);
    if (fold || !part) {
      const name = `Answer of ${answer.label}${index ? ", continued" : ""}`;
      part = element("span", { role: "listbox", "aria-orientation": "horizontal", "aria-label": name });
      words.append(part);
    } else if (space) part.append(words.lastChild);
    part.append(wordSpan(answer, number, index, text, marked.has(index) && text !== ""));
  });
  const last = takenBack(answer, answer.words.length, number);
  if (last) words.append(last);
  words.append(element("span", { class: "end" }, ending(answer)));
  card.append(header, words);
  if (answer.problem) card.append(element("p", { class: "problem", role: "alert" }, answer.problem));
  return card;
}

function wordSpan(answer, number, index, text, differs) {
  const word = answer.words[index];
  const span = element("span", { role: "option", "aria-selected": "false", tabindex: "-1", "aria-label": wordLabel(word, differs) }, text);
  span.className = `word risk-${riskLevel(word.risk)}`;
  span.classList.toggle("differs", differs);
  // Of an object named by two words, the mark stands after the second.
  const next = answer.words[index + 1];
  if (word.object && !(next && next.object === word.object)) span.classList.add(word.present ? "there" : "absent");
  if (word.asked) verdictMark(span, word, next);
  span.addEventListener("mouseenter", () => { if (!state.pinned) select(number, word.start); });
  span.addEventListener("focus", () => select(number, word.start));
  span.addEventListener("click", () => {
    const again = state.pinned && span.getAttribute("aria-selected") === "true";
    stop();
    span.focus();
    pin(!again);
  });
  return span;
}

// What follows the last word. A live answer says itself how it stands.
function ending(answer) {
  if (answer.ending !== undefined) return answer.ending;
  if (answer.asked && answer.asked.taken_back.some((said) => said.before === answer.words.length)) return " (it ended here)";
  const last = answer.tokens[answer.tokens.length - 1];
  return last && last.special ? "" : " … (cut at the token limit)";
}

function spans(number) {
  return at("answers").children[number].querySelectorAll(".word");
}

function select(number, token) {
  const answer = DATA.answers[number];
  if (!answer || !answer.words.length) return;
  at("word").hidden = false;
  state.answer = number;
  state.token = Math.max(0, Math.min(token, answer.tokens.length - 1));
  show();
}

function show() {
  const answer = DATA.answers[state.answer];
  if (!answer || !answer.words.length) return;
  const index = wordOf(answer, state.token);
  DATA.answers.forEach((_, number) => {
    const own = number === state.answer;
    at("answers").children[number].classList.toggle("current", own && DATA.answers.length > 1);
    spans(number).forEach((span, i) => {
      const chosen = own && i === index;
      span.setAttribute("aria-selected", String(chosen));
      span.classList.toggle("pinned", chosen && state.pinned);
      span.tabIndex = chosen || (!own && i === 0) ? 0 : -1;
    });
  });
  at("layers").hidden = at("traced").hidden = !answer.maps;
  at("controls").hidden = !answer.maps;
  showWord(answer, answer.words[index]);
  showMap(answer, answer.words[index]);
  placeInGrid = layerGrid(at("grid"), answer, state.token);
  at("grid-of").textContent = DATA.answers.length > 1 ? `of ${answer.label}` : "";
  at("grid-note").textContent = gridSummary(answer);
  at("grid").setAttribute("aria-label", gridSummary(answer));
  scaleBar(at("grid-scale"), answer);
  at("unpin").hidden = !state.pinned;
  document.dispatchEvent(new Event("shown"));
}

// A pinned word stays when the mouse moves over others.
function pin(pinned) {
  state.pinned = pinned;
  show();
  at("announce").textContent = pinned ? "Pinned. Escape lets it go." : "No longer pinned.";
}

function showWord(answer, word) {
  const token = answer.tokens[state.token];
  at("word-title").textContent = `“${word.text.trim()}”`;
  const facts = [`${answer.count === undefined ? "token" : "word"} ${state.token + 1} of ${answer.tokens.length}`]; // `count`: of tokens, where only words are known
  if (token.risk !== null) facts.push(`risk ${token.risk.toFixed(2)} (${LEVELS[riskLevel(token.risk)]}, entropy ${token.entropy.toFixed(2)} nats)`);
  if (token.probability !== null) facts.push(`chosen with probability ${percent(token.probability)}`);
  // A word that was drawn may be none of the likeliest.
  else if (token.runners.length === RUNNERS) facts.push(`chosen with probability below ${percent(token.runners[RUNNERS - 1].probability).replace("< ", "")}`);
  if (answer.maps) facts.push(token.fired.length ? `tilted in layer${token.fired.length > 1 ? "s" : ""} ${token.fired.join(", ")}` : "not tilted");
  if (word.asked) facts.push(verdictNote(word.asked));
  if (word.object) facts.push(`names “${word.object}”, which is ${word.present ? "" : "not "}in the picture`);
  at("word-facts").textContent = facts.join(" · ");
  const chips = at("word-tokens");
  chips.replaceChildren();
  chips.hidden = word.end - word.start < 2;
  for (let step = word.start; step < word.end; step++) {
    const chip = element("button", { type: "button", "aria-pressed": String(step === state.token) }, answer.tokens[step].text);
    chip.addEventListener("click", () => select(state.answer, step));
    chips.append(chip);
  }
  const list = at("runners");
  list.replaceChildren();
  for (const runner of token.runners) {
    const item = element("li", { class: runner.id === token.id ? "chosen" : "" });
    const fill = element("span", { class: "fill" });
    fill.style.setProperty("width", `${Math.max(1, 100 * runner.probability)}%`);
    item.append(fill, element("span", {}, runner.text.trim() || JSON.stringify(runner.text)), element("span", {}, percent(runner.probability)));
    list.append(item);
  }
  if (!token.runners.length) list.append(element("li", {}, "not recorded"));
  entropyChart(at("entropy"), answer, state.token);
}

function showMap(answer, word) {
  const attends = state.kind === "before" || state.kind === "after" || state.kind === "change";
  at("layer-control").hidden = !attends;
  const grids = (answer.maps && answer.maps.grids) || [];
  const map = rescaled(mapOf(answer, state.token, state.kind, state.layer), grids, DATA.images.length);
  const peak = strongest(map, grids, DATA.images.length);
  let note = map.values ? `${map.name || MAPS[state.kind]} “${word.text.trim()}”` : map.why;
  if (map.values && grids.length && grids.every((grid) => grid.kind === "queries")) {
    note = "The image tokens of this model have no place in the picture, so there is no map.";
  } else if (map.values) {
    const even = !peak || map.high <= map.low;
    note += even ? ": the same everywhere" : `: strongest at ${placeOf(peak, grids, DATA.images.length)}`;
    if (attends) note += `. ${massNote(answer)}`;
  }
  at("map-note").replaceChildren(...coded(note));
  note = note.replaceAll("`", "");
  DATA.images.forEach((picture, image) => {
    drawMap(overlay(image), picture, grids, image, map, state.look, peak);
    overlay(image).setAttribute("aria-label", note);
  });
  at("announce").textContent = `${wordLabel(word, false)}. ${note}`;
}

function overlay(image) {
  return at(image ? `overlay-${image}` : "overlay");
}

function massNote(answer) {
  const layers = state.layer === "mean" ? answer.maps.attention_layers : [Number(state.layer)];
  const mean = (rows) => {
    const values = layers.map((layer) => rows[state.token][layer]).filter((value) => value !== null);
    return values.length ? values.reduce((a, b) => a + b, 0) / values.length : null;
  };
  if (!answer.maps.mass_before) return "";
  const before = mean(answer.maps.mass_before), after = mean(answer.maps.mass_after);
  if (before === null || after === null) return "";
  return `Share of attention on the picture: ${percent(before)} before, ${percent(after)} after.`;
}

function move(step) {
  const words = DATA.answers[state.answer].words;
  let index = wordOf(DATA.answers[state.answer], state.token);
  do index += step; while (words[index] && !words[index].text.trim());
  if (words[index]) spans(state.answer)[index].focus();
  return Boolean(words[index]);
}

function cycle(id, step) {
  const box = at(id);
  box.selectedIndex = (box.selectedIndex + step + box.options.length) % box.options.length;
  box.dispatchEvent(new Event("change"));
}

// Whether a key belongs to what has the focus: a field, or something that scrolls.
function isTaken(event) {
  return event.ctrlKey || event.metaKey || event.altKey || Boolean(event.target.closest("input, select, textarea, .scroll"));
}

function onKey(event) {
  const answer = DATA.answers[state.answer];
  if (isTaken(event) || !answer || !answer.words.length) return;
  const vertical = (step) => {
    const number = state.answer + step;
    if (!DATA.answers[number] || !DATA.answers[number].words.length) return;
    const index = Math.min(wordOf(answer, state.token), DATA.answers[number].words.length - 1);
    spans(number)[index].focus();
  };
  const keys = {
    ArrowRight: () => move(1), ArrowLeft: () => move(-1),
    ArrowDown: () => vertical(1), ArrowUp: () => vertical(-1),
    Home: () => spans(state.answer)[0].focus(), End: () => spans(state.answer)[answer.words.length - 1].focus(),
    m: () => cycle("map-kind", 1), "[": () => cycle("map-layer", -1), "]": () => cycle("map-layer", 1),
    Escape: () => { if (state.pinned) pin(false); },
    l: () => cycle("map-look", 1), t: () => unfoldAll(state.answer), p: () => (state.timer ? stop() : play()),
  };
  const scrolls = event.key.startsWith("Arrow") && !event.key.match(/Left|Right/) && DATA.answers.length < 2;
  if (!keys[event.key] || scrolls) return;
  if (event.key !== "p") stop();
  event.preventDefault();
  keys[event.key]();
}

function play() {
  const words = DATA.answers[state.answer].words;
  if (wordOf(DATA.answers[state.answer], state.token) >= words.length - 1) select(state.answer, 0);
  state.timer = setInterval(() => move(1) || stop(), 600);
  at("play").textContent = "Stop";
  at("play").setAttribute("aria-pressed", "true");
}

function stop() {
  clearInterval(state.timer);
  state.timer = 0;
  at("play").textContent = "Play";
  at("play").setAttribute("aria-pressed", "false");
}

function keptLayers() {
  return new Set(DATA.answers.flatMap((answer) => (answer.maps ? answer.maps.attention_layers : [])));
}

// Once; everything else is made anew for every payload.
function buildControls() {
  document.addEventListener("keydown", onKey);
  at("unpin").addEventListener("click", () => pin(false));
  for (const [id, name] of [["map-kind", "kind"], ["map-layer", "layer"], ["map-look", "look"]]) {
    at(id).addEventListener("change", () => { state[name] = at(id).value; show(); });
  }
  at("play").addEventListener("click", () => (state.timer ? stop() : play()));
  at("grid").addEventListener("click", (event) => {
    const place = placeInGrid(event.offsetX, event.offsetY);
    if (!place || place.token < 0 || place.token >= DATA.answers[state.answer].tokens.length) return;
    if (keptLayers().has(place.layer)) { at("map-layer").value = String(place.layer); state.layer = String(place.layer); }
    select(state.answer, place.token);
    pin(true);
  });
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { show(); });
}

// Traces of the library have no evidence: it is offered where an answer has some.
function buildKinds() {
  const kept = DATA.answers.filter((answer) => answer.maps);
  const evident = !kept.length || kept.some((answer) => answer.maps.similarity);
  const kinds = Object.entries(MAPS).filter(([kind]) => evident || kind !== "evidence");
  at("map-kind").replaceChildren(...kinds.map(([value, text]) => element("option", { value }, text)));
  if (!evident && state.kind === "evidence") state.kind = "weights";
  at("map-kind").value = state.kind;
}

function buildLayers() {
  const layers = [...keptLayers()].map(String);
  at("map-layer").replaceChildren(element("option", { value: "mean" }, "mean"));
  at("map-layer").append(...layers.map((layer) => element("option", { value: layer }, layer)));
  if (!layers.includes(state.layer)) state.layer = "mean";
  at("map-layer").value = state.layer;
}

function buildHeader() {
  at("prompt").textContent = DATA.prompt;
  const about = Object.entries(DATA.about).map(([name, value]) => `${name} ${value}`);
  at("about").textContent = [DATA.model, ...about].join(" · ");
}

function buildPictures() {
  at("frames").replaceChildren(...DATA.images.map((picture, image) => {
    const frame = element("div", { class: "frame" });
    const attributes = { src: picture.src, width: picture.width, height: picture.height, alt: `The picture ${picture.name}` };
    const canvas = element("canvas", { id: image ? `overlay-${image}` : "overlay", role: "img", "aria-label": "No word selected" });
    frame.append(element("img", attributes), canvas);
    return frame;
  }));
  at("frames").classList.toggle("several", DATA.images.length > 1);
}

function buildLegend() {
  at("truth").hidden = DATA.truth === null;
  if (DATA.truth !== null) at("truth").textContent = `Really there: ${DATA.truth.join(", ")}.`;
  const entry = (sample, name, text) => {
    const item = element("li");
    item.append(element("span", { class: `word ${name}`, "aria-hidden": "true" }, sample), text);
    at("legend").append(item);
  };
  at("legend").replaceChildren();
  // Answers of which only the words are known have no risk.
  if (!DATA.answers.length || DATA.answers.some((answer) => !answer.why)) LEVELS.forEach((text, number) => entry("word", `risk-${number}`, text));
  if (DATA.answers.length > 1) entry("word", "differs", "differs");
  legendOfVerdicts(entry);
  if (DATA.truth !== null) { entry("word", "there", "in the picture"); entry("word", "absent", "not in it"); }
}

// Where to begin: at a thing that is not there, else at the riskiest word.
function mostTelling() {
  const spoken = (word) => /[\p{L}\p{N}]/u.test(word.text);
  // An article said with doubt tells little.
  const weight = (word) => (SMALL.has(bare(word)) ? 0 : 1) + (word.risk || 0) + (word.present === false || isDenied(word) ? 3 : 0);
  let best = [0, 0], most = -1;
  DATA.answers.forEach((answer, number) => answer.words.filter(spoken).forEach((word) => {
    if (weight(word) > most) { most = weight(word); best = [number, word.start]; }
  }));
  return best;
}

// Show a payload in place of the one before.
function openPage(payload) {
  stop();
  DATA = payload;
  state.pinned = false;
  at("word").hidden = at("layers").hidden = true;
  buildHeader();
  buildPictures();
  buildLegend();
  buildKinds();
  buildLayers();
  buildAnswers();
  buildAverages();
  if (DATA.answers.length) select(...mostTelling());
}

buildControls();
