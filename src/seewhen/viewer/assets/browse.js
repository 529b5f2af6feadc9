// A page of one payload, or of many with a list to choose from.

const PAGE = JSON.parse(at("payload").textContent);
const SHOWN = 12; // entries of the list at a time
const list = { found: [], first: 0, current: -1 };

function matching(text) {
  const wanted = text.toLowerCase().split(/\s+/).filter(Boolean);
  return [...PAGE.samples.keys()].filter((number) => {
    const sample = PAGE.samples[number];
    const words = [sample.id, sample.note, sample.prompt, ...sample.answers.map((answer) => answer.text)].join(" ").toLowerCase();
    return wanted.every((word) => words.includes(word));
  });
}

function buildList() {
  const end = Math.min(list.first + SHOWN, list.found.length);
  at("samples").replaceChildren(...list.found.slice(list.first, end).map((number) => {
    const sample = PAGE.samples[number];
    const button = element("button", { type: "button", "aria-current": String(number === list.current) });
    button.append(element("span", { class: `mark ${sample.wrong ? "absent" : "there"}` }, sample.wrong ? "✗" : "✓"));
    button.append(element("span", { class: "name" }, sample.id), element("span", { class: "quiet" }, sample.note));
    button.addEventListener("click", () => openSample(number));
    const item = element("li");
    item.append(button);
    return item;
  }));
  const range = list.found.length ? `${list.first + 1} to ${end} of ${list.found.length}` : "nothing found";
  at("count").textContent = range;
  at("earlier").disabled = list.first === 0;
  at("later").disabled = end >= list.found.length;
}

function turn(step) {
  list.first = Math.max(0, Math.min(list.first + step * SHOWN, list.found.length - 1));
  buildList();
}

function openSample(number) {
  list.current = number;
  const place = list.found.indexOf(number);
  if (place >= 0) list.first = SHOWN * Math.floor(place / SHOWN);
  buildList();
  openPage(PAGE.samples[number]);
}

function step(by) {
  const next = list.found[list.found.indexOf(list.current) + by];
  if (next !== undefined) openSample(next);
}

function startBrowsing() {
  at("browse").hidden = false;
  at("sample-keys").hidden = false;
  at("rest").textContent = PAGE.rest;
  list.found = matching("");
  at("search").addEventListener("input", () => { list.found = matching(at("search").value); list.first = 0; buildList(); });
  at("earlier").addEventListener("click", () => turn(-1));
  at("later").addEventListener("click", () => turn(1));
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.matches("input, select")) return;
    if (event.key === "n" || event.key === "N") { step(event.key === "n" ? 1 : -1); event.preventDefault(); }
  });
  openSample(0);
}

if (PAGE.samples) startBrowsing(); else openPage(PAGE);
