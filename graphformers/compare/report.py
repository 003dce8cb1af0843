"""report.html: one file that opens anywhere, without a network; plotly's script comes from the
installed package.

Figures are plain dictionaries as plotly's script takes them, drawn in the colours of the reader's
light or dark page.
"""

import html
import json
from collections.abc import Sequence
from typing import Any

from graphformers.compare.results import Results, System, ahead
from graphformers.compare.runs import ALONE, ASKED, SHUFFLED
from graphformers.compare.tables import Table
from graphformers.errors import GraphFormersError
from graphformers.evaluation.metrics import METRICS

Figure = dict[str, Any]
COLORS = ("#4477aa", "#cc6677", "#228833", "#ccbb44", "#66ccee", "#aa3377", "#999999", "#332288")
CONDITION_TITLES = {
    ASKED: "their own neighbours",
    SHUFFLED: "neighbours of other nodes",
    ALONE: "no neighbours",
}


def render_report(
    results: Results, title: str, details: dict[str, Any], tables: Sequence[Table]
) -> str:
    """The whole page. `details` say what was compared how."""
    figures = all_figures(results)
    sections = [f"<h1>{html.escape(title)}</h1>", _verdict(results)]
    for name, (heading, words, _) in figures.items():
        sections.append(
            f"<section><h2>{heading}</h2><p>{words}</p><div "
            f'class="figure" id="{name}"></div></section>'
        )
    sections.append(f"<section><h2>Every number</h2>{_system_table(results)}</section>")
    for table in tables:
        sections.append(
            f"<section><h2>{html.escape(table.title)}</h2>{_html_table(table)}</section>"
        )
    sections.append(f"<section><h2>How</h2>{_rows(details)}</section>")
    drawn = json.dumps({name: figure for name, (_, _, figure) in figures.items()}).replace(
        "<", "\\u003c"
    )
    return PAGE.format(
        title=html.escape(title),
        body="\n".join(sections),
        figures=drawn,
        plotly=_plotly_script(),
        style=STYLE,
    )


def _plotly_script() -> str:
    try:
        from plotly.offline import get_plotlyjs
    except ImportError as error:
        raise GraphFormersError(
            "the report needs plotly: pip install 'graphformers[report]'"
        ) from error
    return str(get_plotlyjs())


def all_figures(results: Results) -> dict[str, tuple[str, str, Figure]]:
    """name -> heading, a sentence, figure."""
    candidates, asked = results.split.test.candidates.shape[1], len(results.split.test)
    found = {
        "overall": (
            "Who finds the link",
            f"P@1 on {asked:,} held-out links, each among {candidates} candidates; lines are 95 % "
            f"intervals over the questions, "
            "dots are seeds.",
            overall_figure(results),
        )
    }
    readers = [each for each in results.trained if {ASKED, ALONE} <= set(each.ranks)]
    if readers:
        words = (
            "The same trained models, shown other neighbours than their own, or "
            "none: what is lost came from the neighbours."
        )
        found["conditions"] = ("Is it the neighbours?", words, condition_figure(readers))
    if any(len(run.facts["history"]) > 1 for each in results.trained for run in each.runs):
        words = (
            "P@1 on the valid questions, always on clean text; "
            "two-stage runs begin on polluted text."
        )
        found["curves"] = ("Training", words, curve_figure(results))
    if results.trained and results.is_one_device:
        found["cost"] = (
            "What it costs",
            "P@1 against the nodes that are read in a second, on this machine.",
            cost_figure(results),
        )
    for number, (group, names) in enumerate(results.slices.items()):
        if len(names) > 1:
            heading = f"By {html.escape(group)}"
            found[f"slice{number}"] = (
                heading,
                "P@1; in brackets the number of questions.",
                slice_figure(results, group),
            )
    return found


def _verdict(results: Results) -> str:
    lines = "".join(f"<li>{html.escape(line)}</li>" for line in results.words)
    return f'<section class="verdict"><h2>In words</h2><ul>{lines}</ul></section>' if lines else ""


def _label(text: str) -> str:
    """Text for plotly, which obeys some tags."""
    return html.escape(text)


