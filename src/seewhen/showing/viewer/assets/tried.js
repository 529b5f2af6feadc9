// Which pictures are shown: by flag and by words; the choice is in the address, so that it can be sent to somebody.

const at = (id) => document.getElementById(id);
const all = [...document.querySelectorAll("#pictures > li")];
const buttons = [...document.querySelectorAll("[data-show]")];

function show() {
  const flag = buttons.find((button) => button.getAttribute("aria-pressed") === "true").dataset.show;
  const wanted = at("search").value.toLowerCase().split(/\s+/).filter(Boolean);
  let count = 0;
  for (const item of all) {
    const text = item.textContent.toLowerCase();
    const fits = (!flag || item.dataset.flags.split(" ").includes(flag)) && wanted.every((word) => text.includes(word));
    item.hidden = !fits;
    count += fits;
  }
  at("count").textContent = `${count} of ${all.length} pictures`;
}

function press(name) {
  const known = buttons.some((button) => button.dataset.show === name && !button.disabled) ? name : "";
  for (const button of buttons) button.setAttribute("aria-pressed", String(button.dataset.show === known));
  show();
}

function fromAddress() {
  const found = location.hash.match(/^#show=(\w*)$/);
  press(found ? found[1] : "");
}

for (const button of buttons) {
  button.addEventListener("click", () => {
    history.replaceState(null, "", `#show=${button.dataset.show}`);
    press(button.dataset.show);
  });
}
at("search").addEventListener("input", show);
addEventListener("hashchange", fromAddress);
at("controls").hidden = false;
fromAddress();
