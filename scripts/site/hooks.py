# SPDX-License-Identifier: Apache-2.0
"""What mkdocs is told beyond mkdocs.yml: documents outside of docs/, links to them, and folders in the nav.

Documents and links are written for a git host, where a link is a path in the checkout. Here each file that one leads to
gets a page of the site, and each link is written anew, so that both places have the same links.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[2]
# Documents outside of docs/, and their page.
PROJECT = {
    "README.md": "project/overview.md",
    "CONTRIBUTING.md": "project/contributing.md",
    "CHANGELOG.md": "project/changelog.md",
    "SECURITY.md": "project/vulnerabilities.md",
    "native/README.md": "project/native.md",
    "native/sim/README.md": "project/simulation.md",
}
# How far a search puts pages before others (above 1) or behind: those that explain a word before those that use it.
BOOST = {
    "guide": 4,
    "researchers": 4,
    "reference": 2,
    "troubleshooting": 2,
    "status": 0.5,
    "adr/": 0.5,
    "benchmarks/": 0.5,
    "time-study": 0.5,
    "source/": 0.3,
    "project/changelog": 0.3,
}
LANGUAGES = {".py": "python", ".toml": "toml", ".yml": "yaml", ".json": "json"}
# A fence with what it holds, or code within a line: neither has links. Then a link's target.
_PART = re.compile(r"(^ *```.*?^ *```$|`[^`\n]+`)|(?<=\]\()([^)\s]+)(?=\))", re.MULTILINE | re.DOTALL)
_CODE = re.compile(r"(?<!<pre>)<code>([^<]*)</code>")
_WORD = re.compile(r"[^\s<>]+")
WORD_MAX = 34  # a longer one may be broken at its hyphens, since it would make a column too wide
_SEPARATOR = re.compile(r"(?<=\w)([_/,.=])(?=\w)")
_CODE_IN_ROW = re.compile(r"`[^`\n]+`")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Puts the documents of a folder in place of its name in the nav."""
    config.nav = [_expanded(Path(config.docs_dir), item) for item in config.nav or []]
    return config


def _expanded(docs: Path, item: Any) -> Any:
    if not isinstance(item, dict):
        return item
    ((title, inside),) = item.items()
    if isinstance(inside, list):
        return {title: [_expanded(docs, one) for one in inside]}
    if not inside.endswith("/"):
        return item
    names = sorted(path.name for path in (docs / inside).glob("*.md"))
    return {title: [inside + name for name in sorted(names, key=lambda name: (name != "README.md", name))]}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds a page for each document outside of docs/, and for each file outside that a document leads to."""
    texts = {PROJECT[name]: (ROOT / name).read_text(encoding="utf-8") for name in PROJECT}
    linked: set[str] = set()
    for file in files.documentation_pages():
        linked |= _linked(_path_of(file.src_uri), file.content_string)
    for name in PROJECT:
        linked |= _linked(name, texts[PROJECT[name]])
    for uri, text in texts.items():
        files.append(File.generated(config, uri, content=text))
    for name in sorted(linked):
        if _page_of(name).startswith("source/"):
            files.append(File.generated(config, _page_of(name), content=_source_page(name)))
    return files


def _linked(document: str, text: str) -> set[str]:
    """The files outside of docs/ that a document leads to, as paths in the checkout."""
    found = {_target(document, match[2])[0] for match in _PART.finditer(text) if match[2]}
    return {name for name in found if name and not name.startswith("docs/")}


def _target(document: str, link: str) -> tuple[str, str]:
    """(path in the checkout, anchor) of a link; no path for a link to another host or within the page."""
    path, _, anchor = link.partition("#")
    if not path or "://" in link or link.startswith("mailto:"):
        return "", anchor
    return posixpath.normpath(posixpath.join(posixpath.dirname(document), path)), anchor


def _path_of(uri: str) -> str:
    """The path in the checkout of a page's document."""
    for name, page in PROJECT.items():
        if page == uri:
            return name
    return f"docs/{uri}"


def _page_of(name: str) -> str:
    if name.startswith("docs/"):
        return name.removeprefix("docs/")
    return PROJECT.get(name, f"source/{name}.md")


def _source_page(name: str) -> str:
    """A page that shows a file."""
    path = ROOT / name
    text = path.read_text(encoding="utf-8")
    assert "\n````" not in text, name
    return f"# {name}\n\n````{LANGUAGES.get(path.suffix, 'text')}\n{text.rstrip()}\n````\n"


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Makes links lead to pages of the site, and `\\|` in code a `|`, which GitHub's tables need and these do not."""
    uri = page.file.src_uri
    document = _path_of(uri)
    page.meta["search"] = {"boost": next((factor for name, factor in BOOST.items() if uri.startswith(name)), 1)}

    def written(match: re.Match[str]) -> str:
        if match[1]:
            return match[1]
        name, anchor = _target(document, match[2])
        if not name:
            return match[2]
        link = posixpath.relpath(_page_of(name), posixpath.dirname(uri) or ".")
        return f"{link}#{anchor}" if anchor else link

    return "".join(_row(line) for line in _PART.sub(written, markdown).splitlines(keepends=True))


def _row(line: str) -> str:
    return _CODE_IN_ROW.sub(lambda match: match[0].replace("\\|", "|"), line) if line.startswith("|") else line


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Says where words in code may be broken: after "_" and the like, and not at the hyphens of an option."""

    def word(match: re.Match[str]) -> str:
        text = _SEPARATOR.sub(r"\1<wbr>", match[0])
        return f'<span class="whole">{text}</span>' if "-" in match[0] and len(match[0]) <= WORD_MAX else text

    return _CODE.sub(lambda code: f"<code>{_WORD.sub(word, code[1])}</code>", html)
