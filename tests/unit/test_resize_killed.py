# SPDX-License-Identifier: Apache-2.0
"""A resize that fails, is killed, or meets another one: what it leaves, and what it says."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

import pytest
from forked import fork, killing, points
from node_testbed import UID, Node
from resized_node import ENVIRONMENT, HALF, MIB, hold, node, record, record_field, resize, sizes, uses

from hami_hpc.agent.slices import Slices
from hami_hpc.contract import constants as c
from hami_hpc.errors import NodeError
from hami_hpc.node import job_dirs
from hami_hpc.slurm import job_shards
from hami_hpc.stages import common, reconcile
from hami_hpc.stages import resize as stage

__all__ = ["node"]  # the fixture


@pytest.mark.parametrize("shards", [{}, {1: HALF}])
def test_a_job_without_shards_on_its_gpu_is_not_resized(
    node: Node, monkeypatch: pytest.MonkeyPatch, shards: dict[int, int]
) -> None:
    hold(monkeypatch, shards)
    with pytest.raises(NodeError, match="no shards of job 7 on its GPU 0; nothing was changed"):
        resize(node, "mem=4G")


def test_a_controller_that_does_not_answer_changes_nothing(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise NodeError("no answer within 5 s")

    monkeypatch.setattr(job_shards, "read", fail)
    with pytest.raises(NodeError, match=r"how many shards job 7 holds \(no answer within 5 s\); nothing was changed"):
        resize(node, "mem=4G")
    assert sizes(record(node)) == (8192, 50)


def test_a_record_that_cannot_be_written_is_said(node: Node) -> None:
    path = node.jobs / "7" / c.FILE_JOB_LIMITS
    path.chmod(0o666)  # as if another could have written it: neighbours.py leaves it alone
    with pytest.raises(NodeError, match="cannot be changed"):
        resize(node, "mem=4G")
    assert sizes(node.grants()[7]) == (8192, 50)
    with pytest.raises(NodeError, match="were not changed, see syslog"):
        resize(node, "mem=16G")
    path.chmod(0o644)
    reconcile.reconcile(node.settings, lambda: frozenset({7}), False, lambda: "n1")
    assert sizes(record(node)) == (16384, 50)


def test_another_resize_right_after_is_no_failure_of_this_one(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    tell = common.tell_neighbours

    def tell_later(*given: Any) -> None:
        tell(*given)
        monkeypatch.setattr(common, "tell_neighbours", tell)
        resize(node, "mem=12G")

    monkeypatch.setattr(common, "tell_neighbours", tell_later)
    assert resize(node, "mem=16G").startswith("job 7 has 16384 MiB")
    assert sizes(record(node)) == sizes(node.grants()[7]) == (12288, 50)


def test_a_job_that_ends_before_its_records_are_seen_to_was_not_resized(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    tell = common.tell_neighbours

    def tell_later(*given: Any) -> None:
        monkeypatch.setattr(common, "tell_neighbours", tell)
        assert node.epilog(7) == 0

    monkeypatch.setattr(common, "tell_neighbours", tell_later)
    with pytest.raises(NodeError, match="job 7 ended meanwhile"):
        resize(node, "mem=16G")


TRACED = ("stages/resize.py", "node/ledger.py", "node/neighbours.py")


def killed_at(line: int, body: Callable[[], object]) -> bool:
    """Runs `body` in a child that is killed at that line of TRACED; returns whether it was."""
    child = fork()
    if child == 0:
        sys.settrace(killing(line, lambda code: code.co_filename.endswith(TRACED)))
        try:
            body()
        except BaseException:
            os._exit(1)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert status in (0, signal.SIGKILL)
    return status == signal.SIGKILL


def test_after_a_resize_killed_at_many_lines_ledger_and_record_agree_at_the_next_prolog(node: Node) -> None:
    seen = set()
    for line in points():
        if not killed_at(line, lambda: resize(node, "mem=16G,cores=20")):
            break
        assert node.prolog(9, gpu="1", **{c.ENV_MEM_MIB: "256"}) == 0  # another's, on another GPU
        size = sizes(node.grants()[7])
        seen.add(size)
        assert sizes(record(node)) == size
        assert record_field(node, 7, "sequence") % 2 == 0
        assert node.epilog(9, gpu="1") == 0
        resize(node, "mem=8G,cores=50")
    assert line > 60, "hardly any line was traced"
    assert seen == {(8192, 50), (16384, 20)}


def test_a_smaller_size_that_was_killed_never_comes_back_over_what_is_in_use(node: Node) -> None:
    """The job may use more again when the next prolog sees to its record."""
    for line in points():
        if not killed_at(line, lambda: resize(node, "mem=4G")):
            break
        uses(node, record(node).mem_mib * MIB)
        assert node.prolog(9, gpu="1", **{c.ENV_MEM_MIB: "256"}) == 0
        assert sizes(record(node)) == sizes(node.grants()[7])
        assert usage_of(node) <= record(node).mem_mib, line
        assert node.epilog(9, gpu="1") == 0
        uses(node, 0)
        resize(node, "mem=8G")
    assert line > 60, "hardly any line was traced"


def usage_of(node: Node) -> int:
    offset, width, _kind = c.USAGE_FIELDS["used_bytes"]
    return int.from_bytes((node.jobs / "7" / c.FILE_USAGE).read_bytes()[offset:][:width], "little") >> 20


def test_the_agent_has_the_size_that_another_completed(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else it would find a job over what it had before, and end it."""
    seen = Slices(node.settings.run_dir)
    monkeypatch.setattr("hami_hpc.agent.slices.SETTLED_NS", 0)  # as long after
    for line in points():
        if not killed_at(line, lambda: resize(node, "mem=16G")):
            break
        found = seen.look()[0][0].grant
        assert sizes(found) == sizes(record(node)), line
        time.sleep(0.01)  # a tick of the kernel's clock
        assert node.prolog(9, gpu="1", **{c.ENV_MEM_MIB: "256"}) == 0
        assert sizes(seen.look()[0][0].grant) == sizes(record(node)), line
        assert node.epilog(9, gpu="1") == 0
        time.sleep(0.01)
        resize(node, "mem=8G")
        assert sizes(seen.look()[0][0].grant) == (8192, 50)
        time.sleep(0.01)
    assert line > 60, "hardly any line was traced"


