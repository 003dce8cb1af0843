// Whom a node listened to: the average of all layers and heads, and each of them on demand.

import { address, cut, make, meter, percent } from "./parts.js";

export function showAttention(target, note, heard) {
  if (!heard.average.length) {
    note.textContent = `A model of the kind “${heard.method}” has no graph attention to show.`;
    target.replaceChildren();
    return;
  }
  const layers = heard.weights.length;
  const heads = heard.weights[0].length;
  note.textContent = `Share of its attention, averaged over ${layers} ${layers > 1 ? "layers" : "layer"} of ${heads} heads.`;
  const list = make("ol", "heard");
  const order = heard.nodes.map((_, i) => i).sort((a, b) => (a === 0 ? -1 : b === 0 ? 1 : heard.average[b] - heard.average[a]));
  for (const i of order) {
    const node = heard.nodes[i];
    const who = i === 0 ? make("span", "who", "itself") : make("a", "who", cut(node.text, 120));
    if (i > 0) who.href = address({ node: node.id });
    who.title = node.id;
    list.append(make("li", i === 0 ? "self" : "", who, make("span", "much", percent(heard.average[i])), meter(heard.average[i])));
  }
  target.replaceChildren(list, detail(heard, order));
}

function detail(heard, order) {
  const whole = make("details", "detail", make("summary", "", "Every layer and head"));
  // made when it is first asked for: hundreds of cells
  whole.addEventListener("toggle", () => {
    if (whole.open && whole.children.length === 1) whole.append(make("div", "layers", ...heard.weights.map((heads, i) => layer(heard, order, heads, i))));
  });
  return whole;
}

function layer(heard, order, heads, index) {
  const top = make("tr", "", make("th"), ...heads.map((_, i) => make("th", "", String(i + 1))));
  const rows = order.map((i) => {
    const name = make("th", "", i === 0 ? "itself" : cut(heard.nodes[i].text, 18));
    name.scope = "row";
    name.title = i === 0 ? "itself" : cut(heard.nodes[i].text, 200);
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
