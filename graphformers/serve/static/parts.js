// Elements of the page. Texts of the graph only ever become text: nothing here reads them as HTML.

export function make(name, className = "", ...children) {
  const element = document.createElement(name);
  if (className) element.className = className;
  element.append(...children);
  return element;
}

export function draw(name, attributes = {}, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...children);
  return element;
}

export function cut(text, letters) {
  const line = text.replace(/\s+/g, " ").trim();
  const found = Array.from(line);
  return found.length > letters ? found.slice(0, letters - 1).join("").trimEnd() + "…" : line;
}

export function meter(part) {
  const bar = make("i");
  bar.style.setProperty("--part", Math.max(0, Math.min(1, part)).toFixed(4));
  const whole = make("span", "meter", bar);
  whole.setAttribute("aria-hidden", "true");
  return whole;
}

export const percent = (part) => `${(100 * part).toFixed(part < 0.1 ? 1 : 0)} %`;

// Filters with commas between them; one without a sign is another value of the one before it: year in 1995, 1996, venue=x
export function filters(text) {
  const found = [];
  for (const part of text.split(",").map((word) => word.trim()).filter(Boolean)) {
    if (found.length && !/[<>=!~]|\sin\s/.test(part)) found.push(`${found.pop()},${part}`);
    else found.push(part);
  }
  return found;
}

// Where the page stands is in the address, so that it can be sent to a colleague: #q=…&node=…
export function place() {
  const given = new URLSearchParams(location.hash.slice(1));
  return { q: given.get("q") || "", node: given.get("node"), where: given.get("where") || "" };
}

export function address(changes) {
  const now = { ...place(), ...changes };
  const parts = ["q", "where", "node"].filter((name) => now[name]).map((name) => `${name}=${encodeURIComponent(now[name])}`);
  return `#${parts.join("&")}`;
}
