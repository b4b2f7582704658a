# SPDX-License-Identifier: Apache-2.0
"""The documents as a site (`make docs`): its nav, its pages beside their sources, and that it needs no other host."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from html import unescape
from pathlib import Path

import pytest
from documents import ROOT, documents
from markdown_it import MarkdownIt

NAV = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:\n")[2]
ENTRIES = re.findall(r"^ +- (?:[^:\n]+: )?(\S+(?:\.md|/))$", NAV, re.MULTILINE)
FOLDERS = tuple(entry for entry in ENTRIES if entry.endswith("/"))
TAGS = ("li", "tr", "td", "pre", "h1", "h2", "h3", "ul", "ol")
# What a browser loads by itself. <a href> is loaded when somebody clicks.
LOADED = re.compile(r"""<(?:script|img|iframe|source)[^>]*\ssrc=["']?([^"' >]+)|<link[^>]*\shref=["']?([^"' >]+)""")
IN_STYLE = re.compile(r"url\(['\"]?(https?:[^)]*)|@import[^;]*(https?:[^;]*)")


def in_docs() -> list[str]:
    return [name.removeprefix("docs/") for name in documents() if name.startswith("docs/")]


def test_the_nav_has_every_document_once() -> None:
    assert FOLDERS == ("benchmarks/", "adr/")
    expected = [name for name in in_docs() if not name.startswith(FOLDERS)]
    assert sorted(entry for entry in ENTRIES if not entry.startswith("project/") and entry not in FOLDERS) == expected
    assert max(Counter(ENTRIES).values()) == 1


def test_the_nav_has_the_rooms_of_the_readers() -> None:
    rooms = re.findall(r"^  - ([A-Z][\w ]+):$", NAV, re.MULTILINE)
    assert rooms == ["Start", "Researchers", "Administrators", "Managers and finance", "Developers"]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site."""
    folder = tmp_path_factory.mktemp("site")
    command = (sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder))
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder


def page_of(site: Path, name: str) -> str:
    path = site / name.removesuffix(".md")
    path = path.with_name("index") if path.name == "README" else path
    return path.with_suffix(".html").read_text(encoding="utf-8")


def words(html: str) -> str:
    """The text of a page without blanks, and without the theme's own signs beside headings."""
    bare = re.sub(
        r'<a class="headerlink".*?</a>|<!--.*?-->|<(?:style|script).*?</(?:style|script)>', "", html, flags=re.DOTALL
    )
    return re.sub(r"\s", "", unescape(re.sub(r"<[^>]*>", "", bare)))


def test_a_page_has_what_its_source_has(site: Path) -> None:
    """Python-Markdown reads some lists, blocks and braces otherwise than a git host does; here it must not."""
    reader = MarkdownIt("commonmark").enable("table")
    for name in in_docs():
        match = re.search(r"<article.*?</article>", page_of(site, name), re.DOTALL)
        assert match, name
        source = reader.render((ROOT / "docs" / name).read_text(encoding="utf-8"))
        counts = [{tag: len(re.findall(rf"<{tag}[ >]", text)) for tag in TAGS} for text in (source, match[0])]
        assert counts[0] == counts[1], name
        assert words(source) == words(match[0]), name


def test_links_out_of_docs_lead_to_pages_of_the_site(site: Path) -> None:
    assert 'href="source/examples/hami-hpc.toml.html"' in page_of(site, "architecture.md")
    assert 'href="project/changelog.html"' in page_of(site, "upgrade.md")
    assert 'href="../install.html"' in (site / "project/overview.html").read_text(encoding="utf-8")
    assert "shard_mib" in (site / "source/examples/hami-hpc.toml.html").read_text(encoding="utf-8")


def test_what_a_browser_loads_is_in_the_site(site: Path) -> None:
    pages = sorted(site.rglob("*.html"))
    assert len(pages) > 80
    for page in pages:
        for match in LOADED.finditer(page.read_text(encoding="utf-8")):
            target = match[1] or match[2]
            assert not re.match(r"(https?:)?//", target), f"{page.name}: {target}"
            if page.name != "404.html" and not target.startswith("data:"):
                assert (page.parent / target.partition("#")[0].partition("?")[0]).exists(), f"{page.name}: {target}"
    for style in site.rglob("*.css"):
        assert IN_STYLE.findall(style.read_text(encoding="utf-8")) == [], style.name


def test_the_search_has_the_text_of_the_pages(site: Path) -> None:
    index = json.loads((site / "search/search_index.json").read_text(encoding="utf-8"))
    found = {entry["location"].partition("#")[0] for entry in index["docs"] if "cores" in entry["text"]}
    assert {"guide.html", "researchers.html", "reference.html", "source/examples/hami-hpc.toml.html"} <= found


@pytest.mark.browser
def test_the_search_works_in_a_browser_that_opens_the_folder(site: Path, tmp_path: Path) -> None:
    if (chromium := shutil.which("chromium")) is None:
        pytest.skip("chromium is not installed: scripts/setup test")
    options = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--virtual-time-budget=8000")
    quiet = ("--no-first-run", "--disable-background-networking", f"--user-data-dir={tmp_path}/profile")
    done = subprocess.run(
        (chromium, *options, *quiet, "--dump-dom", f"file://{site}/index.html?q=cores"),
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    results = re.findall(r'href="[^"]*?([\w-]+)\.html\?h=cores', done.stdout)
    assert "researchers" in results
    assert re.search(r"\d+ matching documents", done.stdout)
