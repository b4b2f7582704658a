# SPDX-License-Identifier: Apache-2.0
"""`hami-hpc qos` with a slurmdbd of the tests' own, and what sacctmgr's complaints become."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from node_testbed import Node
from test_qos_plan import FULL, SLURM_22_05, Slurmdbd

from hami_hpc.cli import main
from hami_hpc.cli.exit_codes import ExitCode
from hami_hpc.errors import NodeError
from hami_hpc.slurm import commands


class Site:
    """Settings with FULL's QoS, a slurmdbd, and slurm.conf where there is one."""

    def __init__(self, folder: Path) -> None:
        self.slurmdbd = Slurmdbd(normal=(), be=())
        self.config = Node.make(folder / "node").config
        self.config.write_text(self.config.read_text() + FULL)
        self.slurm_conf = folder / "slurm.conf"
        self.calls: list[Sequence[str]] = []

    def change(self, words: Sequence[str]) -> None:
        self.calls.append(words)
        self.slurmdbd.run(tuple(words))

    def run(self, *words: str) -> Result:
        environment = {"HAMI_HPC_CONFIG": str(self.config), "SLURM_CONF": str(self.slurm_conf)}
        return CliRunner().invoke(main, ["qos", *words], env=environment)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    site = Site(tmp_path)
    monkeypatch.setattr(commands, "qos_rows", lambda _columns: list(site.slurmdbd.rows.values()))
    monkeypatch.setattr(commands, "change_accounting", site.change)
    monkeypatch.setattr(commands, "version", lambda: SLURM_22_05)
    return site


def test_apply_writes_prints_what_it_does_and_does_it_once(site: Site) -> None:
    dry = site.run("apply", "--dry-run")
    assert (dry.exit_code, site.calls) == (ExitCode.FOUND, [])
    done = site.run("apply")
    assert (done.exit_code, done.stdout) == (ExitCode.DONE, dry.stdout)
    assert len(site.calls) == len(done.stdout.splitlines()) == 3
    again = site.run("apply")
    assert again.exit_code == ExitCode.DONE
    assert again.stdout == "nothing to do: slurmdbd has the QoS of the settings\n"
    assert site.run("apply", "--dry-run").exit_code == ExitCode.DONE


def test_show_has_both_sides_and_a_status_that_says_whether_they_agree(site: Site) -> None:
    site.slurmdbd.rows["normal"]["MaxJobsPU"] = "9"
    shown = site.run("show")
    assert shown.exit_code == ExitCode.FOUND
    assert ["be", "Priority", "10", "0", "differs"] in [line.split() for line in shown.stdout.splitlines()]
    assert "\nslurmdbd has no QoS lc\n" in shown.stdout
    rows = json.loads(site.run("show", "--format", "json").stdout)
    assert rows["missing"] == ["lc"]
    site.run("apply")
    agreeing = site.run("show", "--format", "json")
    assert agreeing.exit_code == ExitCode.DONE
    values = json.loads(agreeing.stdout)["values"]
    assert {row["differs"] for row in values} == {False}
    assert {"qos": "normal", "field": "MaxJobsPerUser", "tres": "", "settings": None, "slurmdbd": "9"}.items() <= {
        key: value for row in values if row["qos"] == "normal" for key, value in row.items()
    }.items()


def test_render_asks_nothing_of_slurmdbd_and_prints_slurm_confs_lines(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commands, "qos_rows", None)
    printed = site.run("render")
    assert printed.exit_code == ExitCode.FOUND
    assert "\nPreemptType=preempt/qos\n" in printed.stdout
    site.slurm_conf.write_text(printed.stdout.partition("# slurm.conf: add:\n")[2].partition("\n\n")[0] + "\n")
    after = site.run("render")
    assert after.exit_code == ExitCode.DONE
    assert "PreemptType" not in after.stdout
    assert after.stdout.startswith(printed.stdout.partition("\n\n")[0])


