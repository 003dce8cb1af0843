"""The figures of a report, as dictionaries for plotly's script.

Texts of users are escaped, because plotly interprets some HTML tags.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

from graphformers.compare.conditions import (
    NO_NEIGHBORS,
    OWN_NEIGHBORS,
    SHUFFLED_NEIGHBORS,
    TEXT_SEARCH,
)
from graphformers.compare.results import Results, System
from graphformers.evaluation.metrics import PRIMARY
from graphformers.evaluation.significance import Score
from graphformers.evaluation.text_search import SEARCH_METRIC

# a figure in plotly's format: traces under "data", axes under "layout"
Plot = Mapping[str, object]

# Paul Tol's palette, whose colours colour-blind readers can distinguish
COLORS = ("#4477aa", "#cc6677", "#228833", "#ccbb44", "#66ccee", "#aa3377", "#999999", "#332288")
CONDITION_TITLES = {
    OWN_NEIGHBORS: "their own neighbours",
    SHUFFLED_NEIGHBORS: "neighbours of other nodes",
    NO_NEIGHBORS: "no neighbours",
}


@dataclass(frozen=True)
class Figure:
    """A plot with a heading and a sentence of explanation."""

    heading: str
    caption: str
    plot: Plot


def figures_of(results: Results) -> dict[str, Figure]:
    """The figures of a report, by their ids in the page.

    Figures without data are left out: links and search without queries, conditions without a method
    that reads neighbours, training curves without validations, costs measured on different devices,
    groups with a single slice.
    """
    test = results.split.test
    found = {
        "overall": Figure(
            f"{PRIMARY} of all methods",
            f"{PRIMARY} on {len(test):,} held-out links, each among {test.candidates.shape[1]} "
            f"candidates. Lines are 95 % intervals over the questions, dots are seeds.",
            overall_plot(results),
        )
    }
    if any(each.can_search for each in results.systems):
        found["axes"] = Figure(
            "Links and search by words",
            f"{PRIMARY} of link prediction, and {SEARCH_METRIC} of search by words: finding a node "
            f"by half of the words of its text. Lines are 95 % intervals, crosses are systems "
            f"without training. Systems above the untrained backbone gained at search by words, "
            f"those to the right of it at links. The dotted line is a system that cannot predict "
            f"links.",
            axes_plot(results),
        )
    readers = [each for each in results.trained if {OWN_NEIGHBORS, NO_NEIGHBORS} <= set(each.ranks)]
    if readers:
        found["conditions"] = Figure(
            "Effect of the neighbours",
            "The same trained models, given the neighbours of other nodes, or none. The decrease "
            "measures the contribution of the neighbours.",
            condition_plot(readers),
        )
    if any(len(run.facts["history"]) > 1 for each in results.trained for run in each.runs):
        found["curves"] = Figure(
            "Training",
            f"{PRIMARY} on the valid questions, always on clean text. Training in two stages "
            f"starts on masked text.",
            curve_plot(results),
        )
    if results.trained and results.is_one_device:
        found["cost"] = Figure(
            "Cost",
            f"{PRIMARY} and nodes encoded per second on this machine.",
            cost_plot(results),
        )
    for number, (group, names) in enumerate(results.slices.items()):
        if len(names) > 1:
            found[f"slice{number}"] = Figure(
                f"By {group}",
                f"{PRIMARY}, with the number of questions in brackets.",
                slice_plot(results, group),
            )
    return found


def overall_plot(results: Results) -> Plot:
    """A bar for each system, the best one at the top, and a dot for each seed."""
    systems = sorted(results.systems, key=lambda each: each.score().value)
    scores = [each.score() for each in systems]
    # The number stands beside the name; in the bar, the line of the interval would cross it.
    names = [
        f"{escape(each.title)}  <b>{score.value:.3f}</b>"
        for each, score in zip(systems, scores, strict=True)
    ]
    bars = {
        "type": "bar",
        "orientation": "h",
        "y": names,
        "x": [score.value for score in scores],
        "marker": {"color": [COLORS[0] if each.runs else COLORS[6] for each in systems]},
        "error_x": _intervals(scores),
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
        "xaxis": {"title": {"text": PRIMARY}},
        "yaxis": {"automargin": True},
        "height": 60 + 34 * len(systems),
    }
    return {"data": [bars, dots], "layout": layout}


def axes_plot(results: Results) -> Plot:
    """A point for each system with both scores, a horizontal line for one that only searches."""
    shown = [each for each in results.systems if each.can_search]
    data = []
    for number, each in enumerate(shown):
        links, search = each.score(), each.score(SEARCH_METRIC, TEXT_SEARCH)
        data.append(
            {
                "type": "scatter",
                "mode": "markers",
                "name": escape(each.title),
                "x": [links.value],
                "y": [search.value],
                "error_x": _intervals([links]),
                "error_y": _intervals([search]),
                "marker": {
                    "size": 12,
                    "color": COLORS[number % len(COLORS)],
                    "symbol": "circle" if each.runs else "x",
                },
                "hovertemplate": (
                    f"{PRIMARY} of links %{{x:.4f}}, {SEARCH_METRIC} of search %{{y:.4f}}"
                ),
            }
        )
    lines = [
        {
            "type": "line",
            "xref": "paper",
            "x0": 0,
            "x1": 1,
            "y0": each.mean(SEARCH_METRIC, TEXT_SEARCH),
            "y1": each.mean(SEARCH_METRIC, TEXT_SEARCH),
            "line": {"dash": "dot", "color": COLORS[6]},
            "label": {"text": escape(each.title), "textposition": "end"},
        }
        for each in results.search_only
    ]
    layout = {
        "xaxis": {"title": {"text": f"{PRIMARY} of link prediction"}},
        "yaxis": {"title": {"text": f"{SEARCH_METRIC} of search by words"}},
        "shapes": lines,
        "height": 480,
    }
    return {"data": data, "layout": layout}


def condition_plot(systems: Sequence[System]) -> Plot:
    """A group of bars for each system, a bar for each condition."""
    data = []
    for color, (condition, title) in zip(COLORS, CONDITION_TITLES.items(), strict=False):
        shown = [each for each in systems if condition in each.ranks]
        scores = [each.score(condition=condition) for each in shown]
        data.append(
            {
                "type": "bar",
                "name": title,
                "x": [escape(each.title) for each in shown],
                "y": [score.value for score in scores],
                "marker": {"color": color},
                "error_y": _intervals(scores),
                "hovertemplate": f"%{{x}}, {title}: %{{y:.4f}}<extra></extra>",
            }
        )
    layout = {
        "barmode": "group",
        "yaxis": {"title": {"text": PRIMARY}, "rangemode": "tozero"},
        "xaxis": {"automargin": True},
    }
    return {"data": data, "layout": layout}


def curve_plot(results: Results) -> Plot:
    """A line for each run; the seeds of a method share a colour and a legend entry."""
    data = []
    for number, system in enumerate(results.trained):
        line = {
            "color": COLORS[number % len(COLORS)],
            "dash": "dot" if number >= len(COLORS) else "solid",
        }
        for i, run in enumerate(system.runs):
            history = run.facts["history"]
            data.append(
                {
                    "type": "scatter",
                    "mode": "lines+markers",
                    "name": escape(system.title),
                    "legendgroup": system.title,
                    "showlegend": i == 0,
                    "x": [entry["step"] for entry in history],
                    "y": [entry[PRIMARY] for entry in history],
                    "line": line,
                    "hovertemplate": f"seed {run.seed}, step %{{x}}: %{{y:.4f}}<extra></extra>",
                }
            )
    layout = {
        "xaxis": {"title": {"text": "steps"}},
        "yaxis": {"title": {"text": f"valid {PRIMARY}"}},
    }
    return {"data": data, "layout": layout}


def cost_plot(results: Results) -> Plot:
    """A point for each trained system."""
    data = [
        {
            "type": "scatter",
            "mode": "markers",
            "name": escape(each.title),
            "x": [each.nodes_per_second],
            "y": [each.score().value],
            "marker": {
                "size": 12,
                "color": COLORS[number % len(COLORS)],
                "symbol": "circle" if number < len(COLORS) else "diamond",
            },
            "hovertemplate": f"%{{y:.4f}}, %{{x:,.0f}} nodes/s, trained in {each.seconds:,.0f} s",
        }
        for number, each in enumerate(results.trained)
    ]
    layout = {
        "xaxis": {"title": {"text": "nodes/s"}, "rangemode": "tozero"},
        "yaxis": {"title": {"text": PRIMARY}},
    }
    return {"data": data, "layout": layout}


def slice_plot(results: Results, group: str) -> Plot:
    """The slices of a group, for a few systems.

    These are the best variant that uses neighbours, GraphFormers, PLM+Max, the best variant of PLM,
    and the best system without training.
    """
    baseline = max(results.untrained, key=lambda each: each.score().value, default=None)
    chosen = [
        results.best_reader(),
        results.find("graphformers"),
        results.find("max"),
        results.text_only(),
        baseline,
    ]
    systems = list({id(each): each for each in chosen if each is not None}.values())
    slices = results.slices[group]
    data = []
    for color, system in zip(COLORS, systems, strict=False):
        values = system.values()
        data.append(
            {
                "type": "bar",
                "name": escape(system.title),
                "x": [f"{escape(name)} ({int(mask.sum()):,})" for name, mask in slices.items()],
                "y": [float(values[mask].mean()) for mask in slices.values()],
                "marker": {"color": color},
                "hovertemplate": f"%{{x}}: %{{y:.4f}}<extra>{escape(system.title)}</extra>",
            }
        )
    layout = {
        "barmode": "group",
        "yaxis": {"title": {"text": PRIMARY}},
        "xaxis": {"automargin": True},
    }
    return {"data": data, "layout": layout}


def _intervals(scores: Sequence[Score]) -> Plot:
    """Scores as plotly's error bars."""
    return {
        "type": "data",
        "symmetric": False,
        "array": [score.high - score.value for score in scores],
        "arrayminus": [score.value - score.low for score in scores],
    }
