"""The page in a real browser: search, node, attention, map; nothing complains and nothing leaves
the machine.
"""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from graphformers.graph.interop import build_graph
from tests.browser import Visit, visit
from tests.conftest import make_graph
from tests.serve.conftest import TOKEN, Running, make_vectors, running

EVIL = "<img src=x onerror=\"document.title='obeyed'\"><b>bold</b> graph"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory):  # type: ignore[no-untyped-def]
    """A graph of 300 nodes; one text tries to be more than a text, and one id has a slash."""
    graph = make_graph(300, 1200)
    rows = graph.table.to_pylist()
    rows.append({"id": "evil/<i>", "text": EVIL, "year": 1999})
    ids = [row["id"] for row in rows]
    pairs = [(ids[a], ids[b]) for a, b in graph.pairs().tolist()] + [
        ("evil/<i>", id) for id in ids[:4]
    ]
    grown = build_graph(pa.Table.from_pylist(rows), pairs)
    with running(make_vectors(tmp_path_factory.mktemp("page"), grown)) as found:
        yield found


def test_filters_and_columns_of_what_is_found(server: Running) -> None:
    with visit(1440, 900) as seen:
        page = seen.page
        page.goto(server.address + "/#q=graph&where=" + "year in 1991, 1995,year!=1995")
        page.wait_for_selector("#results .match")
        found = set(page.locator("#results .match .own").all_inner_texts())
        assert found == {"year: 1991"}
        page.goto(server.address + "/#q=graph&where=" + "year in 1991, 1995")
        page.wait_for_selector("#results .own:text-is('year: 1995')")
        assert set(page.locator("#results .match .own").all_inner_texts()) <= {
            "year: 1991",
            "year: 1995",
        }
        assert complaints(seen) == []


def test_scores_and_texts_that_are_cut(server: Running) -> None:
    with visit(1440, 900) as seen:
        page = seen.page
        page.goto(server.address + "/#q=" + "graph text node " * 6 + "&node=evil%2F%3Ci%3E")
        page.wait_for_selector("#results .match")
        page.wait_for_selector(".attention li")
        told = "The text has 20 tokens, of which the model reads the first 12 (max_tokens)."
        assert page.locator("#truncated").inner_text() == told
        title = page.locator("#results .score").first.get_attribute("title")
        assert title == "inner product: higher is nearer"
        note = page.locator("#links-note").inner_text()
        assert note == "Likely neighbours that are not linked yet. Score: inner product."
        page.goto(server.address + "/#q=graph")
        page.wait_for_selector("#truncated", state="hidden")
        assert complaints(seen) == []


def complaints(seen: Visit) -> list[str]:
    """Without what a driver of a graphics card that is none says about its speed."""
    return [words for words in seen.complaints if "GL Driver Message" not in words]


@pytest.mark.parametrize(
    ("width", "dark"), [(1440, False), (1440, True), (390, False), (390, True)]
)
def test_search_open_a_node_see_everything(server: Running, width: int, dark: bool) -> None:
    with visit(width, 900, dark=dark) as seen:
        page, name = (
            seen.page,
            f"{'wide' if width > 400 else 'narrow'}-{'dark' if dark else 'light'}",
        )
        page.goto(server.address + "/")
        page.wait_for_selector("html[data-map=drawn]", state="attached")
        page.fill("#query", "graph layer")
        page.keyboard.press("Enter")
        page.wait_for_selector("#results .match")
        assert page.locator("#results .match").count() == 20
        assert page.locator("#results .near a").count() > 20
        seen.screenshot(f"serve-{name}-results")
        first = page.locator("#results .match").first
        id = first.locator(".id").inner_text()
        first.locator(".main").click()
        page.wait_for_selector(".attention li")
        assert page.locator("#node-facts .id").inner_text() == id
        assert page.locator("#ego svg circle").count() > 3
        assert page.locator("#similar li").count() == 8
        assert page.locator("#links li").count() == 8
        assert page.locator(".attention li").count() == 6
        page.click(".detail summary")
        page.wait_for_selector(".layers table")
        assert page.locator(".layers table").count() == 3
        assert page.locator(".layers td").count() == 3 * 3 * 6
        frame = page.frame_locator("#map")
        assert frame.locator("canvas").count() > 0
        assert page.locator("#map-note").inner_text().startswith("301 nodes")
        inner = page.evaluate("[document.documentElement.scrollWidth, window.innerWidth]")
        assert inner[0] <= inner[1], "nothing is wider than the window"
        page.locator("#map").scroll_into_view_if_needed()
        seen.screenshot(f"serve-{name}-node")
        assert complaints(seen) == []
        assert seen.strangers == []


def test_deep_links_keys_and_the_way_back(server: Running) -> None:
    with visit() as seen:
        page = seen.page
        page.goto(server.address + "/#q=graph&node=evil%2F%3Ci%3E")
        page.wait_for_selector(".attention li")
        page.wait_for_selector("#results .match")
        assert page.input_value("#query") == "graph"
        assert page.locator("#node-title").inner_text() == EVIL, "shown as it is, to the letter"
        assert page.title().startswith("<img src=x"), "and not obeyed"
        assert page.locator("#node-title b, #node img").count() == 0
        page.locator("#similar a").first.focus()
        page.keyboard.press("Enter")
        page.wait_for_selector("#node-facts .id:not(:text-is('evil/<i>'))")
        page.go_back()
        page.wait_for_selector("#node-facts .id:text-is('evil/<i>')")
        page.keyboard.press("Escape")
        page.wait_for_selector("#node", state="hidden")
        page.keyboard.press("/")
        assert page.evaluate("document.activeElement.id") == "query"
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.textContent") == "Search"
        page.goto(server.address + "/#node=nobody")
        page.wait_for_selector("#notice.bad")
        assert "no node with the id 'nobody'" in page.locator("#notice").inner_text()
        # a browser counts a 404 as an error
        told = [words for words in complaints(seen) if "404" not in words]
        assert told == []
        assert seen.strangers == []