def test_a_command_that_slurmdbd_refuses_ends_the_run_and_says_how_far_it_came(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(words: Sequence[str]) -> None:
        if words[0] == "modify" and "Preempt=be" in words:
            raise NodeError("sacctmgr ... failed: QOS Preemption loop detected")
        site.change(words)

    monkeypatch.setattr(commands, "change_accounting", refuse)
    done = site.run("apply")
    assert done.exit_code == ExitCode.FAILED
    assert "Preemption loop detected (2 of 3 commands were done)" in done.stderr
    monkeypatch.setattr(commands, "change_accounting", site.change)
    rest = site.run("apply")
    assert (rest.exit_code, len(rest.stdout.splitlines())) == (ExitCode.DONE, 1)


def test_a_slurmdbd_that_keeps_something_else_than_was_written_is_an_error(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commands, "change_accounting", lambda words: None if "name=be" in words else site.change(words))
    done = site.run("apply")
    assert done.exit_code == ExitCode.FAILED
    assert "slurmdbd has other values: Priority of be is 0, not 10" in done.stderr


@pytest.mark.parametrize(
    "words", [["show", "--dry-run"], ["render", "--dry-run"], ["apply", "--format", "json"], ["drop"]]
)
def test_options_of_another_action_are_refused(site: Site, words: list[str]) -> None:
    assert site.run(*words).exit_code == ExitCode.USAGE
    assert site.calls == []


def test_a_wrong_qos_table_is_found_by_render_too_and_by_no_prolog(site: Site, tmp_path: Path) -> None:
    site.config.write_text(site.config.read_text().replace("grace_time_s = 30", "grace_time_s = -30"))
    for command in (["qos", "show"], ["render", "--gpus", "h200", "-o", str(tmp_path / "etc")]):
        done = CliRunner().invoke(main, command, env={"HAMI_HPC_CONFIG": str(site.config)})
        assert done.exit_code == ExitCode.FAILED
        assert "[qos.be]: grace_time_s = '-30' is not understood" in done.stderr
    from hami_hpc.node.config import load_settings

    assert "be" in load_settings(str(site.config)).qos


def sacctmgr(folder: Path, monkeypatch: pytest.MonkeyPatch, status: int, out: str, err: str) -> None:
    """A sacctmgr that prints this and ends so."""
    (folder / "out").write_text(out)
    (folder / "err").write_text(err)
    script = folder / "sacctmgr"
    script.write_text(f"#!/bin/sh\nread line\ncat {folder}/out\ncat {folder}/err >&2\nexit {status}\n")
    script.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=":")


# What sacctmgr of 22.05.8 printed (status 1).
@pytest.mark.parametrize(
    ("out", "err", "said"),
    [
        (
            "",
            "sacctmgr: error: Your user doesn't have privilege to perform this action\n"
            " Error with request: Access/permission denied\n",
            "privilege to perform this action; Error with request: Access/permission denied. Run it as root, or as a "
            "user with AdminLevel=Administrator",
        ),
        (
            "",
            "sacctmgr: error: QOS Preemption loop detected\n Error with request: QOS Preemption loop detected\n",
            "whose Preempt list was emptied: restart slurmdbd",
        ),
        ("", "sacctmgr: error: slurmdb_format_tres_str: no TRES known by type gres/x\n", "AccountingStorageTRES must"),
        (" Nothing new added.\n", "", "failed: Nothing new added."),
        ("", "", "failed: it says nothing. Is slurmdbd up?"),
    ],
)
def test_what_sacctmgr_complains_of_is_one_line_with_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, out: str, err: str, said: str
) -> None:
    sacctmgr(tmp_path, monkeypatch, 1, out, err)
    with pytest.raises(NodeError) as caught:
        commands.change_accounting(("modify", "qos", "where", "name=lc", "set", "Priority=1"))
    text = str(caught.value)
    assert said in text
    assert text.startswith("sacctmgr --immediate --quiet modify qos where name=lc set Priority=1 failed: ")
    assert "\n" not in text


def test_rows_are_read_by_column_and_a_row_of_another_form_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sacctmgr(tmp_path, monkeypatch, 0, "lc|1|\nbe||x\n", "")
    assert commands.qos_rows(("Name", "A", "B")) == [
        {"Name": "lc", "A": "1", "B": ""},
        {"Name": "be", "A": "", "B": "x"},
    ]
    with pytest.raises(NodeError, match=r"printed 'lc\|1\|'"):
        commands.qos_rows(("Name", "A"))


def test_a_missing_sacctmgr_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(NodeError, match="sacctmgr cannot be run"):
        commands.qos_rows(("Name",))
