// One file of what is shown: the viewer with this comparison inside. `wholePage` is the page's own way to make it.

// JSON that may stand in a script element.
function embedded(payload) {
  const escaped = (mark) => `\\u${mark.charCodeAt(0).toString(16).padStart(4, "0")}`;
  return JSON.stringify(payload).replace(/[<>&\u2028\u2029]/g, escaped);
}

function fileName() {
  const name = String(DATA.id || (DATA.images[0] && DATA.images[0].name) || "answers").replace(/\.\w+$/, "");
  return `seen-${name.replace(/[^\p{L}\p{N}]+/gu, "-")}.html`;
}

async function asFile() {
  return new File([await wholePage(DATA)], fileName(), { type: "text/html" });
}

async function save() {
  const file = await asFile();
  const link = element("a", { href: URL.createObjectURL(file), download: file.name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60000);
  at("announce").textContent = `Saved as ${file.name}.`;
}

async function share() {
  const files = [await asFile()];
  // Whoever closes the system's dialogue has not met an error.
  await navigator.share({ files, title: document.title }).catch((error) => { if (error.name !== "AbortError") throw error; });
}

at("save").addEventListener("click", save);
at("share").addEventListener("click", share);
at("share").hidden = !(navigator.canShare && navigator.canShare({ files: [new File([""], "seen.html", { type: "text/html" })] }));
