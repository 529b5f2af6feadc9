// A page of one payload, or of many with a list to choose from. Answers of a list may be light: their words only.

const PAGE = JSON.parse(at("payload").textContent);
const SHOWN = innerWidth < 832 ? 6 : 12; // entries of the list at a time
const ASKS = Boolean(PAGE && PAGE.samples && PAGE.samples.some((sample) => sample.prompt !== PAGE.samples[0].prompt));
const DOUBT = 0.5; // a toss-up between two words
const list = { found: [], first: 0, current: -1 };
const choice = { q: "", run: "", part: "", order: "", show: new Set() };
const FILTERS = { wrong: "wrong", differs: "differs", denied: "denied when asked", doubt: "in doubt" };
// Why a filter may have nothing to go by where answers are words only.
const UNKNOWN = { denied: "No method of these runs asks; `confirm` does.", doubt: "Doubt is known of answers looked at again: seewhen report --look N." };
const ORDERS = { "": "as given", mistakes: "most mistakes first", differs: "most different first", doubt: "most doubt first", length: "longest first" };

// -- what is known of an answer -------------------------------------------------------------------------

const labels = () => (PAGE.runs || PAGE.samples[0].answers).map((each) => each.label);
const textOf = (answer) => answer.text ?? answer.words.join("");
const doubtOf = (answer) => answer.doubt ?? answer.words.reduce((most, word) => Math.max(most, word.risk ?? -1), -1);
const isAsked = (answer) => Boolean(answer.denied || (answer.asked && (answer.asked.taken_back.length || answer.words.some(isDenied) || Object.values(answer.asked.of_words || {}).some((said) => said.verdict === "denied"))));

// How many words of an answer and the first tell what the other does not.
const counted = new WeakMap();
function newsOf(sample, number) {
  if (!counted.has(sample)) counted.set(sample, sample.answers.map((answer) => news([sample.answers[0], answer]).reduce((sum, words) => sum + words.size, 0)));
  return counted.get(sample)[number];
}

// The answers that filters and order are about: those of the chosen run, or all.
function judged(sample) {
  const run = labels().indexOf(choice.run);
  return run < 0 ? [...sample.answers.keys()] : [run];
}

const measures = {
  wrong: (sample, number) => sample.answers[number].wrong || 0,
  differs: newsOf,
  denied: (sample, number) => Number(isAsked(sample.answers[number])),
  doubt: (sample, number) => Math.max(doubtOf(sample.answers[number]), 0),
  mistakes: (sample, number) => sample.answers[number].wrong || 0,
  length: (sample, number) => textOf(sample.answers[number]).length,
};
const most = (sample, name) => Math.max(...judged(sample).map((number) => measures[name](sample, number)));
const passes = (sample, name) => (name === "doubt" ? most(sample, name) >= DOUBT : most(sample, name) > 0);

// -- the list -------------------------------------------------------------------------------------------

function matching() {
  const wanted = choice.q.toLowerCase().split(/\s+/).filter(Boolean);
  const holds = (sample) => {
    const words = [sample.id, sample.note, sample.prompt, ...sample.answers.map(textOf)].join(" ").toLowerCase();
    return wanted.every((word) => words.includes(word));
  };
  const inPart = (sample) => !choice.part || sample.part === choice.part;
  return [...PAGE.samples.keys()].filter((number) => inPart(PAGE.samples[number]) && (!wanted.length || holds(PAGE.samples[number])));
}

function find() {
  const all = matching();
  for (const [name, text] of Object.entries(FILTERS)) {
    const known = at(`only-${name}`).disabled ? "not known" : all.filter((number) => passes(PAGE.samples[number], name)).length;
    at(`only-${name}`).nextSibling.textContent = ` ${text} (${known})`;
  }
  list.found = all.filter((number) => [...choice.show].every((name) => passes(PAGE.samples[number], name)));
  if (choice.order) {
    const weights = new Map(list.found.map((number) => [number, most(PAGE.samples[number], choice.order)]));
    list.found.sort((a, b) => weights.get(b) - weights.get(a)); // stable
  }
  list.first = 0;
  const run = (PAGE.runs || []).find((each) => each.label === choice.run);
  at("run-note").textContent = run ? run.note : "";
  at("run-note").hidden = !run;
}

function entry(number) {
  const sample = PAGE.samples[number];
  const button = element("button", { type: "button", "aria-current": String(number === list.current) });
  const picture = imageOf(sample.images[0]);
  if (picture && picture.src) button.append(element("img", { src: picture.src, alt: "", loading: "lazy", decoding: "async" }));
  const text = element("span", { class: "entry" });
  const answers = judged(sample).map((each) => sample.answers[each]);
  if (answers.some((answer) => answer.wrong !== undefined)) {
    const wrong = answers.some((answer) => answer.wrong);
    text.append(element("span", { class: `mark ${wrong ? "absent" : "there"}`, role: "img", "aria-label": wrong ? "wrong" : "right" }, wrong ? "✗" : "✓"));
  }
  const note = (choice.run && answers[0].note) || sample.note;
  text.append(element("span", { class: "name" }, sample.id), element("span", { class: "quiet" }, note));
  if (ASKS) text.append(element("span", { class: "quiet" }, sample.prompt));
  const said = textOf(answers[0]);
  if (!note.toLowerCase().includes(`says ${said.toLowerCase()},`)) text.append(element("span", { class: "snippet" }, said));
  button.append(text);
  button.addEventListener("click", () => { openSample(number, true); reveal(); });
  const item = element("li");
  item.append(button);
  return item;
}

