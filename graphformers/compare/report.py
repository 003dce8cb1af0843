"""report.html: a single page that works without a network.

It contains the data of its figures and plotly's script, from the installed package. Figures follow
the light or dark mode of the browser.
"""

import html
import json
from collections.abc import Mapping, Sequence

from graphformers.compare.conditions import TEXT_SEARCH
from graphformers.compare.figures import figures_of
from graphformers.compare.results import Results, difference, search_difference
from graphformers.errors import MissingExtraError
from graphformers.evaluation.metrics import METRICS, PRIMARY
from graphformers.evaluation.text_search import CANDIDATES, SEARCH_METRIC, SEARCH_METRICS
from graphformers.table import Table


def render_report(
    results: Results,
    title: str,
    verdict: Sequence[str],
    details: Mapping[str, object],
    tables: Sequence[Table],
) -> str:
    """Renders the whole page.

    Args:
        results: The results to show.
        title: The heading of the page.
        verdict: Sentences for the top of the page.
        details: Settings and data of the comparison, by name.
        tables: Tables to show below the figures.

    Raises:
        MissingExtraError: plotly is not installed.
    """
    try:
        from plotly.offline import get_plotlyjs
    except ImportError as error:
        raise MissingExtraError("plotly", "the report", "report") from error
    sections = [f"<h1>{html.escape(title)}</h1>"]
    if verdict:
        lines = "".join(f"<li>{html.escape(line)}</li>" for line in verdict)
        sections.append(f'<section class="verdict"><h2>Conclusions</h2><ul>{lines}</ul></section>')
    figures = figures_of(results)
    for name, figure in figures.items():
        content = f'<p>{html.escape(figure.caption)}</p><div class="figure" id="{name}"></div>'
        sections.append(_section(figure.heading, content))
    sections.append(_table_section(metrics_table(results)))
    if results.searchers:
        sections.append(_table_section(search_table(results)))
    sections += [_table_section(table) for table in tables]
    rows = [(name, str(value)) for name, value in details.items()]
    sections.append(_table_section(Table(["", ""], rows, "Settings")))
    plots = json.dumps({name: figure.plot for name, figure in figures.items()})
    return PAGE.format(
        title=html.escape(title),
        body="\n".join(sections),
        # A text must not contain the end tag of the script element.
        figures=plots.replace("<", "\\u003c"),
        plotly=get_plotlyjs(),
        style=STYLE,
    )


def metrics_table(results: Results) -> Table:
    """Every metric of every system, and the difference to the recommended one."""
    best = results.best()
    rows = []
    for each in sorted(results.systems, key=lambda each: -each.score().value):
        cells = [each.title, *(str(each.score(metric)) for metric in METRICS)]
        cells.append("" if best is None or each is best else str(difference(best, each)))
        rows.append(cells)
    last = "" if best is None else f"{PRIMARY} of {best.title} minus this"
    return Table(["", *METRICS, last], rows, "All metrics")


def search_table(results: Results) -> Table:
    """Search by words of every system, and the difference to the untrained backbone."""
    systems = sorted(results.searchers, key=lambda each: -each.mean(SEARCH_METRIC, TEXT_SEARCH))
    backbone = next((each for each in systems if each is results.backbone), None)
    rows = []
    for each in systems:
        cells = [str(each.score(metric, TEXT_SEARCH)) for metric in SEARCH_METRICS]
        if backbone is None or each is backbone:
            cells.append("")
        else:
            cells.append(str(search_difference(each, backbone)))
        rows.append([each.title, *cells])
    last = "" if backbone is None else f"{SEARCH_METRIC} minus that of {backbone.title}"
    count = len(systems[0].ranks[TEXT_SEARCH][0])
    candidates = min(results.split.graph.num_nodes, CANDIDATES)
    title = f"Search by words: {count:,} queries among {candidates:,} nodes"
    return Table(["", *SEARCH_METRICS, last], rows, title)


def _table_section(table: Table) -> str:
    return _section(table.title, f'<div class="wide">{table.to_html()}</div>')


def _section(heading: str, content: str) -> str:
    return f"<section><h2>{html.escape(heading)}</h2>{content}</section>"


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
