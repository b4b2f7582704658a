# SPDX-License-Identifier: Apache-2.0
"""hami-hpc's commands: one spelling for one meaning, whole summaries, and one meaning for one exit status."""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from node_testbed import ROOT, Node

from hami_hpc.cli import ACCOUNTING_COMMANDS, COMMANDS, NODE_COMMANDS, main
from hami_hpc.cli.exit_codes import ExitCode, meanings
from hami_hpc.cli.options import Command

ALL = frozenset(COMMANDS)
ACCOUNTING = frozenset(ACCOUNTING_COMMANDS)
PERIOD = frozenset({"bill", "check-bill"})
# Meaning -> its one spelling, and the commands that have it. A new option that means what one of these does takes that
# spelling; one that means something new gets a line of its own.
OPTIONS: dict[str, tuple[str, frozenset[str]]] = {
    "the settings' file": ("--config", ALL - {"forget-node"}),
    "form of what is printed": (
        "--format",
        ALL
        - {"render", "forget-node", "metrics", "ingest", "collect-usage", "store", "report", "top", "resize", "swap"},
    ),
    "look once, and end": ("--once", frozenset({"agent", "top"})),
    "a line for each node, also where nodes are alike": ("--each-node", frozenset({"pool"})),
    "minute by minute": ("--history", frozenset({"usage"})),
    "file or directory that is written": ("-o --output", frozenset({"render", "forget-node", "invoice", "report"})),
    "file or directory that is read": ("--input", frozenset({"ingest", "collect-usage", *PERIOD})),
    "clusters of the records": ("-M --clusters", frozenset({"ingest", "collect-usage", *PERIOD})),
    "time zone": ("--timezone", ACCOUNTING),
    "prices": ("--rates", ACCOUNTING),
    "accounting store": ("--store", ACCOUNTING),
    "node's name in Slurm": (
        "--node",
        frozenset({"render", "inventory", "reconcile", "doctor", "agent", "gpu", "mode", "mig", "trace", "resize"}),
    ),
    "nodes' GPUs, as inventory prints them": ("--inventory", frozenset({"render"})),
    "fewer figures, sooner": ("--quick", frozenset({"baseline"})),
    "which run of a requeued job": ("--run", frozenset({"trace"})),
    "how long to wait": ("--wait", frozenset({"swap"})),
    "why a GPU is out of service": ("--reason", frozenset({"gpu"})),
    "show, and change nothing": (
        "--dry-run",
        frozenset({"render", "forget-node", "resize", "reconcile", "qos", "quota", "store", "mig"}),
    ),
    "quotas of accounts": ("--quotas", frozenset({"quota"})),
    "instances to make room for": ("--demand", frozenset({"mig"})),
    "how long a place is held": ("--hold-minutes", frozenset({"mig"})),
    "end all holds": ("--release", frozenset({"mig"})),
    "calendar month": ("--month", frozenset({*PERIOD, "invoice", "ledger", "report", "efficiency"})),
    "begin of a period": ("--start", frozenset({*PERIOD, "efficiency"})),
    "end of a period": ("--end", frozenset({*PERIOD, "efficiency"})),
    "account": ("--account", frozenset({"bill", "invoice", "ledger", "balances", "efficiency"})),
    "user": ("--user", frozenset({"efficiency"})),
    "jobs of an invoice": ("--annex", frozenset({"invoice"})),
    "a site's own templates": ("--templates", frozenset({"invoice", "report"})),
    "print nothing when all is well": ("--quiet", frozenset({"ingest", "collect-usage"})),
    "ask sacct although there is a store": ("--live", PERIOD),
    "what a line of the bill is of": ("--by", frozenset({"bill"})),
    "who asks slurmdbd": ("--source", frozenset({"ingest"})),
    "begin of what is read": ("--since", frozenset({"ingest", "events"})),
    "a cluster is new on purpose": ("--new-cluster", frozenset({"ingest"})),
    "kind of event": ("--kind", frozenset({"events"})),
    "one job's": ("--job", frozenset({"events"})),
    "what comes, too": ("-f --follow", frozenset({"events"})),
    "days read at a time": ("--window-days", frozenset({"ingest"})),
    "delete what was read": ("--remove", frozenset({"collect-usage"})),
    "number and keep nothing": ("--draft", frozenset({"invoice"})),
    "replace invoices that would be others": ("--correct", frozenset({"invoice"})),
    "recipients, tax and energy": ("--finance", frozenset({"invoice", "ledger", "bill", "report"})),
    "energy of jobs": ("--energy", frozenset({"bill"})),
    "day of a payment": ("--date", frozenset({"invoice"})),
    "e-invoices beside HTML": ("--ubl", frozenset({"invoice"})),
    "end of what is without names": ("--before", frozenset({"store"})),
    "key of pseudonyms": ("--key", frozenset({"store"})),
    "tree of accounts": ("--tree", frozenset({"report"})),
    "pages of users": ("--users", frozenset({"report"})),
    "PDF beside HTML": ("--pdf", frozenset({"invoice"})),
    "lines at most": ("--limit", frozenset({"efficiency"})),
    "differences from what is there": ("--diff", frozenset({"render", "forget-node"})),
    "who may land where": ("--tenants", frozenset({"render"})),
    "replace edited files": ("--force", frozenset({"render", "forget-node"})),
    "the node's GPUs": ("--gpus", frozenset({"render"})),
    "more of the NodeName line": ("--node-parameters", frozenset({"render"})),
    "device files": ("--device", frozenset({"render"})),
    "PluginDir": ("--plugin-dir", frozenset({"render"})),
    "SPANK plugin": ("--spank", frozenset({"render"})),
    "Prolog": ("--prolog", frozenset({"render"})),
    "Epilog": ("--epilog", frozenset({"render"})),
    "cgroup.conf": ("--cgroup", frozenset({"render"})),
    "address of a server": ("--listen", frozenset({"metrics"})),
    "secret of a server's clients": ("--token-file", frozenset({"metrics"})),
    "file of node_exporter's textfile collector": ("--textfile", frozenset({"metrics"})),
    "memory of one program": ("--mem", frozenset({"advise"})),
    "share of a GPU of one program": ("--cores", frozenset({"advise"})),
    "programs at a time": ("--count", frozenset({"advise"})),
    "answers requests": ("--latency", frozenset({"advise"})),
    "who is beside it": ("--trust", frozenset({"advise"})),
    "what the GPU does": ("--kernels", frozenset({"advise"})),
    "a GPU model of the settings": ("--gpu", frozenset({"advise"})),
    "again and again": ("--every", frozenset({"metrics"})),
}
# Other words for a meaning of the table, so that no second spelling passes as a new meaning.
SYNONYMS = re.compile(
    r"--(json|csv|out|outfile|output-(file|dir)|conf|settings|in|infile|file|from|to|cluster|tz|time-zone|zone|begin|"
    r"stop|until|accounts|price|prices|nodes|node-name|nodelist|dryrun|noop|silent|template)"
)
OLD_SPELLINGS = {"bill": {"--check"}, "invoice": {"--balances"}, "ingest": {"--cluster", "--usage", "--remove-usage"}}


