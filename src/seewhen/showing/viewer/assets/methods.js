// The methods to ask: each with a preset and its parameters, which start from the preset's values.

const MOST_METHODS = 4;
const chooser = { known: [], rows: [], numbers: 0 };

function methodNamed(id) {
  return chooser.known.find((method) => method.id === id);
}

// The value a parameter has before anybody changes it.
function usual(method, preset, parameter) {
  const values = (preset && method.preset_values[preset]) || {};
  return parameter.name in values ? values[parameter.name] : parameter.default;
}

// `changed`: parameters that do not start from the preset's values (those of the server's own default method).
function addMethod(id, changed = {}) {
  const number = chooser.numbers++;
  const box = element("div", { class: "method", role: "group" });
  const row = { box, method: null, preset: "", changed: {} };
  const name = labelled("Method", element("select", { id: `method-name-${number}` }));
  name.field.append(...chooser.known.map((method) => element("option", { value: method.id, title: method.summary }, method.id)));
  const preset = labelled("Preset", element("select", { id: `method-preset-${number}` }));
  const remove = element("button", { type: "button" }, "Remove");
  const choice = element("div", { class: "choice" });
  choice.append(name.label, preset.label, remove);
  const summary = element("p", { class: "quiet" });
  const details = element("details");
  details.append(element("summary", {}, "Parameters"), element("div", { class: "parameters" }));
  box.append(choice, summary, details);

  const build = () => {
    const parameters = row.method.parameters;
    details.hidden = !parameters.length;
    details.lastElementChild.replaceChildren(...parameters.map((each) => parameterField(row, each, number)));
  };
  name.field.addEventListener("change", () => {
    row.method = methodNamed(name.field.value);
    row.preset = ""; row.changed = changed; changed = {};
    box.setAttribute("aria-label", `Method ${row.method.id}`);
    remove.setAttribute("aria-label", `Remove ${row.method.id}`);
    summary.textContent = row.method.summary;
    preset.field.replaceChildren(element("option", { value: "" }, "default"));
    preset.field.append(...row.method.presets.map((each) => element("option", { value: each }, each)));
    preset.label.hidden = !row.method.presets.length;
    build();
  });
  preset.field.addEventListener("change", () => { row.preset = preset.field.value; row.changed = {}; build(); });
  remove.addEventListener("click", () => {
    chooser.rows.splice(chooser.rows.indexOf(row), 1);
    box.remove();
    countMethods();
    at("add-method").focus();
  });
  chooser.rows.push(row);
  at("methods").append(box);
  name.field.value = id;
  name.field.dispatchEvent(new Event("change"));
  countMethods();
  return row;
}

function countMethods() {
  at("add-method").disabled = chooser.rows.length >= MOST_METHODS;
  const lonely = chooser.rows.length === 1;
  for (const row of chooser.rows) row.box.querySelector(".choice button").hidden = lonely;
}

function labelled(text, field) {
  const label = element("label", {}, `${text} `);
  label.append(field);
  return { label, field };
}

function parameterField(row, parameter, number) {
  const id = `p-${number}-${parameter.name}`;
  const shown = parameter.name.replaceAll("_", " ");
  const start = usual(row.method, row.preset, parameter);
  const now = parameter.name in row.changed ? row.changed[parameter.name] : start;
  const title = element("label", { class: parameter.name in row.changed ? "name changed" : "name", for: id }, shown);
  const set = (value) => {
    if (value === start) delete row.changed[parameter.name]; else row.changed[parameter.name] = value;
    title.classList.toggle("changed", parameter.name in row.changed);
  };
  const kinds = parameter.type;
  const words = kinds.filter((kind) => !["integer", "number", "boolean", "null"].includes(kind));
  const box = element("div", { class: "number" });
  if (words.length) {
    const field = element("select", { id });
    field.append(...words.map((word) => element("option", { value: word }, word)));
    field.value = now;
    field.addEventListener("change", () => set(field.value));
    box.append(title, field);
  } else if (kinds.includes("boolean")) {
    const field = element("input", { id, type: "checkbox" });
    field.checked = now;
    field.addEventListener("change", () => set(field.checked));
    box.append(title, field);
  } else {
    numberField(box, title, id, shown, parameter, now, set);
  }
  return box;
}

// A slider with a number beside it, for what the slider does not reach; empty is "none", where that is allowed.
function numberField(box, title, id, shown, parameter, now, set) {
  const range = parameter.range || {}, none = parameter.type.includes("null");
  const step = range.step || (parameter.type.includes("number") ? "any" : 1);
  const field = element("input", { id, type: "number", step: step === 1 ? 1 : "any", placeholder: none ? "none" : "" });
  if (!none) field.required = true;
  const slider = element("input", { type: "range", "aria-label": `${shown}, slider`, step });
  slider.hidden = !parameter.range;
  if (parameter.range) {
    slider.min = range.min; slider.max = Math.max(range.max, now ?? range.max);
    slider.value = now ?? range.min;
  }
  field.value = now === null ? "" : Number(now.toPrecision(6));
  field.addEventListener("input", () => {
    if (field.value !== "") slider.value = field.value;
    set(field.value === "" ? null : Number(field.value));
  });
  slider.addEventListener("input", () => { field.value = Number(slider.valueAsNumber.toPrecision(6)); set(Number(field.value)); });
  box.append(title, slider, field);
}

// The parameters of a method that are not its class's own.
function departures(described) {
  const method = methodNamed(described.method);
  const own = (method ? method.parameters : []).filter(({ name }) => name in described.parameters);
  const far = own.filter(({ name, default: usually }) => described.parameters[name] !== usually);
  return Object.fromEntries(far.map(({ name }) => [name, described.parameters[name]]));
}

// What is asked of the server, and what it is called on the page.
function methodOf(row) {
  const asked = { method: row.method.id };
  if (row.preset) asked.preset = row.preset;
  if (Object.keys(row.changed).length) asked.parameters = { ...row.changed };
  const changes = Object.entries(row.changed).map(([name, value]) => `${name}=${value === null ? "none" : value}`);
  return { asked, label: [row.preset ? `${row.method.id}:${row.preset}` : row.method.id, ...changes].join(" "), decoding: row.method.decoding };
}