# What was asked for and is no longer wanted breaks off in the middle of its answer, or comes
# anyway: {kind} says which.
SLOW_ANSWER = """
const real = window.fetch;
window.fetch = async (path, options) => {
  const answer = await real(path, options);
  if (!/^.nodes.(?!evil).*attention$/.test(path)) return answer;
  const content = await answer.text();
  document.documentElement.dataset.held = "yes";
  return new Response(new ReadableStream({ start(answer) {
    options.signal.addEventListener("abort", () => {
      const given = () => { document.documentElement.dataset.held = "given"; };
      if ("{kind}" === "breaks off") {
        answer.error(new DOMException("given up", "AbortError"));
        setTimeout(given);
      } else setTimeout(() => {
        answer.enqueue(new TextEncoder().encode(content));
        answer.close();
        setTimeout(given);
      }, 1000);
    });
  } }));
};
"""


@pytest.mark.parametrize("kind", ["breaks off", "comes anyway"])
def test_going_back_before_a_node_has_come(server: Running, kind: str) -> None:
    with visit() as seen:
        page = seen.page
        page.add_init_script(SLOW_ANSWER.replace("{kind}", kind))
        page.goto(server.address + "/#node=evil%2F%3Ci%3E")
        page.wait_for_selector(".attention li")
        before = page.locator("#similar").inner_text()
        page.locator("#similar a").first.click()
        page.wait_for_selector("html[data-held=yes]", state="attached")
        page.go_back()
        page.wait_for_selector("#node-facts .id:text-is('evil/<i>')")
        page.wait_for_selector("html[data-held=given]", state="attached")
        page.wait_for_selector("#node:not(.busy)")
        assert page.locator("#similar").inner_text() == before
        assert page.locator("#notice").is_hidden()
        page.keyboard.press("Escape")
        page.wait_for_selector("#node", state="hidden")
        assert complaints(seen) == []


def test_a_node_that_does_not_come_leaves_nothing_behind(server: Running) -> None:
    with visit() as seen:
        page = seen.page
        page.route("**/attention", lambda route: route.abort())
        page.goto(server.address + "/#q=graph")
        page.wait_for_selector("#results .match")
        page.locator("#results .match .main").first.click()
        page.wait_for_selector("#notice.bad")
        assert page.locator("#notice").inner_text() == "The server cannot be reached."
        assert page.locator("#node").is_hidden()
        page.keyboard.press("Escape")
        page.wait_for_selector("#results .match.open", state="detached")
        page.unroute("**/attention")
        page.locator("#results .match .main").first.click()
        page.wait_for_selector(".attention li")
        assert page.locator("#notice").is_hidden()


def test_a_point_of_the_map_can_be_picked(server: Running) -> None:
    with visit() as seen:
        page = seen.page
        page.goto(server.address + "/#node=" + "evil%2F%3Ci%3E")
        page.wait_for_selector(".attention li")
        page.wait_for_selector("html[data-map=drawn]", state="attached")
        frame = next(frame for frame in page.frames if frame.url.endswith("map.html"))
        page.wait_for_timeout(300)
        place = frame.evaluate(
            """() => { // the loneliest point: near others, the pointer could as well mean those
            const plot = document.getElementById("plot");
            const layout = plot._fullLayout, data = plot.data[0];
            const pixel = (x, i) => [layout.xaxis.l2p(x), layout.yaxis.l2p(data.y[i])];
            const points = Array.from(data.x, pixel);
            const apart = (a, b) => a === b ? 1e9 : Math.hypot(a[0] - b[0], a[1] - b[1]);
            const space = points.map((a) => Math.min(...points.map((b) => apart(a, b))));
            const best = space.indexOf(Math.max(...space));
            return [...points[best], data.customdata[best][0], data.customdata[best][1]]; }"""
        )
        page.locator("#map").scroll_into_view_if_needed()
        box = page.locator("#map").bounding_box()
        assert box is not None
        page.mouse.move(box["x"] + place[0] - 30, box["y"] + place[1] - 30)
        page.mouse.move(box["x"] + place[0], box["y"] + place[1], steps=5)
        frame.wait_for_selector("#tip", state="visible")
        assert place[3] in frame.locator("#tip").inner_text()
        page.mouse.click(box["x"] + place[0], box["y"] + place[1])
        page.wait_for_selector(f"#node-facts .id:text-is('{place[2]}')")
        assert frame.evaluate("window.origin") == "null", "the frame is shut in"
        assert complaints(seen) == []


def test_a_server_with_a_token_asks_for_it(tmp_path: Path) -> None:
    place = make_vectors(tmp_path)
    with running(place, environment={"GRAPHFORMERS_READ_TOKEN": TOKEN}) as server, visit() as seen:
        page = seen.page
        page.goto(server.address + "/")
        page.wait_for_selector("#token-form")
        page.fill("#token", TOKEN)
        page.click("#token-form button")
        page.wait_for_selector("#token-form", state="hidden")
        page.fill("#query", "graph")
        page.keyboard.press("Enter")
        page.wait_for_selector("#results .match")
        assert np.isfinite(float(page.locator(".score").first.inner_text()))
        assert [words for words in complaints(seen) if "401" not in words] == []