def overall_figure(results: Results) -> Figure:
    """Bars, the best at the top."""
    systems = sorted((*results.trained, *results.untrained), key=lambda each: each.score().value)
    scores = [each.score() for each in systems]
    # the number stands beside the name: in the bar, the line of the interval would go through it
    names = [
        f"{_label(each.title)}  <b>{score.value:.3f}</b>"
        for each, score in zip(systems, scores, strict=True)
    ]
    bars = {
        "type": "bar",
        "orientation": "h",
        "y": names,
        "x": [score.value for score in scores],
        "marker": {"color": [COLORS[0] if each.runs else COLORS[6] for each in systems]},
        "error_x": {
            "type": "data",
            "symmetric": False,
            "array": [score.high - score.value for score in scores],
            "arrayminus": [score.value - score.low for score in scores],
        },
        "hovertemplate": "%{y}: %{x:.4f}<extra></extra>",
        "showlegend": False,
    }
    dots = {
        "type": "scatter",
        "mode": "markers",
        "marker": {"color": COLORS[3], "size": 6},
        "y": [name for name, each in zip(names, systems, strict=True) for _ in each.runs],
        "x": [value for each in systems if each.runs for value in each.by_seed()],
        "text": [f"seed {run.seed}" for each in systems for run in each.runs],
        "hovertemplate": "%{text}: %{x:.4f}<extra></extra>",
        "showlegend": False,
    }
    layout = {
        "xaxis": {"title": {"text": "P@1"}},
        "yaxis": {"automargin": True},
        "height": 60 + 34 * len(systems),
    }
    return {"data": [bars, dots], "layout": layout}


def condition_figure(readers: Sequence[System]) -> Figure:
    data = []
    for color, (condition, title) in zip(COLORS, CONDITION_TITLES.items(), strict=False):
        own = [each for each in readers if condition in each.ranks]
        data.append(_bars(title, [_label(each.title) for each in own], own, condition, color))
    axes = {
        "yaxis": {"title": {"text": "P@1"}, "rangemode": "tozero"},
        "xaxis": {"automargin": True},
    }
    return {"data": data, "layout": {"barmode": "group", **axes}}


def _bars(
    title: str, names: Sequence[str], systems: Sequence[System], condition: str, color: str
) -> Figure:
    scores = [each.score(condition=condition) for each in systems]
    return {
        "type": "bar",
        "name": title,
        "x": list(names),
        "y": [score.value for score in scores],
        "marker": {"color": color},
        "error_y": {
            "type": "data",
            "symmetric": False,
            "array": [score.high - score.value for score in scores],
            "arrayminus": [score.value - score.low for score in scores],
        },
        "hovertemplate": "%{x}, " + title + ": %{y:.4f}<extra></extra>",
    }


def curve_figure(results: Results) -> Figure:
    data = []
    for number, system in enumerate(results.trained):
        for place, run in enumerate(system.runs):
            history = run.facts["history"]
            data.append(
                {
                    "type": "scatter",
                    "mode": "lines+markers",
                    "name": _label(system.title),
                    "legendgroup": system.title,
                    "showlegend": place == 0,
                    "x": [entry["step"] for entry in history],
                    "y": [entry["P@1"] for entry in history],
                    "line": {
                        "color": COLORS[number % len(COLORS)],
                        "dash": "dot" if number >= len(COLORS) else "solid",
                    },
                    "hovertemplate": f"seed {run.seed}, step %{{x}}: %{{y:.4f}}<extra></extra>",
                }
            )
    return {
        "data": data,
        "layout": {
            "xaxis": {"title": {"text": "steps"}},
            "yaxis": {"title": {"text": "valid P@1"}},
        },
    }


def cost_figure(results: Results) -> Figure:
    data = []
    for number, each in enumerate(results.trained):
        speed, score, taken = each.nodes_per_second, each.score().value, each.mean_fact("seconds")
        data.append(
            {
                "type": "scatter",
                "mode": "markers",
                "name": _label(each.title),
                "x": [speed],
                "y": [score],
                "marker": {
                    "size": 12,
                    "color": COLORS[number % len(COLORS)],
                    "symbol": "circle" if number < 8 else "diamond",
                },
                "hovertemplate": f"%{{y:.4f}}, %{{x:,.0f}} nodes/s, trained in {taken:,.0f} s",
            }
        )
    axes = {
        "xaxis": {"title": {"text": "nodes/s"}, "rangemode": "tozero"},
        "yaxis": {"title": {"text": "P@1"}},
    }
    return {"data": data, "layout": axes}


