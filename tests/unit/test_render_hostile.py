# SPDX-License-Identifier: Apache-2.0
"""render where files are not as they should be: odd bytes, links, pipes, other users' directories, runs that died."""

from __future__ import annotations

import fcntl
import itertools
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from forked import points
from harness.mounting import can_mount
from node_testbed import ROOT, Node
from test_crash import killer as killer  # a fixture
from test_render_site import merged, render, snapshot
from test_render_site import node as node  # a fixture

from hami_hpc.render import on_disk
from hami_hpc.render.marks import blocks, is_ours

FRAGMENT = "slurm-hami-hpc.conf"


@pytest.fixture
def etc(node: Node) -> Path:
    etc = node.root / "etc"
    etc.mkdir()
    return etc


@pytest.mark.parametrize("name", ["gres.conf", "plugstack.conf", "cgroup.conf", "job_submit.lua"])
def test_a_comment_that_is_no_utf8_is_no_obstacle(node: Node, etc: Path, name: str) -> None:
    (etc / "slurm.conf").write_bytes(b"# caf\xe9\r\nClusterName=x\r\n")
    (etc / name).write_bytes(b"# caf\xe9\n")
    assert render(node, "--cgroup").exit_code == 3
    assert (etc / name).read_bytes() == b"# caf\xe9\n"


@pytest.mark.parametrize("name", ["slurm.conf", "gres.conf", "plugstack.conf", "cgroup.conf", FRAGMENT])
def test_a_pipe_in_a_files_place_is_refused_at_once(node: Node, etc: Path, name: str) -> None:
    os.mkfifo(etc / name)
    done = render(node, "--cgroup")
    assert done.exit_code == 1
    assert str(etc / name) in done.output
    assert "is not a regular file" in done.output
    assert [path.name for path in etc.iterdir()] == [name]


def test_own_files_with_other_line_ends_are_edited_files(node: Node, etc: Path) -> None:
    render(node)
    path = etc / "plugstack.conf.d" / "hami-hpc.conf"
    path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))
    done = render(node)
    assert done.exit_code == 1
    assert "was edited" in done.output


def test_a_plugstack_conf_with_carriage_returns_is_to_be_converted(node: Node, etc: Path) -> None:
    (etc / "plugstack.conf").write_bytes(b"include plugstack.conf.d/*.conf\r\n")
    lines = merged(render(node).output)
    assert f"sed -i 's/\\r$//' {etc}/plugstack.conf" in lines
    assert f"include {etc}/plugstack.conf.d/hami-hpc.conf" in lines, "Slurm includes nothing as it is"
    subprocess.run(["sh", "-c", lines[0]], check=True)
    assert (render(node).exit_code, merged(render(node).output)) == (0, [])


def test_blanks_around_the_equals_sign_of_gres_conf_are_read(node: Node, etc: Path) -> None:
    (etc / "gres.conf").write_text('Name = gpu Type = "a100" File = /dev/nvidia[0-1]\n')
    assert "Name=gpu Type=h200 File=/dev/nvidia[0-1]" in merged(render(node).output)


def test_what_is_to_be_merged_keeps_blanks_and_percent_signs_of_the_sites(node: Node, etc: Path) -> None:
    prolog = etc / "100% my 'prolog'"
    prolog.write_text("#!/bin/sh\necho ran\n")
    prolog.chmod(0o755)
    (etc / "slurm.conf").write_text(f'Prolog="{prolog}"\nPluginDir="/a b:/c"\n')
    lines = merged(render(node, "--plugin-dir", "/d").output)
    assert 'PluginDir="/a b:/c:/d"' in lines
    for line in lines:
        if line.startswith(("mkdir", "printf", "chmod")):
            subprocess.run(["sh", "-c", line], check=True)
    done = subprocess.run([etc / "hami-hpc-prolog.d/50-site"], capture_output=True, text=True, check=True)
    assert done.stdout == "ran\n"


@pytest.mark.parametrize("name", ["gpu[1-2]", "DEFAULT", "a b", "a\nInclude /x", "", "-x", "a,b", "n\u00e9", "\udcff"])
def test_a_name_of_no_single_node_is_refused(node: Node, name: str) -> None:
    done = render(node, name=name)
    assert done.exit_code == 1, done.output
    assert done.output.startswith("Error: --node ")
    assert not (node.root / "etc").exists()