def command_of(name: str) -> Command:
    found = main.get_command(click.Context(main, **main.context_settings), name)
    assert isinstance(found, Command), name
    return found


def options_of(name: str) -> list[click.Option]:
    return [option for option in command_of(name).params if isinstance(option, click.Option)]


def spelled(option: click.Option) -> str:
    return " ".join(sorted(option.opts, key=len))


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_of_every_command_is_in_the_table_of_meanings(name: str) -> None:
    expected = {spelling for spelling, commands in OPTIONS.values() if name in commands}
    assert {spelled(option) for option in options_of(name) if not option.hidden} == expected
    assert {spelled(option) for option in options_of(name) if option.hidden} == OLD_SPELLINGS.get(name, set())


def test_one_meaning_has_one_spelling_and_one_spelling_one_meaning() -> None:
    spellings = [spelling for spelling, _ in OPTIONS.values()]
    assert len(set(spellings)) == len(spellings)
    assert [spelling for spelling in spellings if SYNONYMS.fullmatch(spelling)] == []
    named: dict[str | None, set[str]] = {}
    spelled_so: dict[str, set[str | None]] = {}
    for name in COMMANDS:
        for option in options_of(name):
            if not option.hidden:
                named.setdefault(option.name, set()).add(spelled(option))
                spelled_so.setdefault(spelled(option), set()).add(option.name)
    assert {name: options for name, options in named.items() if len(options) > 1} == {}, (
        "a parameter with two spellings"
    )
    assert {option: names for option, names in spelled_so.items() if names not in ({"accounts", "account"},)} == {
        option: {next(iter(names))} for option, names in spelled_so.items() if names != {"accounts", "account"}
    }, "an option with two meanings"


@pytest.mark.parametrize("name", COMMANDS)
def test_the_summary_in_the_list_is_the_first_sentence_of_the_commands_help(name: str) -> None:
    assert COMMANDS[name][1] == command_of(name).get_short_help_str(limit=10_000)
    assert command_of(name).name == name


@pytest.mark.parametrize("columns", [60, 80, 110])
@pytest.mark.parametrize("name", ["", *COMMANDS])
def test_no_help_is_cut_or_wider_than_the_terminal(name: str, columns: int) -> None:
    result = CliRunner().invoke(main, [*name.split(), "--help"], terminal_width=columns, prog_name="hami-hpc")
    assert result.exit_code == 0
    assert max(len(line) for line in result.stdout.splitlines()) <= columns
    assert "..." not in result.stdout.replace("[OPTIONS] COMMAND [ARGS]...", "")
    text = "".join(result.stdout.split())
    summaries = [summary for _, summary in COMMANDS.values()] if not name else [COMMANDS[name][1]]
    assert [summary for summary in summaries if "".join(summary.split()) not in text] == []


