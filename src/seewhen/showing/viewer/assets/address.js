// What is looked at stands in the address: a copied one shows the same, and the browser's Back goes back.

const address = { timer: 0 };

function toldOfList() {
  if (!PAGE.samples) return {};
  const order = choice.order === (PAGE.order || "") ? "" : choice.order || "asked";
  const { q, run, part } = choice;
  return { q, run, part, show: [...choice.show].join(","), order, id: list.current < 0 ? "" : PAGE.samples[list.current].id };
}

// With `word`, also the selected word where it is not pinned.
function told(word = false) {
  const named = word || state.pinned ? { answer: state.answer, token: state.token } : {};
  const look = { map: state.kind === "evidence" ? "" : state.kind, layer: state.layer === "mean" ? "" : state.layer, look: state.look === "light" ? "" : state.look };
  const all = { ...toldOfList(), ...named, pin: state.pinned ? 1 : "", ...look };
  return String(new URLSearchParams(Object.entries(all).filter(([, value]) => value !== "")));
}

function writeAddress(push = false, text = told()) {
  clearTimeout(address.timer);
  address.timer = 0;
  if (`#${text}` !== location.hash) history[push ? "pushState" : "replaceState"](null, "", `#${text}`);
}

// Not at every key that is held down: browsers refuse that.
function scheduleAddress() {
  if (!address.timer) address.timer = setTimeout(writeAddress, 150);
}

function restoreList(wanted) {
  for (const name of ["q", "run", "part"]) choice[name] = wanted.get(name) || "";
  choice.order = wanted.has("order") ? wanted.get("order").replace("asked", "") : PAGE.order || "";
  choice.show = new Set((wanted.get("show") || "").split(",").filter((name) => name in FILTERS));
  buildChoices();
  at("search").value = choice.q;
  for (const name of Object.keys(FILTERS)) at(`only-${name}`).checked = choice.show.has(name);
  find();
  const named = PAGE.samples.findIndex((sample) => sample.id === wanted.get("id"));
  openSample(named >= 0 ? named : list.found[0] ?? 0);
}

function restore() {
  const text = location.hash.slice(1);
  if (text && !text.includes("=")) return; // a place on the page
  const wanted = new URLSearchParams(text);
  if (wanted.get("map") in MAPS) state.kind = wanted.get("map");
  state.layer = wanted.get("layer") || "mean";
  state.look = wanted.get("look") || "light";
  if (PAGE.samples) restoreList(wanted); else openPage(PAGE);
  document.title = `${tabTitle()} - seewhen`;
  at("map-look").value = state.look;
  if (!wanted.has("token")) return;
  select(Number(wanted.get("answer")), Number(wanted.get("token")));
  if (wanted.has("pin")) pin(true);
}

// What tells this page from others in a row of tabs.
function tabTitle() {
  const named = DATA.id || (DATA.images[0] && DATA.images[0].name);
  return [...new Set([named, PAGE.title || "What the model saw"])].filter(Boolean).join(": ");
}

async function copyLink() {
  writeAddress(false, told(true));
  const field = element("textarea", { class: "unseen", "aria-label": "The link" }, location.href);
  let copied = true;
  try {
    await navigator.clipboard.writeText(location.href);
  } catch {
    // No clipboard for this page: the old way.
    document.body.append(field);
    field.select();
    copied = document.execCommand("copy");
    field.remove();
    at("copy").focus();
  }
  at("announce").textContent = copied ? "The link is copied." : "The link is in the address bar.";
  at("copy").textContent = copied ? "Copied" : "It is in the address bar";
  setTimeout(() => { at("copy").textContent = "Copy link"; }, 2000);
}

// This page with one payload: what was built from the other is left out.
function wholePage(payload) {
  const copy = document.documentElement.cloneNode(true);
  const built = "#frames, #answers, #legend, #samples, #runners, #entropy, #word-tokens, #averages-rows, #grid-scale";
  copy.querySelectorAll(built).forEach((part) => part.replaceChildren());
  copy.querySelectorAll("#browse, #home, #sample-keys, #run-note").forEach((part) => { part.hidden = true; });
  copy.querySelectorAll("[style]").forEach((part) => part.removeAttribute("style")); // the policy allows none
  const { home, home_title: _, ...own } = payload; // the way back leads nowhere from a file that was saved
  copy.querySelector("#payload").textContent = embedded(own);
  return `<!doctype html>\n<html lang="en">${copy.getHTML()}</html>\n`;
}

if (PAGE !== null) {
  if (PAGE.title) at("title").textContent = PAGE.title;
  if (PAGE.home) {
    at("home").href = PAGE.home;
    if (PAGE.home_title) at("home").textContent = `← ${PAGE.home_title}`;
    at("home").hidden = false;
  }
  if (PAGE.samples) startBrowsing();
  at("copy").hidden = false;
  at("copy").addEventListener("click", copyLink);
  addEventListener("popstate", restore);
  document.addEventListener("shown", scheduleAddress);
  restore();
}