def slice_figure(results: Results, group: str) -> Figure:
    """The systems a reader wants to see side by side: the best, GraphFormers, text alone, and the
    best without training.
    """
    simple = max(results.untrained, key=lambda each: each.score().value, default=None)
    chosen = [
        results.best_reader(),
        results.find("graphformers"),
        results.find("max"),
        results.text_only(),
        simple,
    ]
    systems = list({id(each): each for each in chosen if each is not None}.values())
    data = []
    for color, system in zip(COLORS, systems, strict=False):
        values = system.values()
        names = [
            f"{_label(name)} ({int(mark.sum()):,})" for name, mark in results.slices[group].items()
        ]
        height = [float(values[mark].mean()) for mark in results.slices[group].values()]
        entry = {
            "type": "bar",
            "name": _label(system.title),
            "x": names,
            "y": height,
            "marker": {"color": color},
        }
        data.append(
            entry
            | {"hovertemplate": "%{x}: %{y:.4f}<extra>" + html.escape(system.title) + "</extra>"}
        )
    return {
        "data": data,
        "layout": {
            "barmode": "group",
            "yaxis": {"title": {"text": "P@1"}},
            "xaxis": {"automargin": True},
        },
    }


def _system_table(results: Results) -> str:
    best = results.best()
    rows = []
    for each in sorted(
        (*results.trained, *results.untrained), key=lambda each: -each.score().value
    ):
        cells = [each.title, *(f"{each.score(metric)}" for metric in METRICS)]
        cells.append("" if best is None or each is best else str(ahead(best, each)))
        rows.append(cells)
    behind = f"P@1 that {best.title} is ahead" if best is not None else ""
    return _html_table(Table("", ["", *METRICS, behind], rows))


def _html_table(table: Table) -> str:
    def cell(text: str, is_bold: bool) -> str:
        return (
            f"<td><b>{html.escape(text)}</b></td>" if is_bold else f"<td>{html.escape(text)}</td>"
        )

    head = "".join(f"<th>{html.escape(text)}</th>" for text in table.header)
    rows = [
        "".join(cell(text, (i, k) in table.bold) for k, text in enumerate(row))
        for i, row in enumerate(table.rows)
    ]
    body = "".join(f"<tr>{row}</tr>" for row in rows)
    return (
        f"<div "
        f'class="wide"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'
    )


def _rows(details: dict[str, Any]) -> str:
    return _html_table(Table("", ["", ""], [[name, str(value)] for name, value in details.items()]))


STYLE = """
:root { color-scheme: light dark; --line: #8884; --soft: #8881; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
body { color: #222; background: #fff; }
@media (prefers-color-scheme: dark) { body { color: #ddd; background: #16181c; } }
h1 { font-size: 1.6rem; } h2 { font-size: 1.2rem; margin-top: 2.5rem; }
.verdict { border-left: 4px solid #4477aa; background: var(--soft); padding: .2rem 1rem; }
.verdict h2 { margin-top: .6rem; } .verdict li { margin: .4rem 0; }
.figure { min-height: 20rem; } .wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: .85rem; }
th, td { text-align: left; padding: .25rem .7rem .25rem 0; }
td { border-top: 1px solid var(--line); font-variant-numeric: tabular-nums; white-space: nowrap; }
"""

PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title><link rel="icon" href="data:,"><style>{style}</style></head><body>
{body}
<script>{plotly}</script>
<script type="application/json" id="figures">{figures}</script>
<script>
const figures = JSON.parse(document.getElementById("figures").textContent);
function draw() {{
  const look = getComputedStyle(document.body);
  const grid = {{gridcolor: "#8884", zerolinecolor: "#8888"}};
  const common = {{
    paper_bgcolor: "transparent", plot_bgcolor: "transparent",
    font: {{color: look.color, family: look.fontFamily}},
    margin: {{t: 20, r: 20}},
    legend: {{orientation: "h", yanchor: "bottom", y: 1.02, x: 0}}, autosize: true,
    template: {{layout: {{xaxis: grid, yaxis: grid}}}},
  }};
  for (const [id, figure] of Object.entries(figures)) {{
    const layout = {{...common, ...figure.layout}};
    Plotly.react(id, figure.data, layout, {{responsive: true, displayModeBar: false}});
  }}
}}
draw();
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
document.body.dataset.drawn = "yes";
</script></body></html>
"""