@pytest.mark.parametrize("name", ["NODE1", "node1.example.org", "1", "a_b-c"])
def test_other_names_of_nodes_are_written_as_they_are(node: Node, name: str) -> None:
    assert render(node, name=name).exit_code == 0
    assert f"\nNodeName={name} Gres=" in (node.root / "etc" / FRAGMENT).read_text()


@pytest.mark.parametrize(
    "option",
    [
        ("--output", "/x/my slurm"),
        ("--device", "/dev/x\ny"),
        ("--prolog", "/a'b"),
        ("--node-parameters", "CPUs=1\nA=b"),
    ],
)
def test_what_no_line_could_hold_is_refused(node: Node, option: tuple[str, str]) -> None:
    done = render(node, option[0], option[1].format(etc=node.root / "etc"))
    assert done.exit_code == 1
    assert done.output.startswith(f"Error: {option[0]} '")
    assert done.output.count("\n") == 1


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("64", "is no list of KEY=VALUE"),
        ("CPUs=64 # large", "is no list of KEY=VALUE"),
        ("CPUs=64 \\", "is no list of KEY=VALUE"),
        ("CPUs=64,RealMemory=9 x", "is no list of KEY=VALUE"),
        ("CPUs=64 Gres=nic:2", "has Gres=, which render writes itself. For values of your own write the NodeName line"),
        ("feature=fast", "has Feature=, which render writes itself"),
        ("NodeName=n2", "has NodeName=, which render writes itself"),
    ],
)
def test_parameters_that_would_spoil_the_nodes_line_are_refused(node: Node, text: str, said: str) -> None:
    done = render(node, "--node-parameters", text)
    assert (done.exit_code, said in done.output) == (1, True), done.output
    assert not (node.root / "etc").exists()


def test_parameters_in_quotes_and_with_blanks_are_kept(node: Node) -> None:
    text = 'CPUs=64  RealMemory=9 Reason="new node" Weight=1'
    assert render(node, "--node-parameters", text).exit_code == 0
    assert f"\nNodeName=node1 {text} Gres=" in (node.root / "etc" / FRAGMENT).read_text()