function buildList() {
  const end = Math.min(list.first + SHOWN, list.found.length);
  const focused = at("samples").contains(document.activeElement);
  at("samples").replaceChildren(...list.found.slice(list.first, end).map(entry));
  if (focused) at("samples").querySelector("[aria-current=true]")?.focus({ preventScroll: true });
  at("count").textContent = list.found.length ? `${list.first + 1} to ${end} of ${list.found.length}` : "nothing found";
  at("earlier").disabled = list.first === 0;
  at("later").disabled = end >= list.found.length;
}

function turn(step) {
  list.first = Math.max(0, Math.min(list.first + step * SHOWN, list.found.length - 1));
  buildList();
}

// The words may lie below what is in sight.
function reveal() {
  const top = document.querySelector("main").getBoundingClientRect().top;
  if (top > 0.6 * innerHeight) document.querySelector("main").scrollIntoView();
}

// -- one of them ----------------------------------------------------------------------------------------

function imageOf(image) {
  return typeof image === "string" ? { name: image, ...PAGE.pictures[image] } : image;
}

// A light answer in the form that the viewer shows.
function whole(answer, label, id) {
  if (Array.isArray(answer.tokens)) return answer;
  const words = answer.words.map((text, index) => ({ text, start: index, end: index + 1, risk: null }));
  for (const [index, [object, present]] of Object.entries(answer.objects || {})) Object.assign(words[index], { object, present });
  const { of_words: judgedWords, ...asked } = answer.asked || {};
  for (const [index, said] of Object.entries(judgedWords || {})) words[index].asked = said;
  const tokens = answer.words.map(plainToken);
  return { label, method: {}, text: textOf(answer), words, tokens, count: answer.tokens, layers: 0, tilted_layers: [], fired: null, cost: null, asked: answer.asked ? asked : null, maps: null, ending: "", why: PAGE.why && PAGE.why.replace("ID", id) };
}

const shellWord = (text) => (/^[\w./:=@%+-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`);

function openSample(number, push = false) {
  if (push) writeAddress();
  list.current = number;
  const place = list.found.indexOf(number);
  if (place >= 0) list.first = SHOWN * Math.floor(place / SHOWN);
  buildList();
  const sample = PAGE.samples[number];
  const run = labels().indexOf(choice.run);
  const shown = run < 0 ? [...sample.answers.keys()] : [...new Set([0, run])];
  const answers = shown.map((each) => whole(sample.answers[each], labels()[each], shellWord(sample.id)));
  openPage({ ...PAGE.common, ...sample, images: sample.images.map(imageOf).filter((image) => image.src), answers });
  document.title = `${tabTitle()} - seewhen`;
  if (push) writeAddress(true);
}

function step(by) {
  const next = list.found[list.found.indexOf(list.current) + by];
  if (next !== undefined) openSample(next, true);
}

// -- choosing -------------------------------------------------------------------------------------------

function options(id, entries, value) {
  at(id).replaceChildren(...entries.map(([name, text]) => element("option", { value: name }, text)));
  at(id).value = value;
}

// After a choice the first that is found is shown, unless what is shown is among them.
function chosen() {
  find();
  if (!list.found.length) buildList();
  else openSample(list.found.includes(list.current) ? list.current : list.found[0]);
  scheduleAddress();
}

function buildChoices() {
  const all = [...PAGE.samples.keys()].map((number) => PAGE.samples[number]);
  const parts = [...new Set(all.map((sample) => sample.part).filter(Boolean))];
  options("run", [["", "all, side by side"], ...labels().map((label) => [label, label])], choice.run);
  at("run").parentElement.hidden = labels().length < 2;
  options("part", [["", "all"], ...parts.map((part) => [part, part])], choice.part);
  at("part").parentElement.hidden = parts.length < 2;
  const known = Object.keys(FILTERS).filter((name) => all.some((sample) => sample.answers.some((_, number) => measures[name](sample, number) > 0)));
  for (const name of Object.keys(FILTERS)) {
    const field = at(`only-${name}`), missing = !known.includes(name) && UNKNOWN[name];
    field.parentElement.hidden = !known.includes(name) && !(missing && PAGE.why);
    field.disabled = Boolean(missing);
    field.parentElement.title = missing || "";
  }
  const orders = Object.entries(ORDERS).filter(([name]) => !(name in measures) || name === "length" || known.includes(name === "mistakes" ? "wrong" : name));
  options("order", orders, choice.order);
}

function startBrowsing() {
  at("browse").hidden = at("sample-keys").hidden = false;
  at("rest").textContent = PAGE.rest;
  at("search").addEventListener("input", () => { choice.q = at("search").value; find(); buildList(); scheduleAddress(); });
  for (const id of ["run", "part", "order"]) at(id).addEventListener("change", () => { choice[id] = at(id).value; chosen(); });
  for (const name of Object.keys(FILTERS)) {
    at(`only-${name}`).addEventListener("change", (event) => { choice.show[event.target.checked ? "add" : "delete"](name); chosen(); });
  }
  at("earlier").addEventListener("click", () => turn(-1));
  at("later").addEventListener("click", () => turn(1));
  document.addEventListener("keydown", (event) => {
    if (isTaken(event) || (event.key !== "n" && event.key !== "N")) return;
    step(event.key === "n" ? 1 : -1);
    event.preventDefault();
  });
}
