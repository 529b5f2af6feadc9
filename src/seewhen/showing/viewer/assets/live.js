// The page of a running server: pictures, questions, several methods at once.

const DESCRIBE = "Please describe this image in detail.";
const LARGEST_SIDE = 2048, LARGEST_BYTES = 6e6, MOST_PICTURES = 4, SCENES = 6;
const KINDS = ["image/png", "image/jpeg", "image/webp"];
const live = { key: "", pictures: [], truth: null, scene: null, firstScene: 0, abort: null, follow: true, models: [], sceneSide: 0 };

// -- pictures -------------------------------------------------------------------------------------------

function load(src) {
  return new Promise((done, failed) => {
    const image = new Image();
    image.onload = () => done(image);
    image.onerror = () => failed(new Refused("This is not a picture that the browser can read."));
    image.src = src;
  });
}

function read(file) {
  return new Promise((done, failed) => {
    const reader = new FileReader();
    reader.onload = () => done(reader.result);
    reader.onerror = () => failed(new Refused("The file cannot be read."));
    reader.readAsDataURL(file);
  });
}

// As it is where the server takes it, else made smaller, or into a JPEG.
async function pictureOf(file) {
  const src = await read(file);
  const image = await load(src);
  const scale = Math.min(1, LARGEST_SIDE / Math.max(image.naturalWidth, image.naturalHeight));
  const name = file.name || "pasted";
  if (scale === 1 && KINDS.includes(file.type) && file.size <= LARGEST_BYTES) {
    return { name, src, width: image.naturalWidth, height: image.naturalHeight };
  }
  const canvas = element("canvas", { width: Math.round(scale * image.naturalWidth), height: Math.round(scale * image.naturalHeight) });
  canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
  return { name, src: canvas.toDataURL("image/jpeg", 0.92), width: canvas.width, height: canvas.height };
}

async function take(files) {
  tell("");
  try {
    const fresh = await Promise.all([...files].map(pictureOf));
    const own = live.scene === null ? live.pictures : [];
    if (own.length + fresh.length > MOST_PICTURES) throw new Refused(`At most ${MOST_PICTURES} pictures.`);
    live.pictures = [...own, ...fresh];
    live.scene = live.truth = null;
    showChosen();
  } catch (error) {
    if (!(error instanceof Refused)) throw error;
    tell(error.message);
  }
}

// The packaged model knows nothing but drawn scenes; what it says of a photograph means nothing.
function warn() {
  const model = live.models.find((each) => each.id === at("model").value);
  const drawn = live.scene !== null || live.pictures.every(({ width, height }) => width === live.sceneSide && height === live.sceneSide);
  const other = live.models.find((each) => each.seewhen.shipped === "photo");
  at("foreign").hidden = !model || model.seewhen.shipped !== "packaged" || drawn;
  at("use-photo").hidden = !other;
  at("start-photo").hidden = Boolean(other);
}

function showChosen() {
  warn();
  const own = live.scene === null ? live.pictures : [];
  at("chosen").replaceChildren(...own.map((picture, number) => {
    const button = element("button", { type: "button", "aria-label": `Remove ${picture.name}` });
    button.append(element("img", { src: picture.src, alt: picture.name }), element("span", { class: "remove" }, "Remove"));
    button.addEventListener("click", () => { live.pictures.splice(number, 1); showChosen(); at("file").focus(); });
    const item = element("li");
    item.append(button);
    return item;
  }));
  for (const button of at("scenes").querySelectorAll("button")) {
    button.setAttribute("aria-pressed", String(button.dataset.name === live.scene));
  }
}

async function showScenes() {
  const numbers = Array.from({ length: SCENES }, (_, i) => (live.firstScene + i) % 10000);
  const scenes = await Promise.all(numbers.map(async (number) => (await api(`/v1/scenes/shifted/${number}`)).json()));
  at("scenes").replaceChildren(...scenes.map((scene) => {
    const button = element("button", { type: "button", "aria-pressed": "false" });
    button.dataset.name = scene.id;
    button.append(element("img", { src: scene.image, alt: `Scene ${scene.index}` }));
    button.addEventListener("click", () => pickScene(scene));
    const item = element("li");
    item.append(button);
    return item;
  }));
  live.sceneSide = scenes[0].width;
  if (!live.pictures.length) pickScene(scenes[0]);
  showChosen();
}

function pickScene(scene) {
  live.scene = scene.id;
  live.truth = scene.objects;
  live.pictures = [{ name: scene.id, src: scene.image, width: scene.width, height: scene.height }];
  showChosen();
}

// -- asking ---------------------------------------------------------------------------------------------

function tell(problem) {
  at("problem").textContent = problem;
}

function refresh(number) {
  const card = at("answers").children[number];
  const words = card.querySelectorAll(".word");
  const focused = [...words].indexOf(document.activeElement);
  const fresh = answerCard(DATA.answers[number], number, new Set());
  fresh.classList.toggle("busy", Boolean(DATA.answers[number].busy));
  fresh.setAttribute("aria-busy", String(Boolean(DATA.answers[number].busy)));
  card.replaceWith(fresh);
  if (focused >= 0) fresh.querySelectorAll(".word")[focused].focus({ preventScroll: true });
}

