# SPDX-License-Identifier: Apache-2.0
"""Shell completion in a real bash, and man pages that groff takes without a warning and that name every option."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import click
import pytest
from node_testbed import ROOT

from hami_hpc.cli import COMMANDS, main, share_files
from hami_hpc.cli.exit_codes import FAILED
from hami_hpc.cli.man_pages import ENVIRONMENT, FILES

# What bash does at a tab: it sets the words so far, calls the function for the command, and offers COMPREPLY.
TAB = r"""
. "$1"; shift
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1))
compopt() { printf 'compopt %s %s\n' "$1" "$2"; }
[[ $(complete -p hami-hpc) == *"-F _hami_hpc_completion hami-hpc"* ]] || exit 9
_hami_hpc_completion hami-hpc "${COMP_WORDS[COMP_CWORD]}"
printf '%s\n' "${COMPREPLY[@]}"
"""


@pytest.fixture(scope="module")
def share(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `make install` puts below PREFIX/share, and the command beside it."""
    base = tmp_path_factory.mktemp("share")
    command = [sys.executable, "-m", "hami_hpc.cli.share_files", str(base / "share")]
    subprocess.run(command, cwd=ROOT, check=True)
    (base / "bin").mkdir()
    program = base / "bin/hami-hpc"
    program.write_text(f'#!/bin/sh\nPYTHONPATH={ROOT} exec {sys.executable} -m hami_hpc.cli "$@"\n')
    program.chmod(0o755)
    return base / "share"


def completed(share: Path, *words: str) -> list[str]:
    """What bash offers after a tab behind `words`."""
    script = str(share / "bash-completion/completions/hami-hpc")
    environment = {"PATH": f"{share.parent}/bin:/usr/bin:/bin", "HAMI_HPC_CONFIG": "/nowhere"}
    done = subprocess.run(
        ["bash", "--norc", "-c", TAB, "bash", script, "hami-hpc", *words],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.split("\n")[:-1]


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (("re",), ["render", "resize", "reconcile", "report"]),
        (("che",), ["check-bill"]),
        (("",), list(COMMANDS)),
        (("nosuch",), [""]),
        (("reconcile", "--d"), ["--dry-run"]),
        (("check-bill", "--mo"), ["--month"]),
        (("doctor", "--format", ""), ["text", "json"]),
        (("bill", "--format", "c"), ["csv"]),
        (("ingest", "--source", "p"), ["pyslurm"]),
        (("render", "--output", "/et"), ["compopt -o dirnames", ""]),
        (("jobs", "--config", "/et"), ["compopt -o default", ""]),
    ],
)
def test_bash_completes_commands_options_and_their_values(
    share: Path, words: tuple[str, ...], offered: list[str]
) -> None:
    assert completed(share, *words) == offered


def test_bash_offers_every_option_and_no_hidden_one(share: Path) -> None:
    found = set(completed(share, "invoice", "--"))
    command = main.get_command(click.Context(main, **main.context_settings), "invoice")
    assert command is not None
    assert found == {
        "--help",
        *(
            option.opts[0]
            for option in command.params
            if option.opts[0].startswith("--") and "--balances" not in option.opts
        ),
    } - {"--help"} | ({"--help"} & found)
    assert {"--month", "--format", "--config", "--output"} <= found
    assert "--balances" not in found


def test_the_names_of_commands_are_completed_without_importing_any(share: Path) -> None:
    code = (
        "import os, sys\n"
        "os.environ |= {'_HAMI_HPC_COMPLETE': 'bash_complete', 'COMP_WORDS': 'hami-hpc ', 'COMP_CWORD': '1'}\n"
        "from hami_hpc.cli import main\n"
        "try: main(prog_name='hami-hpc')\n"
        "finally: print(sorted(name for name in sys.modules if name.startswith(('hami_hpc.', 'duckdb'))))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert "plain,reconcile" in done.stdout
    loaded = done.stdout.splitlines()[-1]
    assert "hami_hpc.cli" in loaded
    assert not {"_command", "accounting", "duckdb", "hami_hpc.node"} & set(
        re.findall(r"_command|accounting|duckdb|hami_hpc\.node", loaded)
    )


def test_zsh_and_fish_have_their_files_where_they_look(share: Path) -> None:
    zsh = (share / "zsh/site-functions/_hami-hpc").read_text()
    fish = (share / "fish/vendor_completions.d/hami-hpc.fish").read_text()
    assert zsh.startswith("#compdef hami-hpc\n")
    assert "_HAMI_HPC_COMPLETE=zsh_complete" in zsh
    assert "complete --no-files --command hami-hpc" in fish
    assert "_HAMI_HPC_COMPLETE=fish_complete" in fish
    assert not list(share.rglob("*.new*")), "nothing half-written is left"


def rendered(page: Path) -> str:
    """The page as `man` shows it in plain text; AssertionError for a warning of groff's."""
    done = subprocess.run(["groff", "-man", "-Tutf8", "-P-c", "-ww", page], capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return re.sub(r".\x08", "", done.stdout)


@pytest.mark.parametrize("name", ["", *COMMANDS])
def test_groff_takes_every_page_and_every_option_is_in_its_page(share: Path, name: str) -> None:
    text = rendered(share / "man/man1" / f"{'-'.join(['hami-hpc', *name.split()])}.1")
    plain = " ".join(text.split())
    command = main.get_command(click.Context(main, **main.context_settings), name) if name else main
    assert command is not None
    _, _, options = text.partition("\nOPTIONS\n")
    options = options.partition("\nEXIT STATUS\n")[0]
    context = click.Context(command, **main.context_settings)
    for parameter in command.get_params(context):
        record = parameter.get_help_record(context)
        if record is None:
            assert not isinstance(parameter, click.Option) or parameter.hidden
            continue
        assert re.search(rf"^ +{re.escape(record[0])}( |$)", options, flags=re.M), record[0]
        assert " ".join(record[1].split()) in " ".join(options.split())
    assert f"1 {FAILED} 2" in plain
    for row in (*FILES, *ENVIRONMENT):
        assert " ".join(row) in plain
    assert "HAMI-HPC" in text.splitlines()[0]


def test_the_page_of_hami_hpc_names_every_command_and_every_page_is_installed(share: Path) -> None:
    text = " ".join(rendered(share / "man/man1/hami-hpc.1").split())
    assert all(f"hami-hpc {name} {summary}" in text for name, (_, summary) in COMMANDS.items())
    names = {path.name for path in (share / "man/man1").iterdir()}
    assert names == {"hami-hpc.1", *(f"hami-hpc-{name}.1" for name in COMMANDS)}


def test_text_that_roff_would_take_for_a_request_stays_text(tmp_path: Path) -> None:
    from hami_hpc.cli import man_pages

    page = tmp_path / "page.1"
    words = ".SH 'quoted' C:\\new ~/x ^ `y` --long-option"
    page.write_text('.TH X "1" "" "" ""\n.SH NAME\nx \\- y\n.SH TEXT\n' + "\n".join(man_pages._text(words)) + "\n")
    assert words in rendered(page)


def test_pages_of_accounting_are_left_out_where_accounting_is_not_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(share_files, "has_accounting", lambda: False)
    names = {path.name for path in share_files.files(tmp_path, tmp_path / "zsh")}
    assert "hami-hpc-doctor.1" in names
    assert "hami-hpc-bill.1" not in names
