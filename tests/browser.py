"""A real browser for tests: Debian's or anybody's Chromium, driven by playwright."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


class Visit:
    """A page, what its console complained about, and which addresses beyond this machine it asked
    for.
    """

    def __init__(self, page: Any) -> None:
        self.page = page
        self.complaints: list[str] = []
        self.strangers: list[str] = []
        page.on(
            "console",
            lambda message: (
                self.complaints.append(message.text)
                if message.type in ("error", "warning")
                else None
            ),
        )
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("request", lambda request: self._look_at(request.url))

    def _look_at(self, address: str) -> None:
        if not address.startswith(("file:", "data:", "blob:", "http://127.0.0.1")):
            self.strangers.append(address)

    def screenshot(self, name: str) -> None:
        """Keeps a picture for who wants to look: GRAPHFORMERS_SCREENSHOTS names the folder."""
        folder = os.environ.get("GRAPHFORMERS_SCREENSHOTS")
        if folder:
            self.page.screenshot(path=str(Path(folder) / f"{name}.png"), full_page=True)


@contextmanager
def visit(width: int = 1200, height: int = 900, *, dark: bool = False) -> Iterator[Visit]:
    """Opens an empty page. Without a browser the test is skipped, but not where CI=true: there it
    fails.
    """
    place = next((found for name in NAMES if (found := shutil.which(name))), None)
    if place is None:
        assert os.environ.get("CI") != "true", "no Chromium on this machine, .ci/run installs one"
        pytest.skip("no Chromium on this machine")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=place, args=["--no-sandbox"])
        context = browser.new_context(
            viewport={"width": width, "height": height},
            color_scheme="dark" if dark else "light",
            offline=False,
        )
        try:
            yield Visit(context.new_page())
        finally:
            context.close()
            browser.close()
