# SPDX-License-Identifier: Apache-2.0
"""`make mutate`: changes the program one token at a time and counts the changes that the unit tests notice.

mutmut changes the Python modules that [tool.mutmut] in pyproject.toml names, and runs for each change the tests that
call the changed function; lua_mutants.py changes the Lua parser. Not changed: module constants, decorated functions and
classes inside of an `if` (core/values.py), as mutmut cannot, and texts for people: string constants that hold a blank.

The run fails below LEAST_PERCENT, and when a change that nobody noticed is not in accepted.toml. A test that fails
before anything is changed is left out; the run goes on, names it, and fails (stats_run.py). A sample is drawn with a
fixed seed, so that the same tree gives the same sample. Work and results lie in build/mutation.
"""

from __future__ import annotations

import argparse
import ast
import difflib
import fnmatch
import json
import os
import random
import shutil
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import lua_mutants
import stats_run
from mutmut.mutation.file_mutation import MutatedFile, mutate_file_contents

ROOT: Final = Path(__file__).resolve().parents[2]
WORK: Final = ROOT / "build/mutation"
ACCEPTED: Final = Path(__file__).with_name("accepted.toml")
LEAST_PERCENT: Final = 90
COPIED: Final = ("hami_hpc", "tests", "accounting", "examples", "prolog", "slurm-plugins", "pyproject.toml")
# What tests read besides. A link: mutmut follows none, so that it neither copies nor changes these.
LINKED: Final = (
    *(".venv", "build", "native", "docs", "scripts", "gres-conf", "benchmarks", "Makefile"),
    *("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md", "LICENSE"),
)
# Exit statuses in mutmut's results; None is a change that was not tried. 5 is pytest's: the tests were left out.
UNNOTICED: Final = (0, 5, 33)


@dataclass(frozen=True, order=True)
class Mutant:
    """One changed token. `name` is mutmut's, or empty for Lua; `change` is the old and the new line."""

    file: str
    function: str
    change: str
    name: str = ""


def copy_tree() -> None:
    """Brings build/mutation up to date; a file that is as it was keeps what mutmut knows of it."""
    for top in COPIED:
        tracked = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", top],
            cwd=ROOT, capture_output=True, text=True, check=True,
        )  # fmt: skip
        for name in filter(None, tracked.stdout.split("\0")):
            source, target = ROOT / name, WORK / name
            if source.is_file() and not (target.exists() and target.read_bytes() == source.read_bytes()):
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(source, target)


def targets() -> list[str]:
    """The Python files that pyproject.toml names for mutmut."""
    only = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["mutmut"]["only_mutate"]
    files = (str(path.relative_to(ROOT)) for path in sorted((ROOT / "hami_hpc").rglob("*.py")))
    return [file for file in files if any(fnmatch.fnmatch(file, pattern) for pattern in only)]


class _Texts(ast.NodeTransformer):
    """Makes all texts for people equal."""

    def visit_Constant(self, node: ast.Constant) -> ast.Constant:
        return ast.Constant("a text") if isinstance(node.value, str) and " " in node.value else node


def _is_text(old: str, new: str) -> bool:
    """Whether two functions differ in a text for people only."""
    trees = (_Texts().visit(ast.parse(source)) for source in (old, new))
    return len({ast.dump(tree) for tree in trees}) == 1


def _source(mutated: MutatedFile, name: str, as_name: str) -> str:
    span = mutated.line_span_by_function_name[name]
    lines = mutated.code.splitlines()[span.start - 1 : span.end]
    start = next(number for number, line in enumerate(lines) if line.lstrip().startswith(("def ", "@")))
    margin = len(lines[start]) - len(lines[start].lstrip())
    return "\n".join(line[margin:] for line in lines[start:]).replace(name, as_name)


def difference(old: str, new: str) -> str:
    """The lines that differ, as `old -> new`."""
    lines = list(difflib.ndiff(old.splitlines(), new.splitlines()))
    parts = (" ".join(line[2:].strip() for line in lines if line.startswith(sign)) for sign in ("- ", "+ "))
    return " -> ".join(parts)


def python_mutants(file: str) -> Iterator[Mutant]:
    """All changes that mutmut makes in a file, texts for people left out."""
    mutated = mutate_file_contents(file, (ROOT / file).read_text())
    module = file.removesuffix(".py").replace("/", ".").removesuffix(".__init__")
    for name in mutated.mutant_names:
        plain = name.partition("__mutmut_")[0]
        function = plain.removeprefix("x_").removeprefix("xǁ").replace("ǁ", ".")
        old = _source(mutated, f"{plain}__mutmut_orig", function.rpartition(".")[2])
        new = _source(mutated, name, function.rpartition(".")[2])
        if not _is_text(old, new):
            yield Mutant(file, function, difference(old, new), f"{module}.{name}")


