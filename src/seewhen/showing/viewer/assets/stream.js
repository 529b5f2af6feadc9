// One request: its tokens as they come, and an answer that grows into what the viewer shows.

class Refused extends Error {}

async function api(path, options = {}) {
  const headers = { ...(options.headers || {}) };
  if (live.key) headers.Authorization = `Bearer ${live.key}`;
  let response;
  try {
    response = await fetch(path, { ...options, headers, cache: "no-store" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refused("The server does not answer.");
  }
  if (response.ok) return response;
  const body = await response.json().catch(() => ({}));
  const wait = response.headers.get("Retry-After");
  const told = (body.error && body.error.message) || `The server answered ${response.status}.`;
  const refused = new Refused(wait ? `${told} (in ${wait} s)` : told);
  refused.status = response.status;
  throw refused;
}

async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    rest += value;
    const pieces = rest.split("\n\n");
    rest = pieces.pop();
    for (const piece of pieces) {
      if (piece.startsWith("data: {")) yield JSON.parse(piece.slice(6));
    }
  }
}

function emptyAnswer(label) {
  const maps = { attention_layers: [], similarity: [], relevance: [], entropy: [], grids: [] };
  return { label, text: "", words: [], tokens: [], layers: 0, tilted_layers: [], fired: null, cost: null, maps, ending: "", busy: true };
}

// Tokens put together to words, as viewer/word_risk.py does.
function groupWords(tokens) {
  const isMark = (text) => !/[\p{L}\p{N}_]/u.test(text);
  const starts = (before, text) => {
    if (!text || !before.trim()) return Boolean(text.trim()) && !before.trim();
    if (/^\s/.test(text) || /\s$/.test(before)) return true;
    return isMark(text) !== isMark(before);
  };
  const words = [];
  tokens.forEach((token, index) => {
    if (token.special) return;
    const last = words[words.length - 1];
    if (last && !starts(last.text, token.text)) {
      last.text += token.text; last.end = index + 1;
      last.risk = Math.max(last.risk ?? -1, token.risk ?? -1);
      if (last.risk < 0) last.risk = null;
    } else {
      words.push({ text: token.text, start: index, end: index + 1, risk: token.risk });
    }
  });
  return words;
}

function grow(answer, facts) {
  if (facts.grids) answer.maps.grids = facts.grids;
  if (facts.layers) answer.layers = facts.layers;
  for (const token of facts.tokens || []) {
    answer.tokens.push({ ...plainToken(token.text), ...token, entropy: token.entropy ?? null, risk: token.risk ?? null });
    for (const name of ["similarity", "relevance"]) answer.maps[name].push(token[name] || { low: 0, high: 0, bytes: "" });
    answer.maps.entropy.push(token.entropy_by_layer || []);
  }
  answer.words = groupWords(answer.tokens);
}

// A method with a decoding loop of its own tells only its text.
function growText(answer) {
  answer.maps = null;
  answer.tokens = (answer.text.match(/\s*[\p{L}\p{N}_'’-]+|\s*[^\p{L}\p{N}_\s]+|\s+/gu) || []).map(plainToken);
  answer.words = answer.tokens.map((token, index) => ({ text: token.text, start: index, end: index + 1, risk: null }));
}

function requestBody(question, wanted) {
  const content = question.images.map((image) => ({ type: "image_url", image_url: { url: image.src } }));
  const traced = wanted.decoding === "any";
  const seewhen = { ...wanted.asked, trace: traced };
  if (traced && question.truth !== null) seewhen.objects = question.truth;
  let temperature = question.temperature;
  if (wanted.decoding === "beams") temperature = 0;
  if (wanted.decoding === "sampling" && temperature === 0) temperature = 1;
  const messages = [{ role: "user", content: [...content, { type: "text", text: question.text }] }];
  return { model: question.model, messages, max_tokens: question.tokens, temperature, seed: question.seed, stream: true, seewhen };
}

// Asks, and calls `changed` after every piece. Returns the finished answer, or the one so far with what went wrong.
async function stream(question, wanted, answer, signal, changed) {
  try {
    const options = { method: "POST", headers: { "Content-Type": "application/json" }, signal };
    const response = await api("/v1/chat/completions", { ...options, body: JSON.stringify(requestBody(question, wanted)) });
    for await (const event of events(response)) {
      signal.throwIfAborted(); // several pieces may have come at once
      if (event.error) throw new Refused(event.error.message);
      const choice = event.choices[0];
      if (!choice) continue;
      answer.text += (choice.delta && choice.delta.content) || "";
      const facts = choice.seewhen || {};
      if (choice.finish_reason) {
        const last = facts.trace ? { ...facts.trace, label: answer.label } : answer;
        last.ending = choice.finish_reason === "stop" ? "" : facts.stopped ? " … (out of time)" : " … (cut at the token limit)";
        last.busy = false;
        return last;
      }
      if (facts.tokens) grow(answer, facts); else if (wanted.decoding !== "any") growText(answer);
      changed();
    }
    throw new Refused("The answer broke off.");
  } catch (error) {
    answer.busy = false;
    if (error.name === "AbortError") answer.ending = " … (stopped)";
    else if (error instanceof Refused) answer.problem = error.message;
    else { answer.problem = "The answer could not be read."; console.error(error); }
    return answer;
  }
}
