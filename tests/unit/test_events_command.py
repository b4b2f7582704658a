# SPDX-License-Identifier: Apache-2.0
"""`hami-hpc events`: what it shows, and to whom. docs/events.md has the tables of the code."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from node_testbed import ROOT, Node

from hami_hpc.cli import main
from hami_hpc.core.event_kinds import COMMON, FIELDS, KINDS
from hami_hpc.node import events

TEXT = (ROOT / "docs/events.md").read_text(encoding="utf-8")


@pytest.fixture
def node(tmp_path: Path) -> Node:
    made = Node.make(tmp_path / "node", with_gpus=False)
    state = made.settings.state_dir
    events.write(state, "prolog", "grant", job_id=7, uid=5, gpu_uuid="GPU-1", text="job 7 has \x1b[31m much")
    events.write(state, "agent", "memory_over", job_id=8, text="job 8 holds 9 MiB", action="warn")
    return made


def run(node: Node, *words: str) -> Result:
    return CliRunner().invoke(main, ["events", *words], env={"HAMI_HPC_CONFIG": str(node.config)})


def kinds(result: Result) -> list[str]:
    assert result.exit_code == 0, result.output
    return [json.loads(line)["kind"] for line in result.stdout.splitlines()]


def test_lines_of_json_are_as_they_were_written_and_can_be_chosen(node: Node) -> None:
    written = (Path(node.settings.state_dir) / events.NAME).read_text()
    assert run(node, "--format", "json").stdout == written
    assert run(node, "--json").stdout == written
    assert kinds(run(node, "--format=json", "--job", "8")) == ["memory_over"]
    assert kinds(run(node, "--format=json", "--kind", "grant", "--kind", "refused")) == ["grant"]
    assert kinds(run(node, "--format=json", "--since", "1h")) == ["grant", "memory_over"]
    assert kinds(run(node, "--format=json", "--since", "0s")) == []


def test_the_table_is_for_people_and_runs_no_control_characters(node: Node) -> None:
    lines = run(node).stdout.splitlines()
    assert lines[0].split() == ["TIME", "KIND", "SOURCE", "JOB", "GPU", "EVENT"]
    assert "job 7 has ?[31m much" in lines[1]
    assert lines[2].endswith("job 8 holds 9 MiB [warn]")


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("--since", "1week"), "--since 1week is not understood; allowed is a number with s, m, h or d. Example: 1h"),
        (("--kind", "grants"), "'grants' is not one of"),
        (("--job", "0"), "0 is not in the range"),
    ],
)
def test_a_wrong_option_is_named_with_what_is_allowed(node: Node, words: tuple[str, ...], text: str) -> None:
    result = run(node, *words)
    assert (result.exit_code, text in result.stderr) == (2, True), result.stderr


def test_a_node_without_events_has_none(tmp_path: Path) -> None:
    assert len(run(Node.make(tmp_path / "node", with_gpus=False)).stdout.splitlines()) == 1


@pytest.mark.parametrize(
    ("table", "text"), [("", "can name a group in [agent]"), ("[agent]\ngroup = 'tape'\n", "the group tape")]
)
def test_a_user_is_told_whom_to_ask(node: Node, table: str, text: str) -> None:
    node.config.write_text(f"{node.config.read_text()}{table}")
    for path in (node.root, *node.root.parents):
        if path.stat().st_uid == 0 and path != Path("/"):
            path.chmod(path.stat().st_mode | 0o755)
    command = [sys.executable, "-m", "hami_hpc.cli", "events", "--config", str(node.config)]
    readable = os.access(sys.executable, os.X_OK)
    assert readable
    done = subprocess.run(
        ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--inh-caps=-all", *command],
        cwd="/",
        env={"PYTHONPATH": str(ROOT), "PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        check=False,
    )
    if "Permission denied" in done.stderr and "events.jsonl" not in done.stderr:
        os.seteuid(65534)  # the checkout is below a folder that others cannot enter
        try:
            result = run(node)
        finally:
            os.seteuid(0)
        status, errors = result.exit_code, result.stderr
    else:
        status, errors = done.returncode, done.stderr
    assert status == 1
    assert "events.jsonl: only root" in errors
    assert text in errors
    assert "ask an administrator of this node" in errors


def test_following_shows_what_comes(node: Node) -> None:
    command = [sys.executable, "-m", "hami_hpc.cli", "events", "--follow", "--format", "json", "--since", "1m"]
    environment = {**os.environ, "HAMI_HPC_CONFIG": str(node.config)}
    with subprocess.Popen([*command, "--kind", "refused"], env=environment, stdout=subprocess.PIPE, text=True) as shown:
        assert shown.stdout is not None
        time.sleep(1)
        events.write(node.settings.state_dir, "prolog", "refused", job_id=9, text="no")
        assert json.loads(shown.stdout.readline())["job_id"] == 9
        shown.terminate()


def test_following_ends_when_it_is_interrupted_and_that_is_no_failure(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(_seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(time, "sleep", interrupted)
    done = CliRunner().invoke(main, ["events", "--follow"], env={"HAMI_HPC_CONFIG": str(node.config)})
    assert (done.exit_code, done.output.splitlines()[-1].split()[2]) == (0, "memory_over")


def test_help_lists_every_kind(node: Node) -> None:
    shown = " ".join(CliRunner().invoke(main, ["events", "--help"]).output.split())
    for name, kind in KINDS.items():
        assert f"{name} {kind.doc}" in shown


def test_the_document_has_the_tables_of_the_code() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (.*) \|$", TEXT, re.MULTILINE)
    expected = [
        *COMMON.items(),
        *((name, f"{', '.join(kind.sources)} | {', '.join(kind.fields)} | {kind.doc}") for name, kind in KINDS.items()),
        *FIELDS.items(),
    ]
    assert rows[: len(expected)] == expected