@pytest.mark.parametrize("name", ["", *COMMANDS])
def test_every_help_lists_the_exit_statuses_that_the_command_has(name: str) -> None:
    result = CliRunner().invoke(main, [*name.split(), "--help"])
    listed = re.findall(r"^  (\d)  ", result.stdout.partition("Exit status:")[2], flags=re.M)
    with_finding = (
        "render",
        "forget-node",
        "metrics",
        "reconcile",
        "doctor",
        "agent",
        "gpu",
        "mig",
        "mode",
        "mps",
        "qos",
        "quota",
        "baseline",
        "check-bill",
        "invoice",
    )
    finding = name in ("", *with_finding)
    assert [int(code) for code in listed] == [*range(3), *([int(ExitCode.FOUND)] if finding else [])]


@pytest.mark.parametrize("name", COMMANDS)
def test_a_wrong_command_line_has_the_same_status_everywhere(tmp_path: Path, name: str) -> None:
    result = CliRunner().invoke(main, [name, "--nosuch"], env={"HAMI_HPC_CONFIG": str(Node.make(tmp_path).config)})
    assert result.exit_code == ExitCode.USAGE
    assert "--nosuch" in result.stderr.splitlines()[-1]
    assert result.stderr.splitlines()[-1].startswith("Error: ")


@pytest.mark.parametrize("name", [name for name in COMMANDS if name != "forget-node"])
def test_settings_that_are_not_there_are_an_error_and_no_finding(tmp_path: Path, name: str) -> None:
    needed = {"usage": ["7"], "bill": ["--month", "2026-09"], "check-bill": ["--month", "2026-09"]}
    needed |= {"collect-usage": ["--input", "/"], "invoice": ["--month", "2026-09"], "efficiency": ["7"]}
    needed |= {"report": ["--month", "2026-09", "--output", str(tmp_path / "r.html")], "render": ["--gpus", "h200"]}
    needed |= {
        "qos": ["show"],
        "quota": ["show"],
        "explain": ["7"],
        "gpu": ["list"],
        "mig": ["list"],
        "mode": ["list"],
        "advise": ["--mem", "8G", "--cores", "10"],
        "trace": ["7"],
        "baseline": ["check"],
        "resize": ["7", "mem=8G"],
        "swap": ["out", "7"],
    }
    needed |= {"store": ["undo"], "mps": ["status"], "balance": ["a"]}
    missing = str(tmp_path / "none.toml")
    result = CliRunner().invoke(main, [name, *needed.get(name, []), "--config", missing])
    # doctor's answer is that the settings are missing: that is what it was asked.
    assert result.exit_code == (ExitCode.FOUND if name == "doctor" else ExitCode.FAILED), result.output
    assert missing in result.output


@pytest.mark.parametrize("words", [["usage"], ["swap", "out"], ["events", "--job"]])
@pytest.mark.parametrize("job", ["4711_3", "²", "x", ""])
def test_a_task_of_an_array_is_not_taken_for_another_job(words: list[str], job: str) -> None:
    result = CliRunner().invoke(main, [*words, job])
    assert result.exit_code == ExitCode.USAGE
    assert f"'{job}' is no job number such as 4711; squeue -O JobArrayID,JobID shows" in result.stderr


@pytest.mark.parametrize("words", [["swap", "out", "7", "--wait"], ["metrics", "--textfile", "a.prom", "--every"]])
def test_no_command_waits_for_a_time_that_is_no_number(words: list[str]) -> None:
    result = CliRunner().invoke(main, [*words, "nan"])
    assert (result.exit_code, "nan is not a number of seconds" in result.stderr) == (ExitCode.USAGE, True)


def test_json_is_asked_for_as_before_too(tmp_path: Path) -> None:
    node = Node.make(tmp_path)
    for name in ("jobs", "doctor", "reconcile"):
        environment = {"HAMI_HPC_CONFIG": str(node.config), "HAMI_HPC_NODE": "node1", "PATH": "/nowhere"}
        old = CliRunner().invoke(main, [name, "--json"], env=environment)
        new = CliRunner().invoke(main, [name, "--format", "json"], env=environment)
        assert old.stderr == f"note: {name} --json is now called {name} --format json\n"
        assert new.stderr == ""
        assert (old.exit_code, old.stdout[:1]) == (new.exit_code, new.stdout[:1])
        assert old.stdout[:1] == "["


def test_the_documents_list_the_exit_statuses_as_they_are_defined() -> None:
    text = (ROOT / "docs" / "node.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\d) \| ([^|]*) \|", text, flags=re.M)
    assert [(int(code), meaning) for code, meaning in rows] == [(int(code), meaning) for code, meaning in meanings()]


def test_both_groups_are_in_the_table() -> None:
    assert {*NODE_COMMANDS} & {*ACCOUNTING_COMMANDS} == set()
    assert set().union(*(commands for _, commands in OPTIONS.values())) == ALL
