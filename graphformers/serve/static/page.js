// The page: what the address says is shown; links and the search box change the address and nothing else.

import { ask, nodePath, useToken } from "./api.js";
import { light, listen, loadMap } from "./atlas.js";
import { showAttention } from "./attention.js";
import { showEgo } from "./ego.js";
import { address, cut, filters, make, meter, place } from "./parts.js";

const $ = (id) => document.getElementById(id);
const shown = { search: null, node: null, ego: null, attention: null, columns: [] }; // node: null for none, undefined for one that failed to load
let searching = null;
let opening = null;

function say(message, isBad = false) {
  $("notice").hidden = !message;
  $("notice").textContent = message;
  $("notice").className = isBad ? "notice bad" : "notice";
}

function fail(error) {
  if (error.status === 401) $("token-form").hidden = false;
  say(error.message, true);
}

function match(entry, measure, least, most) {
  const main = make("a", "main", make("span", "words", cut(entry.text, 400)));
  main.href = address({ node: entry.id });
  const part = most > least ? 0.15 + (0.85 * (entry.score - least)) / (most - least) : 1;
  const score = make("span", "score", meter(part), entry.score.toFixed(3));
  score.title = `${measure}: higher is nearer`;
  const item = make("li", "match", main, make("div", "line", make("span", "id", entry.id), score));
  item.dataset.id = entry.id;
  const own = Object.entries(entry.columns ?? {}).filter(([, value]) => value !== null && value !== "");
  if (own.length) item.append(make("p", "own", own.map(([name, value]) => `${name}: ${cut(String(value), 60)}`).join(" · ")));
  if (entry.neighbors?.length) {
    const near = entry.neighbors.map((other) => {
      const chip = make("a", "chip", cut(other.text, 34));
      chip.href = address({ node: other.id });
      chip.title = `linked to ${cut(other.text, 200)} (${other.id})`;
      return chip;
    });
    const rest = entry.num_neighbors - entry.neighbors.length;
    if (rest > 0) near.push(make("span", "chip", `+ ${rest.toLocaleString()}`));
    item.append(make("div", "near", ...near));
  }
  return item;
}

async function search({ q, where }) {
  const key = JSON.stringify([q, where, $("count").value]);
  if (key === shown.search) return;
  shown.search = key;
  searching?.abort();
  searching = new AbortController();
  const { signal } = searching;
  $("query").value = q;
  $("where").value = where;
  $("results-section").classList.toggle("busy", Boolean(q));
  if (!q) {
    $("results").replaceChildren();
    $("results-title").textContent = "Start with a few words";
    $("hint").hidden = false;
    $("truncated").hidden = true;
    light("results", []).catch(fail);
    return;
  }
  try {
    const body = { text: q, k: Number($("count").value), where: filters(where), show_neighbors: 3, columns: shown.columns };
    const { matches, measure, truncated } = (await ask("/search", body, signal)).content;
    const scores = matches.map((entry) => entry.score);
    const items = matches.map((entry) => match(entry, measure, Math.min(...scores), Math.max(...scores)));
    $("results").replaceChildren(...items);
    $("results-title").textContent = matches.length ? `${matches.length} nearest to “${cut(q, 60)}”` : "Nothing found";
    $("hint").hidden = true;
    $("truncated").hidden = !truncated;
    if (truncated) $("truncated").textContent = `The text has ${truncated.tokens.toLocaleString()} tokens, of which the model reads the first ${truncated.max_tokens} (max_tokens).`;
    say("");
    mark(place().node);
    light("results", matches).catch(fail);
  } catch (error) {
    if (signal.aborted) return; // the list belongs to a later search
    shown.search = null;
    fail(error);
  }
  $("results-section").classList.remove("busy");
}

function mark(id) {
  for (const item of $("results").children) {
    item.classList.toggle("open", item.dataset.id === id);
    if (item.dataset.id === id) item.querySelector(".main").setAttribute("aria-current", "true");
    else item.querySelector(".main").removeAttribute("aria-current");
  }
}

function short(target, { matches, measure }) {
  const items = matches.map((entry) => {
    const score = make("span", "much", entry.score.toFixed(3));
    score.title = measure;
    const link = make("a", "", make("span", "words", cut(entry.text, 160)), score, make("span", "id", entry.id));
    link.href = address({ node: entry.id });
    return make("li", "", link);
  });
  target.replaceChildren(...(items.length ? items : [make("li", "note", "none")]));
}

