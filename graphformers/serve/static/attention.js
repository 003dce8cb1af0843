// Attention weights of a node over its neighbours: averaged over all layers and heads, and each of them on demand.

import { address, cut, make, meter, percent } from "./parts.js";

export function showAttention(target, note, attention) {
  if (!attention.average.length) {
    note.textContent = `A model of the kind “${attention.method}” has no graph attention to show.`;
    target.replaceChildren();
    return;
  }
  const layers = attention.weights.length;
  const heads = attention.weights[0].length;
  note.textContent = `Attention weights of the node over itself and its neighbours, averaged over ${layers} ${layers > 1 ? "layers" : "layer"} of ${heads} heads.`;
  const list = make("ol", "attention");
  const order = attention.nodes.map((_, i) => i).sort((a, b) => (a === 0 ? -1 : b === 0 ? 1 : attention.average[b] - attention.average[a]));
  for (const i of order) {
    const node = attention.nodes[i];
    const who = i === 0 ? make("span", "who", "itself") : make("a", "who", cut(node.text, 120));
    if (i > 0) who.href = address({ node: node.id });
    who.title = node.id;
    list.append(make("li", i === 0 ? "self" : "", who, make("span", "much", percent(attention.average[i])), meter(attention.average[i])));
  }
  target.replaceChildren(list, detail(attention, order));
}

function detail(attention, order) {
  const whole = make("details", "detail", make("summary", "", "Every layer and head"));
  // made when it is first asked for: hundreds of cells
  whole.addEventListener("toggle", () => {
    if (whole.open && whole.children.length === 1) whole.append(make("div", "layers", ...attention.weights.map((heads, i) => layer(attention, order, heads, i))));
  });
  return whole;
}

function layer(attention, order, heads, index) {
  const top = make("tr", "", make("th"), ...heads.map((_, i) => make("th", "", String(i + 1))));
  const rows = order.map((i) => {
    const name = make("th", "", i === 0 ? "itself" : cut(attention.nodes[i].text, 18));
    name.scope = "row";
    name.title = i === 0 ? "itself" : cut(attention.nodes[i].text, 200);
    const cells = heads.map((weights, head) => {
      const cell = make("td");
      cell.style.setProperty("--part", weights[i].toFixed(4));
      cell.title = `layer ${index + 1}, head ${head + 1}: ${percent(weights[i])}`;
      cell.setAttribute("aria-label", percent(weights[i]));
      return cell;
    });
    return make("tr", "", name, ...cells);
  });
  return make("table", "", make("caption", "", `Layer ${index + 1}`), make("thead", "", top), make("tbody", "", ...rows));
}
