// A node among its neighbours: itself in the middle, the others on two arcs, so that no label stands on another.

import { address, cut, draw } from "./parts.js";

const ROW = 34;

export function showEgo(target, ego, attention) {
  const width = Math.max(target.clientWidth, 280);
  const others = ego.nodes.slice(1, width < 520 ? 13 : 25);
  const count = others.length;
  const height = Math.max(110, Math.ceil(count / 2) * ROW + 24);
  const middle = { x: width / 2, y: height / 2 };
  const room = Math.min(230, width * (width < 520 ? 0.36 : 0.32)); // for labels, on either side
  const places = others.map((_, i) => {
    const right = i % 2 === 0;
    const onSide = right ? Math.ceil(count / 2) : Math.floor(count / 2);
    const y = middle.y + (Math.floor(i / 2) - (onSide - 1) / 2) * ROW;
    const bend = Math.sqrt(Math.max(0, 1 - ((y - middle.y) / (height / 2 + 8)) ** 2));
    const reach = (width / 2 - room) * (0.35 + 0.65 * bend);
    return { x: middle.x + (right ? reach : -reach), y, right };
  });
  const all = [middle, ...places];
  const weights = new Map((attention?.nodes || []).map((node, i) => [node.id, attention.average[i] ?? 0]));
  const largest = Math.max(...others.map((node) => weights.get(node.id) || 0), 1e-9);
  const isRead = (i) => i > 0 && i <= ego.num_read;

  const svg = draw("svg", { viewBox: `0 0 ${width} ${height}`, role: "group", "aria-label": "The node and its neighbours" });
  for (const [a, b] of ego.links) {
    if (a >= all.length || b >= all.length) continue;
    const line = draw("line", { x1: all[a].x, y1: all[a].y, x2: all[b].x, y2: all[b].y });
    if (a === 0) {
      line.setAttribute("class", isRead(b) ? "read" : "own");
      if (isRead(b)) line.style.setProperty("stroke-width", `${1.5 + (5 * (weights.get(ego.nodes[b].id) || 0)) / largest}px`);
      svg.append(line);
    } else svg.prepend(line);
  }
  all.forEach(({ x, y, right }, i) => {
    const node = ego.nodes[i];
    const radius = i === 0 ? 13 : 5 + Math.min(5, Math.log2(1 + node.num_neighbors) * 0.8);
    const space = (right ? width - x : x) - radius - 8;
    const label = i === 0 ? "" : cut(node.text, Math.max(4, Math.floor(space / 7.3)));
    const link = draw("a", { href: address({ node: node.id }), class: i === 0 ? "center" : isRead(i) ? "read" : "" });
    const title = draw("title");
    title.textContent = `${cut(node.text, 300)} (${node.id}), ${node.num_neighbors} neighbours`;
    link.append(title, draw("circle", { cx: x, cy: y, r: radius }));
    if (label) {
      const words = draw("text", {
        x: x + (right ? radius + 6 : -radius - 6), y: y + 4, "text-anchor": right ? "start" : "end",
      });
      words.textContent = label;
      link.append(words);
    }
    svg.append(link);
  });
  target.replaceChildren(svg);
  return count;
}
