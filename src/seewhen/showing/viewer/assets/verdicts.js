// What the model said when it was asked about the objects of its own answer, and what was taken back for it.

const isDenied = (word) => Boolean(word.asked && word.asked.verdict === "denied");

// What the model said when asked is the sign of its odds. A verdict goes by more where it was fitted (how sure the
// word was, how often such words are right) and by a threshold, so an object may be denied although it said yes.
function judgedBy({ odds, probability, elsewhere }) {
  const sign = odds < 0 ? "−" : "+";
  const drafts = elsewhere === undefined ? "" : `; in ${percent(elsewhere)} of its drafts`;
  return `${percent(probability)} likely to be there; asked, it said ${odds < 0 ? "no" : "yes"}, log-odds ${sign}${Math.abs(odds).toFixed(1)}${drafts}`;
}

function verdictNote(said) {
  if (said.verdict === "not asked") return `names “${said.object}”, not asked about`;
  // A method that asks judges while it writes; what was asked afterwards may differ.
  const own = said.own ? `; while it wrote: ${said.own.verdict}, ${percent(said.own.probability)} likely` : "";
  return `“${said.object}” is ${said.verdict}: ${judgedBy(said)}${own}`;
}

// A denied word is struck, a small mark says what the model said; of an object named by two words it stands after
// the second.
function verdictMark(span, word, next) {
  const { object, verdict, odds } = word.asked;
  if (verdict === "not asked") return;
  span.classList.add("asked");
  span.classList.toggle("denied", verdict === "denied");
  if (!(next && next.asked && next.asked.object === object)) {
    span.append(element("span", { class: odds < 0 ? "said-no" : "said-yes", "aria-hidden": "true" }));
  }
}

function backNote(said) {
  const named = said.denied.map((each) => `${each.object} (${judgedBy(each)})`);
  return [element("span", {}, "It wanted to say: "), element("del", {}, said.text), element("span", {}, ` Denied: ${named.join(", ")}`)];
}

// The sentences taken back before a word, folded; or null.
function takenBack(answer, index, number) {
  const back = answer.asked ? answer.asked.taken_back.filter((said) => said.before === index) : [];
  if (!back.length) return null;
  const place = element("span", { class: "back" });
  const id = `back-${number}-${index}`;
  const many = back.length > 1 ? `${back.length} sentences` : "One sentence";
  const button = element("button", { type: "button", "aria-controls": id, "aria-label": `${many} taken back here`, title: `${many} taken back here` }, `↩ ${back.length}`);
  const list = element("span", { id, class: "unsaid" });
  for (const said of back) {
    const line = element("span", { class: "said" });
    line.append(...backNote(said));
    list.append(line);
  }
  const show = (open) => {
    back.forEach((said) => { said.open = open; }); // a card that is built anew stays as it was
    list.hidden = !open;
    button.setAttribute("aria-expanded", String(open));
  };
  button.addEventListener("click", () => show(list.hidden));
  show(Boolean(back[0].open));
  place.append(button, list);
  return place;
}

// All of an answer: open if one is closed.
function unfoldAll(number) {
  const buttons = [...at("answers").children[number].querySelectorAll(".back button")];
  const open = buttons.some((button) => button.getAttribute("aria-expanded") === "false");
  for (const button of buttons) if (button.getAttribute("aria-expanded") !== String(open)) button.click();
}

function legendOfVerdicts(entry) {
  const asked = DATA.answers.filter((answer) => answer.asked);
  const some = (test) => asked.some((answer) => answer.words.some((word) => word.asked && word.asked.verdict !== "not asked" && test(word.asked)));
  if (some((said) => said.odds >= 0)) entry("word", "said-yes", "asked, it said yes");
  if (some((said) => said.odds < 0)) entry("word", "said-no", "asked, it said no");
  if (some((said) => said.verdict === "denied")) entry("word", "denied", "denied");
  if (asked.some((answer) => answer.asked.taken_back.length)) entry("↩", "", "taken back: open it");
}

// The measured averages of the model, so that one picture is never the argument.
function buildAverages() {
  const known = DATA.averages;
  at("averages").hidden = !known;
  if (!known) return;
  at("averages-of").textContent = `of the ${known.model} model`;
  const number = (value) => (value === null || value === undefined ? "" : value.toFixed(1));
  at("averages-rows").replaceChildren(...known.rows.flatMap((row, index) => {
    const line = element("tr");
    line.append(element("th", { scope: "row" }, row.method));
    const share = `${number(row.chair_i)} (${number(row.chair_i_low)} to ${number(row.chair_i_high)})`;
    for (const text of [share, number(row.chair_s), number(row.recall), String(row.captions)]) line.append(element("td", { class: "number" }, text));
    if (index && known.rows[index - 1].mode === row.mode) return [line];
    const group = element("tr", { class: "group" });
    group.append(element("th", { scope: "rowgroup", colspan: "5" }, row.mode));
    return [group, line];
  }));
}
