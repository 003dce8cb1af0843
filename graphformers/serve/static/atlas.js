// The map, seen from the page. It is drawn in a frame that can reach nothing, not even the server: points go in, picks come out.

import { ask } from "./api.js";
import { address } from "./parts.js";

const frame = document.getElementById("map");
const note = document.getElementById("map-note");
let isReady = false;
let waiting = {};
const turns = { results: 0, node: 0 };

function tell(kind, content) {
  waiting[kind] = content;
  if (isReady) frame.contentWindow.postMessage({ kind, content }, "*");
}

export function listen() {
  window.addEventListener("message", (event) => {
    if (event.source !== frame.contentWindow) return;
    if (event.data?.kind === "ready") {
      isReady = true;
      for (const [kind, content] of Object.entries(waiting)) frame.contentWindow.postMessage({ kind, content }, "*");
    }
    if (event.data?.kind === "pick" && typeof event.data.id === "string") location.hash = address({ node: event.data.id });
    if (event.data?.kind === "drawn") document.documentElement.dataset.map = "drawn";
  });
  const look = window.matchMedia("(prefers-color-scheme: dark)");
  const colors = () => {
    const style = getComputedStyle(document.documentElement);
    const names = ["paper", "ink", "soft", "line", "accent", "warm", "sunken"];
    tell("colors", Object.fromEntries(names.map((name) => [name, style.getPropertyValue(`--${name}`).trim()])));
  };
  look.addEventListener("change", colors);
  colors();
  frame.contentWindow?.postMessage({ kind: "hello" }, "*"); // it may have been ready before we listened
}

export async function loadMap() {
  note.textContent = "is being made …";
  for (let pause = 300; ; pause = Math.min(pause * 1.5, 5000)) {
    const { status, content } = await ask("/map");
    if (status === 200) {
      const shown = content.ids.length;
      const all = content.nodes > shown ? `${shown.toLocaleString()} of ${content.nodes.toLocaleString()} nodes` : `${shown.toLocaleString()} nodes`;
      note.textContent = `${all}, ${content.method === "pca" ? "by their main directions (PCA)" : `by ${content.method}`}`;
      tell("points", content);
      return;
    }
    await new Promise((done) => setTimeout(done, pause));
  }
}

// Lights up some nodes, and one among them; nodes that are not among the points are placed by the server.
export async function light(name, matches) {
  const turn = ++turns[name];
  const { content } = matches.length ? await ask("/map/places", { ids: matches.map((match) => match.id) }) : { content: { places: [] } };
  const lit = matches.map((match, i) => ({ id: match.id, text: match.text, place: content.places[i] })).filter((entry) => entry.place);
  if (turn === turns[name]) tell(name, lit); // else others have been lit since
}
