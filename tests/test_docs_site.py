"""The documentation site: built as `make docs` builds it, warnings being errors. Its links lead
somewhere, it loads nothing from elsewhere, and what it says of the package is all there."""

from __future__ import annotations

import functools
import json
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

import mithridate as mi
from mithridate import capabilities
from mithridate.model.weights import ZOO, zoo_names
from mithridate.stress.leaderboard import read_entries

pytest.importorskip("sphinx", reason="needs the extra mithridate[docs]")
ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
LOADED = {
    "script": ("src",), "img": ("src", "srcset"), "iframe": ("src",), "source": ("src", "srcset"),
    "video": ("src", "poster"), "audio": ("src",), "embed": ("src",), "object": ("data",),
    "link": ("href",), "image": ("href",), "use": ("href",), "input": ("src",),
}  # fmt: skip
"""What a browser fetches by itself."""


class Page(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.ids: set[str] = set()
        self.words: list[str] = []
        self._in_style = False
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        found = {name: value for name, value in attributes if value is not None}
        self.ids |= {found[name] for name in ("id", "name") if name in found}
        if tag == "a" and "href" in found:
            self.links.append(found["href"])
        self.loaded += [found[name] for name in LOADED.get(tag, ()) if name in found]
        self.loaded += in_css(found.get("style", ""))
        self._in_style = tag == "style"

    def handle_data(self, data):
        self.words.append(data)
        if self._in_style:
            self.loaded += in_css(data)


def in_css(text: str) -> list[str]:
    imports = re.findall(r"@import\s+['\"]([^'\"]+)", text)
    return imports + re.findall(r"url\(\s*['\"]?([^'\")]+)", text)


@functools.cache
def read(path: Path) -> Page:
    return Page(path.read_text())


def outside(address: str) -> bool:
    return bool(urlsplit(address).netloc) or urlsplit(address).scheme in ("http", "https", "ftp")


@pytest.fixture(scope="session")
def site(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("site") / "html"
    done = subprocess.run(
        [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-b", "html", DOCS, out],
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0 and not done.stderr, done.stderr
    return out


def pages(site: Path) -> list[Path]:
    found = [path for path in site.rglob("*.html") if "_downloads" not in path.parts]
    assert len(found) > 30
    return found


def test_nothing_is_loaded_from_elsewhere(site):
    bad = [
        (path.name, address)
        for path in site.rglob("*.html")  # the reports that are there to be downloaded, too
        for address in read(path).loaded
        if outside(address)
    ]
    sheets = list(site.rglob("*.css"))
    assert sheets
    bad += [(p.name, a) for p in sheets for a in in_css(p.read_text()) if outside(a)]
    assert not bad


def test_that_test_would_notice():
    page = Page(
        '<link rel=stylesheet href="https://a.example/x.css"><script src="//b.example/y.js">'
        '</script><style>@import "https://c.example/z.css"; @font-face { src: url(https://d.example'
        '/f.woff) }</style><img src="local.png"><a href="https://e.example">e</a>'
    )
    assert sum(map(outside, page.loaded)) == 4 and len(page.loaded) == 5


def test_every_internal_link_leads_somewhere(site):
    bad = []
    for path in pages(site):
        for link in read(path).links:
            address = urlsplit(link)
            if outside(link) or address.scheme in ("mailto", "data"):
                continue
            target = (path.parent / unquote(address.path)).resolve() if address.path else path
            if not target.is_file():
                bad.append((path.name, link))
            elif address.fragment and target.suffix == ".html":
                ids = read(target).ids
                if unquote(address.fragment) not in ids and address.fragment not in ids:
                    bad.append((path.name, link))
    assert not bad


def anchors(path: Path) -> set[str]:
    """Of the headings of a Markdown file, as code hosts make them."""
    headings = re.findall(r"^#+ +(.*)$", path.read_text(), flags=re.M)
    plain = (re.sub(r"[^\w\- ]", "", heading.lower()) for heading in headings)
    return {words.strip().replace(" ", "-") for words in plain}


def test_links_between_markdown_files_lead_somewhere():
    """Also where they are read without the site."""
    files = [*ROOT.glob("*.md"), *DOCS.rglob("*.md"), ROOT / "results" / "README.md"]
    bad, seen = [], 0
    for path in files:
        for link in re.findall(r"\]\(([^()\s]+)\)", path.read_text()):
            address = urlsplit(link)
            if outside(link):
                continue
            seen += 1
            target = (path.parent / address.path).resolve() if address.path else path
            here = address.fragment if target.suffix == ".md" else ""
            if not target.exists() or (here and here not in anchors(target)):
                bad.append((str(path.relative_to(ROOT)), link))
    assert not bad and seen > 100


def test_files_that_are_named_are_there():
    """In backticks, as `tests/test_x.py`; names with a placeholder in them are the reader's."""
    bad, seen = [], 0
    for path in [*ROOT.glob("*.md"), *DOCS.rglob("*.md")]:
        if path.name == "CHANGELOG.md":  # it names what there was
            continue
        for name in re.findall(
            r"`((?:tests|scripts|examples|mithridate|docs)/[\w./-]+)`", path.read_text()
        ):
            if not any(word in name for word in ("my_", "NAME", "-v0", "corpus/found")):
                seen += 1
                if not (ROOT / name).exists():
                    bad.append((str(path.relative_to(ROOT)), name))
    assert not bad and seen > 40


def test_every_registered_class_has_a_page():
    text = "\n".join(path.read_text() for path in DOCS.rglob("*.md"))
    told = re.findall(r"```\{settings\} (\w+) ([\w ]+)\n", text)
    shown = {(kind, name) for kind, names in told for name in names.split()}

    def ours(registry):
        homes = {name: registry.get(name).__module__ for name in registry.names()}
        return {name for name, home in homes.items() if home.startswith("mithridate.")}

    assert {name for kind, name in shown if kind == "attacker"} == ours(mi.ATTACKERS)
    assert {name for kind, name in shown if kind == "environment"} == ours(mi.ENVS)


@pytest.mark.parametrize("path", sorted((DOCS / "attacks").glob("*.md")), ids=lambda p: p.stem)
def test_a_page_of_an_attack_has_all_that_it_needs(path):
    text = path.read_text().lower()
    for word in ("formula", "know", "budget"):
        assert word in text, word
    if path.stem != "literature":
        for row in ("budget", "where", "citation"):
            assert f"| {row} |" in text, row
    else:
        assert text.count("arxiv:") == 2


def test_the_zoo_is_there_with_its_hashes(site):
    text = "".join(read(site / "zoo.html").words)
    for name in zoo_names():
        card = json.loads((ZOO / f"{name}.json").read_text())
        assert name in text and card["sha256"] in text


def test_the_leaderboard_is_there(site):
    page = read(site / "leaderboard.html")
    text = "".join(page.words).replace("\xa0", " ")
    for entry in read_entries(ROOT / "results" / "leaderboard"):
        assert entry.agent in text
        assert f"{entry.figures[-1].case:.1f} ± {entry.figures[-1].case_ci95:.1f}" in text


def test_the_reference_has_every_public_name(site):
    page = read(site / "api.html")
    text = "".join(page.words)
    for name in mi.__all__:
        if name.isupper():  # registries are said in a sentence
            assert name in text
        else:
            home = getattr(mi, name).__module__
            assert {f"mithridate.{name}", f"{home}.{name}"} & page.ids, name
    for name in ("Env", "Agent", "Attacker"):
        assert f"mithridate.types.{name}" in page.ids
    protocols = [n for n, v in vars(capabilities).items() if getattr(v, "_is_protocol", False)]
    ours = [n for n in protocols if vars(capabilities)[n].__module__ == capabilities.__name__]
    assert len(ours) > 10
    for name in ours:
        assert f"mithridate.capabilities.{name}" in page.ids, name


@pytest.mark.browser
def test_in_a_browser_nothing_is_fetched_and_nothing_overflows(site, browser):
    for page in ("index", "attacks/structured", "leaderboard", "results", "api"):
        for width, height in ((1400, 900), (390, 844)):
            metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
            browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
            browser.get((site / f"{page}.html").as_uri())
            reach = browser.execute_script("return document.documentElement.scrollWidth")
            assert reach <= width, f"{page} is {reach} wide at {width}"
    browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    sent = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    urls = [m["params"]["request"]["url"] for m in sent if m["method"].endswith("WillBeSent")]
    assert urls and not [url for url in urls if not url.startswith(("file:", "data:", "chrome"))]


def test_the_citation_is_of_this_version():
    text = (ROOT / "CITATION.cff").read_text()
    version = re.search(r'^version = "(.*)"$', (ROOT / "pyproject.toml").read_text(), re.M)
    assert version and f"\nversion: {version[1]}\n" in text
    assert f"version = {{{version[1]}}}" in (DOCS / "cite.md").read_text()
    yaml = pytest.importorskip("yaml")
    said = yaml.safe_load(text)
    assert said["cff-version"] == "1.2.0" and {"title", "authors", "message"} <= said.keys()
    assert os.path.exists(ROOT / "LICENSE") and said["license"] == "Apache-2.0"
