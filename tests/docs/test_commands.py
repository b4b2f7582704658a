# SPDX-License-Identifier: Apache-2.0
"""Every command in the documents runs in a test (command_plan.py says in which), or the plan says why not.

Whatever runs it, its options, make targets and files exist. Commands and files within sentences are checked that way.
"""

from __future__ import annotations

import functools
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path

import click
import pytest
from command_plan import BY, BY_DOCUMENT, NOT_RUN, claim, runner, words_of
from documents import ROOT, all_commands, blocks, documents, inline_code, without_blocks
from reached import strings

from hami_hpc.cli import main

COMMANDS = sorted({*all_commands()})
SLURM = ("sbatch", "srun", "salloc", "squeue", "scancel", "sinfo")
UNITS = ROOT / "accounting" / "systemd", ROOT / "gres-conf"
# The first words of commands that are not hami_hpc's, Slurm's or make's.
OTHERS = {
    "apt-get",
    "tar",
    "./hami-hpc-node-VERSION-slurm22.05.8-x86_64/install",
    ".",
    "export",
    "pip",
    "git",
    "systemctl",
    "scontrol",
    "chromium",
    ".venv/bin/python",
}
FOLDERS = "accounting|benchmarks|docs|examples|gres-conf|hami_hpc|native|prolog|scripts|slurm-plugins|tests"
FILE = re.compile(rf"(?<![\w/.])(?:{FOLDERS})/[\w./-]*\w")
OPTIONS = {"-o": ("--output",), "--output": ("-o",)}  # an option's other names
PLACEHOLDERS = {"DIR": "/", "FILE": "file", "JOB": "4711", "NAME": "name"}


@functools.cache
def makefile() -> tuple[frozenset[str], frozenset[str]]:
    """(targets, variables) of the Makefile."""
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = re.findall(r"^([a-z][a-z-]*):", text, re.MULTILINE)
    variables = re.findall(r"\$\((?:or )?([A-Z_]+)\)", text) + re.findall(r"^(\w+) \?=", text, re.MULTILINE)
    return frozenset(targets), frozenset(variables)


@functools.cache
def slurm_options(program: str) -> frozenset[str]:
    """The options that --help of one of Slurm's programs lists."""
    with tempfile.NamedTemporaryFile("w", suffix=".conf") as conf:  # without one they print no help
        conf.write("ClusterName=x\nSlurmctldHost=localhost\n")
        conf.flush()
        environment = os.environ | {"SLURM_CONF": conf.name}
        done = subprocess.run((program, "--help"), env=environment, capture_output=True, text=True, check=True)
    help_text = done.stdout
    return frozenset(re.findall(r"(?<![\w-])--?[A-Za-z][\w-]*", help_text))


def check_make(words: list[str]) -> None:
    targets, variables = makefile()
    for word in words:
        name, is_variable, _ = word.partition("=")
        assert name in (variables if is_variable else targets), f"the Makefile has no {word}"


def check_hami(words: list[str]) -> None:
    context = click.Context(main, **main.context_settings)
    given = [PLACEHOLDERS.get(word, word) for word in words]
    if not given or given[0].startswith("-"):
        assert all(word in ("--version", "--help") for word in given)
        return
    command = main.get_command(context, given[0])
    assert command is not None, f"hami-hpc has no command {given[0]}"
    if len(given) > 1:
        command.make_context(given[0], given[1:], context, resilient_parsing=False)


def check_slurm(program: str, words: list[str]) -> None:
    for word in words:
        if not word.startswith("-"):
            return  # what the program runs has options of its own
        name = word.partition("=")[0]
        assert name in slurm_options(program), f"{program} has no option {name}"


def check_exists(command: str) -> None:
    """The parts of a command that can be looked up exist."""
    program, *words = shlex.split(command)
    if program == "make":
        check_make(words)
    elif program == "hami-hpc":
        check_hami(words)
    elif program in SLURM:
        check_slurm(program, words)
    else:
        assert program in OTHERS, f"what is {program}?"
    if program == "systemctl":
        for word in words[1:]:
            found = word in ("slurmd", "slurmctld", "--now") or any(list(d.glob(f"{Path(word).name}*")) for d in UNITS)
            assert found, f"no unit {word}"
    for path in FILE.findall(command):
        assert (ROOT / path).exists(), path


@pytest.mark.parametrize(("document", "command"), COMMANDS)
def test_a_command_is_run_by_a_test_or_is_said_not_to_be(document: str, command: str) -> None:
    decided = runner(document, command)
    assert decided, f"add `{command}` of {document} to tests/docs/command_plan.py"
    check_exists(command)


