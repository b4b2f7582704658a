# SPDX-License-Identifier: Apache-2.0
"""Builds Slurm's plugins for each release of Slurm from 22.05 on, and says what a daemon would miss in them.

    python tests/versions/releases.py GIT [BUILD]

GIT is a repository of Slurm's source, an address or a directory; BUILD (build/releases) keeps each release's source,
configured, and its plugins. Of each release the newest tag is taken. No daemon is started: `make test-matrix` does so
for those releases that a distribution has.

A daemon ends when a plugin lacks one of the functions that its release lists (`syms[]` in src/interfaces/gres.c and the
like), also where it never calls it; and a plugin does not load that uses a function which the release does not have.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FIRST = (22, 5)
KINDS = ("gres", "cli_filter", "task")
TAG = re.compile(r"refs/tags/slurm-(\d\d)-(\d\d)-(\d+)-(\d+)$", re.MULTILINE)
LISTED = re.compile(r"static const char \*\s*syms\[\] = \{(.*?)\};", re.DOTALL)


def newest_tags(listed: str) -> list[str]:
    """Returns the newest tag of each release, the oldest release first. `listed` is what git ls-remote printed."""
    newest: dict[tuple[int, int], tuple[int, int, str]] = {}
    for year, month, micro, build in TAG.findall(listed):
        tag = f"slurm-{year}-{month}-{micro}-{build}"
        release = (int(year), int(month))
        newest[release] = max(newest.get(release, (0, 0, "")), (int(micro), int(build), tag))
    return [newest[release][2] for release in sorted(newest) if release >= FIRST]


def required(tree: Path) -> dict[str, set[str]]:
    """Returns the functions that a plugin of each kind must have, by Slurm's source."""
    found: dict[str, set[str]] = {}
    for source in sorted((tree / "src").rglob("*.c")):
        for names in LISTED.findall(source.read_text(errors="replace")):
            functions = set(re.findall(r'"(\w+)"', names))
            for kind in KINDS:
                if functions and all(name.startswith(f"{kind}_p_") for name in functions):
                    found[kind] = functions
    return found


def symbols(plugin: Path, which: str) -> set[str]:
    """Returns the names of a library's dynamic symbols: `which` is "defined" or "undefined"."""
    command = ["nm", "--dynamic", f"--{which}-only", "--format=just-symbols", str(plugin)]
    lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    return {line.partition("@")[0] for line in lines}


def has_function(texts: list[str], name: str) -> bool:
    """Returns whether Slurm's source defines a function, or gives one the name `slurm_...` (strong_alias)."""
    plain = name.removeprefix("slurm_")
    alias = re.compile(rf"strong_alias\({plain},\s*{name}\)")
    definition = re.compile(rf"^(?:[a-z][\w *]*[ *])?({name}|{plain})\s*\([^;]*?\)\s*\{{", re.MULTILINE)
    return any(alias.search(text) or definition.search(text) for text in texts if plain in text)


def prepare(git: str, tag: str, tree: Path) -> None:
    """Puts a release's source into `tree`, configured, once. Raises CalledProcessError."""
    if (tree / "config.h").exists():
        return
    subprocess.run(["rm", "-rf", str(tree)], check=True)
    subprocess.run(
        ["git", "clone", "--quiet", "--depth=1", "-c", "advice.detachedHead=false", "--branch", tag, git, tree],
        check=True,
    )
    with (tree / "hami-configure.log").open("w") as log:
        subprocess.run(["./configure", "--without-munge"], cwd=tree, check=True, stdout=log, stderr=log)


def problems(tree: Path, build: Path) -> Iterator[str]:
    """Builds the plugins for a release, and yields what is wrong with them."""
    command = ["make", "-C", str(ROOT / "slurm-plugins"), "-j2", f"SLURM_TREE={tree}", f"BUILD={build}", "all"]
    made = subprocess.run(command, capture_output=True, text=True)
    if made.returncode != 0:
        yield "not built: " + next((line for line in made.stderr.splitlines() if "error" in line.lower()), "see make")
        return
    lists = required(tree)
    texts = [path.read_text(errors="replace") for path in sorted((tree / "src").rglob("*.c"))]
    yield from (f"its source lists no functions of {kind} plugins" for kind in KINDS if kind not in lists)
    for plugin in sorted(build.glob("*.so")):
        defined, used = symbols(plugin, "defined"), symbols(plugin, "undefined")
        for kind, functions in lists.items():
            if plugin.name.startswith(f"{kind}_"):
                yield from (f"{plugin.name} lacks {name}" for name in sorted(functions - defined))
        slurms = sorted(name for name in used if name.startswith(("slurm_", "spank_")))
        yield from (f"{plugin.name} uses {name}" for name in slurms if not has_function(texts, name))


def main(git: str, build: Path) -> int:
    """Prints a line for each release. Returns 0 if nothing is wrong with any, else 1."""
    listed = subprocess.run(["git", "ls-remote", "--tags", git], check=True, capture_output=True, text=True).stdout
    tags = newest_tags(listed)
    if not tags:
        print(f"{git} has no tags of Slurm's releases; give a repository of Slurm's source", file=sys.stderr)
        return 1
    bad = False
    for tag in tags:
        prepare(git, tag, build / tag)
        wrong = list(problems(build / tag, build / f"plugins-{tag}"))
        bad |= bool(wrong)
        print(f"{tag}: {'; '.join(wrong) or 'ok'}", flush=True)
    return int(bad)


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    sys.exit(main(sys.argv[1], Path(sys.argv[2] if len(sys.argv) > 2 else ROOT / "build" / "releases").resolve()))