# --- the program that SPANK starts


def run_program(node: Node, capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    status = stage.main([*arguments, *node.arguments], ENVIRONMENT)
    return status, capsys.readouterr().out


def test_the_program_says_in_one_line_what_it_did(node: Node, capsys: pytest.CaptureFixture[str]) -> None:
    given = ("--job", "7", "--uid", str(UID), "--size")
    assert run_program(node, capsys, *given, "dry-run,mem=16G") == (
        0,
        "job 7 could have 16384 MiB and 50 % of GPU 0 (before: 8192 MiB and 50 %)\n",
    )
    assert run_program(node, capsys, *given, "mem=16G")[0] == 0
    assert sizes(record(node)) == (16384, 50)
    status, line = run_program(node, capsys, *given, "mem=900G")
    assert (status, line.count("\n")) == (1, 1)
    assert run_program(node, capsys, "--job", "7", "--uid", "0", "--size", "mem=1G")[0] == 1, "uid 0 is no key"


@pytest.mark.parametrize(
    "arguments", [(), ("--job",), ("--job", "x", "--uid", "1", "--size", "mem=1G"), ("--job", "7", "--size", "mem=1G")]
)
def test_wrong_arguments_are_of_another_version(
    node: Node, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...]
) -> None:
    assert stage.main(arguments, ENVIRONMENT) == 1
    assert "install one version of both" in capsys.readouterr().out


def test_a_bug_is_reported_to_the_user_and_to_syslog(
    node: Node, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_shards, "read", lambda *_: 1 / 0)
    status, line = run_program(node, capsys, "--job", "7", "--uid", str(UID), "--size", "mem=16G")
    assert status == 1
    assert "This is a bug in hami_hpc" in line


def test_a_record_of_an_older_version_is_of_a_job_that_was_never_resized(node: Node) -> None:
    """It has zeros where this version has what was asked."""
    grant = job_dirs.read_grants(str(node.jobs / "7"))[0]
    assert (grant.asked_mem_mib, grant.asked_cores_percent, grant.most_mem_mib) == (0, 0, 0)
    assert grant.asked() == grant
    assert grant.most_mem() == 8192