def unsaid(command: str, runs: str) -> list[str]:
    """The words of a command that the test which is said to run it does not have."""
    path, function, instead = claim(runs)
    assert function.startswith("test_"), f"name a test of {path} that runs `{command}`"
    said = strings(ROOT / path, function)
    assert said, f"{path} has no {function}"
    words = {part for text in said for word in text.split() for part in (word, word.partition("=")[0])}
    if instead:
        return [word for word in instead if not any(word in text for text in said)]
    of_requests = {word.removeprefix("--gres=") for text in said for word in text.split()}
    return [word for word in words_of(command) if not {word, *OPTIONS.get(word, ())} & (words | of_requests)]


@pytest.mark.parametrize(("command", "runs"), BY.items())
def test_the_test_that_is_said_to_run_a_command_has_its_words(command: str, runs: str) -> None:
    assert unsaid(command, runs) == []


@pytest.mark.parametrize("runs", [runs for _, runs in BY_DOCUMENT.values()])
def test_the_test_that_is_said_to_run_a_documents_commands_is_there(runs: str) -> None:
    path, function, _ = claim(runs)
    assert strings(ROOT / path, function)


def test_a_claim_that_is_not_so_is_noticed() -> None:
    site = BY["hami-hpc render -o /etc/slurm"]
    assert unsaid("hami-hpc render --diff -o /etc/slurm", site) == ["--diff"]
    assert unsaid("sbatch --gres=vgpu:mem=7G,cores=50 train.sh", BY["hami-hpc jobs"]) == ["vgpu:mem=7G,cores=50"]
    with pytest.raises(AssertionError, match="name a test"):
        unsaid("hami-hpc jobs", "tests/cluster/test_site.py")
    with pytest.raises(AssertionError, match="has no"):
        unsaid("hami-hpc jobs", "tests/cluster/test_site.py::test_nothing")


def test_the_plan_names_no_command_that_is_in_no_document() -> None:
    written = {command for _, command in COMMANDS}
    assert (set(BY) | set(NOT_RUN)) - written == set()
    assert not set(BY) & set(NOT_RUN)


@pytest.mark.parametrize("document", documents())
def test_a_command_within_a_sentence_exists(document: str) -> None:
    for code in inline_code(document):
        if re.match(r"(hami-hpc|make) [a-z-]", code) and "..." not in code and "…" not in code:
            check_exists(re.sub(r"[\[\]]", "", code))


@pytest.mark.parametrize("document", [name for name in documents() if name != "CHANGELOG.md"])
def test_a_file_of_the_checkout_that_is_named_exists(document: str) -> None:
    text = re.sub(r"\]\([^)]*\)|https?://\S+", "", without_blocks(document))
    folders = (ROOT, (ROOT / document).parent)
    missing = [path for path in FILE.findall(text) if not any((folder / path).exists() for folder in folders)]
    assert missing == []


def test_what_would_be_wrong_is_noticed() -> None:
    for command in (
        "make nothing",
        "make build NOTHING=1",
        "hami-hpc bill --nothing",
        "hami-hpc nothing",
        "rm -r docs",
    ):
        with pytest.raises((AssertionError, click.ClickException)):
            check_exists(command)
    with pytest.raises(AssertionError):
        check_exists("sbatch --nothing=1 train.sh")
    assert runner("README.md", "make nothing") == ""


@pytest.mark.browser
def test_the_commands_that_made_the_picture_run(tmp_path: Path) -> None:
    if shutil.which("chromium") is None:
        pytest.skip("chromium is not installed: scripts/setup test")
    from billed_week import RATES

    (tmp_path / "tests").symlink_to(ROOT / "tests")
    (tmp_path / "rates.toml").write_text(RATES, encoding="utf-8")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/hami-hpc").write_text(f'#!/bin/sh\nexec "{ROOT}/.venv/bin/python" -m hami_hpc.cli "$@"\n')
    quiet = "--no-sandbox --disable-gpu --no-first-run --disable-dev-shm-usage --disable-background-networking"
    (tmp_path / "bin/chromium").write_text(
        f'#!/bin/sh\nexec {shutil.which("chromium")} {quiet} --user-data-dir={tmp_path}/profile "$@"\n'
    )
    for program in (tmp_path / "bin").iterdir():
        program.chmod(0o755)
    environment = os.environ | {
        "PATH": f"{tmp_path}/bin:{os.environ['PATH']}",
        "HAMI_HPC_CONFIG": str(ROOT / "examples/hami-hpc.toml"),
    }
    commands = [command for block in blocks("docs/images/README.md") for command in block.commands()]
    for command in commands:
        done = subprocess.run(
            command, shell=True, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
    made, kept = (tmp_path / "report.png").read_bytes(), (ROOT / "docs/images/report.png").read_bytes()
    assert made[16:24] == kept[16:24], "width and height"
    assert len(kept) < 200_000