async function open(id) {
  if (id === shown.node) return;
  shown.node = id;
  opening?.abort();
  opening = new AbortController();
  const { signal } = opening;
  mark(id);
  document.body.classList.toggle("has-node", Boolean(id));
  $("node").classList.toggle("busy", Boolean(id));
  if (!id) {
    $("node").hidden = true;
    document.title = "graphformers";
    light("node", []).catch(fail);
    return;
  }
  try {
    const node = (await ask(nodePath(id, "?limit=0"), undefined, signal)).content;
    head(node);
    const from = (path) => ask(nodePath(id, path), undefined, signal).then((answer) => answer.content);
    const [ego, attention, similar, links] = await Promise.all([from("/ego?limit=24"), from("/attention"), from("/similar?k=8"), from("/links?k=8")]);
    shown.ego = ego;
    shown.attention = attention;
    around();
    showAttention($("attention"), $("attention-note"), attention);
    short($("similar"), similar);
    short($("links"), links);
    $("links-note").textContent = `Likely neighbours that are not linked yet. Score: ${links.measure}.`;
    say("");
    $("node").scrollIntoView({ block: "start" });
    $("node-title").focus({ preventScroll: true });
    light("node", [{ id, text: node.text }]).catch(fail);
  } catch (error) {
    if (signal.aborted) return; // the place belongs to another node
    shown.node = undefined;
    $("node").hidden = true;
    document.body.classList.remove("has-node");
    fail(error);
  }
  $("node").classList.remove("busy");
}

function around() {
  const count = showEgo($("ego"), shown.ego, shown.attention);
  $("ego-note").textContent = egoNote(shown.ego, count);
}

function egoNote(ego, count) {
  if (!ego.num_neighbors) return "It has no neighbours: its vector depends on its text alone.";
  const some = count < ego.num_neighbors ? `${count} of ${ego.num_neighbors.toLocaleString()} neighbours shown. ` : "";
  return `${some}Coloured: the ${ego.num_read} that the model reads with it; a thicker line is a larger attention weight.`;
}

function head(node) {
  $("node").hidden = false;
  $("node-title").textContent = cut(node.text, 600);
  document.title = `${cut(node.text, 60)} · graphformers`;
  const facts = [make("span", "id", node.id), make("span", "chip", `${node.num_neighbors.toLocaleString()} neighbours`)];
  for (const [name, value] of Object.entries(node.columns)) if (value !== null) facts.push(make("span", "chip", `${name}: ${cut(String(value), 60)}`));
  $("node-facts").replaceChildren(...facts);
  $("close").href = address({ node: "" });
}

function follow() {
  const now = place();
  search(now);
  open(now.node);
}

async function begin() {
  try {
    const info = (await ask("/info")).content;
    $("token-form").hidden = true;
    $("about").textContent = `${info.nodes.toLocaleString()} nodes · ${info.method}`;
    const columns = Object.keys(info.columns);
    shown.columns = columns.filter((name) => name && name.length <= 100).slice(0, 3); // of each match, as far as they can be asked for
    if (columns.length) $("where").placeholder = `e.g. ${columns[0]}=…`;
    follow();
    await loadMap();
  } catch (error) {
    fail(error);
    if (error.status === 503) setTimeout(begin, 1500);
  }
}

$("search").addEventListener("submit", (event) => {
  event.preventDefault();
  shown.search = null;
  const next = address({ q: $("query").value.trim(), where: $("where").value.trim(), node: "" });
  if (location.hash === next) follow();
  else location.hash = next;
});
$("token-form").addEventListener("submit", (event) => {
  event.preventDefault();
  useToken($("token").value);
  shown.search = null;
  shown.node = undefined;
  say("");
  begin();
});
$("copy").addEventListener("click", async () => {
  try {
    await navigator.clipboard.writeText(location.href);
    say("The link is copied.");
  } catch {
    say(location.href);
  }
});
$("count").addEventListener("change", follow);
window.addEventListener("hashchange", follow);
window.addEventListener("resize", () => shown.ego && !$("node").hidden && around());
document.addEventListener("keydown", (event) => {
  if (event.key === "/" && !/^(INPUT|SELECT|TEXTAREA)$/.test(document.activeElement.tagName)) {
    event.preventDefault();
    $("query").focus();
  }
  if (event.key === "Escape" && place().node) location.hash = address({ node: "" });
});
listen();
begin();