def unnoticed_python(mutants: Iterable[Mutant], children: int) -> list[Mutant]:
    """Runs mutmut, `children` changes at a time, and returns the changes that no test noticed."""
    by_name = {mutant.name: mutant for mutant in mutants}
    if not by_name:
        return []
    copy_tree()
    plugin = WORK / "mutants/tests/mutation"  # there before mutmut starts: Python remembers which folders are missing
    plugin.mkdir(parents=True, exist_ok=True)
    for name in LINKED:
        link = WORK / "mutants" / name
        if not link.is_symlink():
            link.symlink_to(ROOT / name)
    # mutmut asks only new tests which functions they call, and would call those of a changed program untested.
    (WORK / "mutants/mutmut-stats.json").unlink(missing_ok=True)
    names = sorted(by_name)
    with (WORK / "mutmut.log").open("w") as log:
        mutmut = [sys.executable, "-c", "from mutmut.__main__ import cli; cli()"]
        command = [*mutmut, "run", "--max-children", str(children), *names]
        environment = os.environ | {"PYTHONPATH": str(plugin)}
        status = subprocess.run(
            command, cwd=WORK, env=environment, stdout=log, stderr=subprocess.STDOUT, check=False
        ).returncode
    if status != 0:
        tail = stats_run.readable((WORK / "mutmut.log").read_text())[-3000:]
        raise SystemExit(f"{tail}\nmake mutate: mutmut failed with status {status}, see {WORK}/mutmut.log")
    found: dict[str, int | None] = {}
    for file in {mutant.file for mutant in by_name.values()}:
        found |= json.loads((WORK / "mutants" / f"{file}.meta").read_text())["exit_code_by_key"]
    untried = [name for name in names if found[name] is None]
    if untried:
        raise SystemExit(f"make mutate: {len(untried)} changes were not tried, as {untried[0]}")
    return [by_name[name] for name in names if found[name] in UNNOTICED]


def accepted() -> set[Mutant]:
    """The changes that change nothing, each with its reason."""
    listed = tomllib.loads(ACCEPTED.read_text())["change"]
    for entry in listed:
        assert entry.keys() == {"file", "function", "change", "reason"}, entry
        assert entry["reason"].strip(), f"{entry['file']}: {entry['change']} has no reason"
    return {Mutant(entry["file"], entry["function"], entry["change"]) for entry in listed}


def report(tried: list[Mutant], unnoticed: list[Mutant]) -> int:
    """Prints what was noticed per file and what is not accepted; returns the exit status."""
    counts, missed = (Counter(mutant.file for mutant in mutants) for mutants in (tried, unnoticed))
    for file in sorted(counts):
        print(f"{counts[file] - missed[file]:5} of {counts[file]:5}  {file}")
    known = accepted()
    new = [mutant for mutant in unnoticed if Mutant(mutant.file, mutant.function, mutant.change) not in known]
    (WORK / "unnoticed.json").write_text(json.dumps([vars(mutant) for mutant in unnoticed], indent=1))
    percent = 100 * (len(tried) - len(unnoticed)) / len(tried)
    print(f"{len(tried) - len(unnoticed)} of {len(tried)} changes noticed, {percent:.1f} %")
    for mutant in new:
        print(f"not noticed: {mutant.file} {mutant.function}: {mutant.change}")
    if new:
        print(f"{len(new)} changes are neither noticed nor in {ACCEPTED.relative_to(ROOT)}")
    failing = stats_run.failing(WORK / "mutants")
    for test, reason in failing.items():
        print(f"fails without a change, so it was left out: {test}: {reason}")
    return 1 if new or failing or percent < LEAST_PERCENT else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sample", type=int, default=0, help="how many changes to try; 0: all")
    parser.add_argument("--seed", type=int, default=1, help="of the sample")
    parser.add_argument("--children", type=int, default=1, help="how many changes to try at once")
    parser.add_argument("--only", default="*", help="globs of the files to change, comma-separated")
    given = parser.parse_args()
    WORK.mkdir(parents=True, exist_ok=True)
    (WORK / "mutants" / stats_run.FAILING).unlink(missing_ok=True)
    only = given.only.split(",")

    def is_wanted(file: str) -> bool:
        return any(fnmatch.fnmatch(file, pattern) for pattern in only)

    files = list(filter(is_wanted, targets()))
    everything = [mutant for file in files for mutant in python_mutants(file)]
    everything += [Mutant(*found) for found in lua_mutants.all_mutants() if is_wanted(found[0])]
    if not everything:
        parser.error(f"--only: {given.only} is no file of only_mutate in [tool.mutmut] of pyproject.toml")
    chosen = sorted(everything)
    if given.sample and given.sample < len(chosen):
        chosen = random.Random(given.seed).sample(chosen, given.sample)
    print(f"{len(chosen)} of {len(everything)} changes are tried", flush=True)
    python = [mutant for mutant in chosen if mutant.name]
    lua = [mutant for mutant in chosen if not mutant.name]
    missed_lua = lua_mutants.unnoticed((mutant.file, mutant.function, mutant.change) for mutant in lua)
    unnoticed = unnoticed_python(python, given.children) + [Mutant(*found) for found in missed_lua]
    return report(chosen, unnoticed)


if __name__ == "__main__":
    sys.exit(main())
