// Inside the frame: draws points with plotly and says which one was picked. Texts are shown by our own tip, as text.
(() => {
  "use strict";
  const plot = document.getElementById("plot");
  const tip = document.getElementById("tip");
  const state = { points: null, results: [], node: [], colors: {}, low: 0, high: 1 };
  const tell = (message) => window.parent.postMessage(message, "*");
  let isDrawn = false;

  function hasWebGL() {
    try {
      return Boolean(document.createElement("canvas").getContext("webgl"));
    } catch {
      return false;
    }
  }
  const kind = hasWebGL() ? "scattergl" : "scatter";

  function trace(entries, marker) {
    return {
      type: kind, mode: "markers", hoverinfo: "none", x: entries.map((entry) => entry.place[0]), y: entries.map((entry) => entry.place[1]),
      customdata: entries.map((entry) => [entry.id, entry.text]), marker,
    };
  }

  function traces() {
    const { points, colors } = state;
    const step = kind === "scatter" ? Math.ceil(points.ids.length / 3000) : 1; // without WebGL a few thousand are what can be moved
    const chosen = (values) => (step === 1 ? values : values.filter((_, i) => i % step === 0));
    const count = points.ids.length;
    const size = count > 20000 ? 3 : count > 4000 ? 4 : count > 800 ? 5.5 : 8;
    const dimmed = state.results.length || state.node.length;
    const all = {
      type: kind, mode: "markers", hoverinfo: "none", x: chosen(points.x), y: chosen(points.y),
      customdata: chosen(points.ids.map((id, i) => [id, points.texts[i]])),
      marker: {
        size, color: chosen(points.z), cmin: state.low, cmax: state.high, opacity: dimmed ? 0.38 : 0.7, line: { width: 0 },
        colorscale: [[0, "#2f9e8f"], [0.5, "#7c78d8"], [1, "#d0719b"]],
      },
    };
    return [
      all,
      trace(state.results, { size: 11, color: colors.accent, line: { width: 1.5, color: colors.paper } }),
      trace(state.node, { size: 17, color: colors.warm, line: { width: 2.5, color: colors.paper } }),
    ];
  }

  function render() {
    if (!state.points || !window.Plotly || !state.colors.accent) return;
    const axis = { visible: false, fixedrange: false };
    const layout = {
      margin: { l: 0, r: 0, t: 0, b: 0 }, showlegend: false, dragmode: "pan", hovermode: "closest", hoverdistance: 18,
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", xaxis: axis, yaxis: axis, uirevision: "same", autosize: true,
    };
    window.Plotly.react(plot, traces(), layout, { displayModeBar: false, scrollZoom: true, responsive: true, doubleClick: "reset" }).then(() => {
      if (!isDrawn) {
        isDrawn = true;
        plot.on("plotly_hover", hover);
        plot.on("plotly_unhover", () => { tip.hidden = true; });
        plot.on("plotly_click", (event) => tell({ kind: "pick", id: event.points[0].customdata[0] }));
      }
      tell({ kind: "drawn" });
    });
  }

  function hover(event) {
    const [id, text] = event.points[0].customdata;
    const name = document.createElement("small");
    name.textContent = id;
    tip.replaceChildren(text, name);
    tip.hidden = false;
    const x = event.event.clientX, y = event.event.clientY;
    tip.style.left = `${Math.min(x + 14, Math.max(8, window.innerWidth - tip.offsetWidth - 8))}px`;
    tip.style.top = `${y + 18 + tip.offsetHeight > window.innerHeight ? y - tip.offsetHeight - 12 : y + 18}px`;
  }

  window.addEventListener("message", (event) => {
    if (event.source !== window.parent) return;
    const { kind: what, content } = event.data || {};
    if (what === "hello") tell({ kind: "ready" });
    else if (["points", "results", "node", "colors"].includes(what)) {
      state[what] = content;
      if (what === "points") {
        const sorted = Float32Array.from(content.z).sort(); // a few far ones must not take all the colours
        [state.low, state.high] = [0.03, 0.97].map((share) => sorted[Math.floor(share * (sorted.length - 1))] ?? 0);
      }
      if (what === "colors") for (const [name, value] of Object.entries(content)) document.documentElement.style.setProperty(`--${name}`, value);
      render();
    }
  });
  tell({ kind: "ready" });
})();