async function ask() {
  if (live.abort) return;
  tell("");
  if (!live.pictures.length) { tell("Choose a picture first."); return; }
  if (!at("question").value.trim()) { tell("Write a question first."); at("question").focus(); return; }
  const wanted = chooser.rows.map(methodOf);
  const question = {
    images: live.pictures, truth: live.truth, text: at("question").value, model: at("model").value,
    tokens: at("max-tokens").valueAsNumber, temperature: at("temperature").valueAsNumber, seed: at("seed").valueAsNumber,
  };
  live.abort = new AbortController();
  live.follow = true;
  at("go").disabled = true;
  at("halt").disabled = false;
  at("save").disabled = at("share").disabled = true;
  at("status").textContent = "Asking.";
  at("results").hidden = false;
  const sampled = question.temperature > 0;
  const about = { decoding: sampled ? `sampled at ${question.temperature}, seed ${question.seed}` : "greedy" };
  openPage({ model: question.model, prompt: question.text, images: question.images, truth: question.truth, about, answers: wanted.map((each) => emptyAnswer(each.label)) });
  wanted.forEach((_, number) => refresh(number));
  const payload = DATA;
  await Promise.all(wanted.map(async (each, number) => {
    const answer = payload.answers[number];
    const changed = () => {
      refresh(number);
      const first = payload.answers.findIndex((other) => other.busy && other.tokens.length);
      if (live.follow && number === first) select(number, answer.tokens.length - 1);
      else show();
    };
    payload.answers[number] = await stream(question, each, answer, live.abort.signal, changed);
    refresh(number);
  }));
  finish();
}

function finish() {
  live.abort = null;
  at("go").disabled = false;
  at("halt").disabled = true;
  at("save").disabled = at("share").disabled = false;
  const failed = DATA.answers.filter((answer) => answer.problem).length;
  at("status").textContent = failed ? `${failed} of ${DATA.answers.length} answers failed.` : "Done. Every word can be looked at.";
  const { answer, token } = state;
  buildLegend();
  buildLayers();
  buildAnswers();
  select(...(live.follow ? mostTelling() : [answer, token]));
}

// The viewer as a file comes from the server, this comparison goes into it here.
async function wholePage(payload) {
  const empty = await (await api("/viewer.html")).text();
  return empty.replace('json">null<', () => `json">${embedded(payload)}<`);
}

// -- starting -------------------------------------------------------------------------------------------

async function start() {
  try {
    const [models, methods] = await Promise.all(["/v1/models", "/v1/methods"].map(async (path) => (await api(path)).json()));
    at("key-form").hidden = true;
    at("ask").hidden = false;
    live.models = models.data;
    at("model").replaceChildren(...models.data.map((model) => element("option", { value: model.id }, model.id)));
    at("model-control").hidden = models.data.length < 2;
    at("max-tokens").max = models.data[0].seewhen.trace_tokens;
    chooser.known = methods.data.filter((method) => method.usable);
    const own = models.data[0].seewhen.default_method;
    addMethod("regular");
    if (own.method !== "regular" && methodNamed(own.method)) addMethod(own.method, departures(own));
    at("status").textContent = `${models.data.map((model) => model.id).join(", ")}: ready.`;
    await showScenes();
  } catch (error) {
    if (!(error instanceof Refused)) throw error;
    const locked = error.status === 401;
    at("key-form").hidden = !locked;
    at("status").textContent = locked && !live.key ? "This server asks for a key." : error.message;
    if (locked) at("key").focus();
  }
}

at("question").value = DESCRIBE;
at("model").addEventListener("change", warn);
at("use-photo").addEventListener("click", () => {
  at("model").value = live.models.find((each) => each.seewhen.shipped === "photo").id;
  warn();
  at("model").focus();
});
at("file").addEventListener("change", () => { take(at("file").files); at("file").value = ""; });
at("more-scenes").addEventListener("click", () => { live.firstScene += SCENES; showScenes().catch((error) => tell(error.message)); });
at("add-method").addEventListener("click", () => {
  const taken = new Set(chooser.rows.map((row) => row.method.id));
  const next = chooser.known.find((method) => !taken.has(method.id)) || chooser.known[0];
  addMethod(next.id).box.querySelector("select").focus();
});
at("ask").addEventListener("submit", (event) => { event.preventDefault(); ask(); });
at("question").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) { event.preventDefault(); at("ask").requestSubmit(); }
});
at("halt").addEventListener("click", () => { if (live.abort) live.abort.abort(); });
at("key-form").addEventListener("submit", (event) => { event.preventDefault(); live.key = at("key").value; at("key").value = ""; start(); });
for (const kind of ["dragover", "dragleave", "drop"]) {
  document.addEventListener(kind, (event) => {
    event.preventDefault();
    at("drop").classList.toggle("over", kind === "dragover");
    if (kind === "drop" && !at("ask").hidden && event.dataTransfer.files.length) take(event.dataTransfer.files);
  });
}
document.addEventListener("paste", (event) => {
  if (!at("ask").hidden && event.clipboardData.files.length) { event.preventDefault(); take(event.clipboardData.files); }
});
// Whoever looks at a word stays there, also while others arrive.
for (const kind of ["mouseover", "focusin"]) {
  at("answers").addEventListener(kind, (event) => { if (event.target.closest(".word")) live.follow = false; });
}
start();