def test_links_planted_for_the_temporary_files_are_not_followed(node: Node, etc: Path, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("kept\n")
    victim.chmod(0o600)
    for name in (FRAGMENT, "gres.conf"):
        for pid in (os.getpid(), "new"):
            (etc / f".{name}.{pid}").symlink_to(victim)
    assert render(node).exit_code == 0
    assert victim.read_text() == "kept\n"
    assert victim.stat().st_mode & 0o777 == 0o600
    assert is_ours((etc / FRAGMENT).read_text())


def test_users_can_read_what_is_written_whatever_the_umask(node: Node) -> None:
    before = os.umask(0o077)
    try:
        assert render(node).exit_code == 0
    finally:
        os.umask(before)
    etc = node.root / "etc"
    for path in (etc, *etc.rglob("*")):
        assert path.stat().st_mode & 0o044 == 0o044, path
        assert path.stat().st_mode & 0o001 or not path.is_dir(), path


def test_a_directory_that_others_can_write_is_named(node: Node, etc: Path) -> None:
    assert "can be written by others" not in render(node).output
    etc.chmod(0o777)
    assert f"note: {etc} can be written by others than root" in render(node).output
    etc.chmod(0o755)
    os.chown(etc, 65534, 65534)
    assert f"note: {etc} can be written by others than root" in render(node).output


def failed_render(node: Node, etc: Path, *before: str) -> str:
    """Runs render, which fails. Returns its one line on standard error; it leaves no half-written file."""
    command = [*before, *command_of(node), "-o", str(etc)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert [path for path in etc.rglob("*") if ".new" in path.name] == []
    (line,) = done.stderr.splitlines()
    return line


def test_a_disk_that_takes_nothing_more_ends_in_one_line(node: Node, etc: Path) -> None:
    assert "cannot be written (File too large)" in failed_render(node, etc, "prlimit", "--fsize=512")
    if not can_mount():
        return
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=32k", "none", etc], check=True)
    try:
        (etc / "fill").write_bytes(bytes(7 << 12))
        assert "cannot be written (No space left on device)" in failed_render(node, etc)
        subprocess.run(["mount", "-o", "remount,ro", etc], check=True)
        assert "Read-only file system" in failed_render(node, etc)
    finally:
        subprocess.run(["umount", etc], check=True)


def test_a_disk_that_takes_some_of_the_files_keeps_all_as_they_were(node: Node, etc: Path) -> None:
    """A slurm.conf with the new counts of Gres= beside a gres.conf with the old ones would drain the node."""
    render(node, gpus="h200:1")
    before = snapshot(etc)
    line = failed_render(node, etc, "prlimit", "--fsize=2048")
    assert line.endswith("cannot be written (File too large). No file was changed")
    assert snapshot(etc) == before


def test_one_who_locks_the_directory_keeps_nobody_from_rendering(node: Node, etc: Path) -> None:
    """Every user can open it, and so lock it."""
    fd = os.open(etc, os.O_RDONLY)
    try:
        as_nobody(lambda: fcntl.flock(fd, fcntl.LOCK_EX))
        command = [*command_of(node), "-o", str(etc)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=60)
    finally:
        os.close(fd)
    assert done.returncode == 0, done.stderr
    assert not (etc / on_disk.LOCK).exists()


def test_a_render_that_another_one_keeps_waiting_says_so(
    node: Node, etc: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(on_disk, "LOCK_S", 0.1)
    with on_disk.locked(etc):
        assert (etc / on_disk.LOCK).stat().st_mode & 0o777 == 0o600
        done = render(node)
    assert done.exit_code == 1
    path = etc / on_disk.LOCK
    assert f"lock {path}: another process has held it for over 0.1 s: see fuser {path}" in done.output
    assert list(etc.iterdir()) == []


def command_of(node: Node) -> list[str]:
    command = [sys.executable, "-m", "hami_hpc.cli", "render", "--config", str(node.config)]
    return [*command, "--gpus", "h200:2", "--node", "node1"]


def test_a_render_killed_before_any_file_changing_call_is_made_good_by_the_next(node: Node, killer: Path) -> None:
    etc = node.root / "etc"
    render(node, name="node0")
    render(node)
    good = {name: value[:2] for name, value in snapshot(etc).items()}
    for call in itertools.takewhile(lambda call: call < 200, points()):
        (etc / "gres.conf").unlink()
        (etc / "plugstack.conf.d" / "hami-hpc.conf").unlink()
        render(node, gpus="h200:1")
        given = {"LD_PRELOAD": str(killer), "KILL_AT": str(call), "PYTHONDONTWRITEBYTECODE": "1"}
        command = [*command_of(node), "-o", str(etc)]
        done = subprocess.run(command, env=os.environ | given, cwd=ROOT, capture_output=True, check=False)
        assert done.returncode in (0, -signal.SIGKILL), done.stderr
        for name in (FRAGMENT, "hami-hpc-gres.conf"):
            text = (etc / name).read_text()
            assert is_ours(text)
            assert "node0" in blocks(text)
        assert render(node).exit_code == 0
        assert {name: value[:2] for name, value in snapshot(etc).items()} == good, f"killed at call {call}"
        if done.returncode == 0:
            break
    assert 5 < call < 196


def test_a_directory_that_cannot_be_entered_ends_in_one_line(tmp_path: Path) -> None:
    node = Node.make(tmp_path / "node", with_gpus=False)
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    with pytest.raises(Exception, match="cannot be read"):
        as_nobody(lambda: on_disk.state(closed / "x", ""))
    assert node.config.exists()


def as_nobody(body: object) -> None:
    """Runs a function with uid 65534's rights."""
    os.seteuid(65534)
    try:
        body()  # type: ignore[operator]
    finally:
        os.seteuid(0)


def test_lines_of_gres_mps_go_and_what_to_do_is_said(node: Node, etc: Path) -> None:
    """Also of a line for all nodes; not of another node's."""
    mine = ("NodeName=node1 Name=mps Count=100 File=/dev/nvidia0", "Name=MPS Count=100")
    (etc / "gres.conf").write_text("\n".join((*mine, "NodeName=other Name=mps Count=100")) + "\n")
    done = render(node)
    assert done.exit_code == 3, done.output
    assert "once no job has gres/mps, which cannot be beside slices on a GPU" in done.output
    assert "take mps out of GresTypes, Gres= and AccountingStorageTRES" in done.output
    assert all(line in done.output for line in mine)
    assert "NodeName=other" not in done.output
