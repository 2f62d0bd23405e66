"""The site that `make docs` built: no link is dead, and in a browser each page is whole, on a phone too."""

from __future__ import annotations

import shutil
import threading
from functools import cache, partial
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from importlib import import_module
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

import gpufold
from gpufold.extras import SUBMODULES

ROOT = Path(__file__).resolve().parent.parent
SITE = ROOT / "docs" / "_build" / "html"
PAGES = sorted(path.relative_to(SITE).as_posix() for path in SITE.rglob("*.html") if "_static" not in path.parts)
DOCUMENTS = [page for page in PAGES if not page.startswith("_modules")]
"""Pages that are no listings of source code."""

WIDE, PHONE = (1280, 900), (390, 844)
"""Of a window, in CSS pixels."""

pytestmark = pytest.mark.site


class Page(HTMLParser):
    """What a page links to, and the anchors that it has."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.targets: set[str] = set()
        self.anchors: set[str] = set()
        self.feed((SITE / page).read_text())

    def handle_starttag(self, tag, attributes):
        given = dict(attributes)
        self.anchors |= {given[key] for key in ("id", "name") if given.get(key)}
        self.targets |= {given[key] for key in ("href", "src") if given.get(key)}


page_of = cache(Page)


def test_every_public_function_and_class_has_a_page():
    for module in (gpufold, *(import_module(f"gpufold.{name}") for name in SUBMODULES)):
        for name in module.__all__:
            assert f"api/generated/{module.__name__}.{name}.html" in PAGES


def test_every_link_within_the_site_leads_somewhere():
    dead = []
    for page in PAGES:
        for target in page_of(page).targets:
            parts = urlsplit(target)
            if parts.scheme or parts.netloc or target == "#":
                continue
            to = ((SITE / page).parent / unquote(parts.path)).resolve() if parts.path else SITE / page
            anchored = to.is_file() and parts.fragment and to.suffix == ".html"
            if not to.is_file() or (anchored and parts.fragment not in page_of(str(to.relative_to(SITE))).anchors):
                dead.append(f"{page}: {target}")
    assert not dead, "\n".join(dead)


# ---- in a browser


@pytest.fixture(scope="module")
def address():
    handler = partial(SimpleHTTPRequestHandler, directory=str(SITE))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium")
    for option in (
        "headless=new",
        "no-sandbox",
        "disable-gpu",
        "disable-background-networking",
        "disable-component-update",
        "disable-sync",
        "no-first-run",
        f"user-data-dir={tmp_path_factory.mktemp('browser')}",
    ):
        options.add_argument(f"--{option}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    service = webdriver.ChromeService(shutil.which("chromedriver"))
    with webdriver.Chrome(options, service) as driver:
        driver.set_page_load_timeout(60)
        yield driver


def opened(browser, size, address):
    """Open a page in a window of a size, once its pictures are there."""
    browser.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": size[0], "height": size[1], "deviceScaleFactor": 1, "mobile": size is PHONE},
    )
    browser.get_log("browser")
    browser.get(address)
    browser.execute_async_script(
        "const done = arguments[0];"
        "for (const image of document.images) image.loading = 'eager';"
        "Promise.allSettled([...document.images].map(image => image.decode())).then(done);"
    )


def test_every_page_is_whole_and_as_wide_as_a_phone(browser, address):
    """Without an error, and with all of its pictures."""
    wrong, missing = [], "return [...document.images].filter(image => !image.naturalWidth).map(image => image.src)"
    for page in DOCUMENTS:
        opened(browser, WIDE, f"{address}/{page}")
        wrong += [f"{page}: {entry['message']}" for entry in browser.get_log("browser") if entry["level"] == "SEVERE"]
        wrong += [f"{page}: {source} is missing" for source in browser.execute_script(missing)]
        opened(browser, PHONE, f"{address}/{page}")
        width = browser.execute_script("return document.documentElement.scrollWidth")
        wrong += [f"{page} is {width} pixels wide"] if width > PHONE[0] else []
    assert not wrong, "\n".join(wrong)


def test_the_search_finds_a_function(browser, address):
    from selenium.webdriver.common.by import By
    from selenium.webdriver.support.wait import WebDriverWait

    opened(browser, WIDE, f"{address}/search.html?q=col2im")
    found = WebDriverWait(browser, 30).until(
        lambda driver: driver.find_elements(By.CSS_SELECTOR, "#search-results a[href*='gpufold.col2im.html']")
    )
    assert found
