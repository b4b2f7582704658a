# SPDX-License-Identifier: Apache-2.0
"""`hami-hpc metrics`: prints, serves or writes; exit statuses; an ordinary user in the file's group."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from metrics_testbed import SECOND, AgentNode, make_state, parse

from hami_hpc.cli import main
from hami_hpc.cli.metrics_command import parse_address
from hami_hpc.metrics import textfile

ROOT = Path(__file__).resolve().parents[2]
GROUP = 54321


@pytest.fixture
def node(tmp_path: Path) -> AgentNode:
    return AgentNode(tmp_path)


def run(node: AgentNode, *arguments: str) -> Result:
    return CliRunner().invoke(main, ["metrics", "--config", str(node.config), *arguments])


@contextmanager
def started(node: AgentNode, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Runs the command in the background. Fails when SIGTERM does not end it with status 0."""
    command = [sys.executable, "-m", "hami_hpc.cli", "metrics", "--config", str(node.config), *arguments]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=ROOT) as process:
        try:
            yield process
            process.send_signal(signal.SIGTERM)
            assert process.wait(20) == 0
        finally:
            process.kill()


def test_it_prints_the_metrics(node: AgentNode) -> None:
    node.write(make_state())
    done = run(node)
    assert (done.exit_code, done.stderr) == (0, "")
    assert parse(done.stdout.encode())["hami_hpc_agent_up"] == {frozenset(): 1}


def test_without_an_agent_it_prints_that_and_ends_with_3(node: AgentNode, tmp_path: Path) -> None:
    done = run(node)
    assert done.exit_code == 3
    assert "Is the agent running?" in done.stderr
    assert parse(done.stdout.encode())["hami_hpc_agent_up"] == {frozenset(): 0}
    done = run(node, "--textfile", str(tmp_path / "hami.prom"))
    assert (done.exit_code, done.stdout) == (3, "")
    assert parse((tmp_path / "hami.prom").read_bytes())["hami_hpc_agent_up"] == {frozenset(): 0}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--listen", "127.0.0.1:0", "--textfile", "x.prom"), "cannot be combined"),
        (("--every", "5"), "needs --textfile"),
        (("--token-file", "x"), "needs --listen"),
        (("--textfile", "x.txt"), ".prom"),
        (("--textfile", "x.prom", "--every", "0.5"), "0.5"),
        (("--listen", "example.com:1"), "not ADDRESS:PORT"),
        (("--listen", "127.0.0.1:65536"), "not ADDRESS:PORT"),
    ],
)
def test_a_wrong_command_line_ends_with_2(node: AgentNode, arguments: tuple[str, ...], said: str) -> None:
    done = run(node, *arguments)
    assert done.exit_code == 2
    assert said in done.output


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("10.0.0.1:99", ("10.0.0.1", 99)),
        ("10.0.0.1", ("10.0.0.1", 9855)),
        ("9900", ("127.0.0.1", 9900)),
        (":9900", ("127.0.0.1", 9900)),
        ("localhost:1", ("127.0.0.1", 1)),
        ("::1", ("::1", 9855)),
        ("[::1]:99", ("::1", 99)),
        ("[::1]", ("::1", 9855)),
    ],
)
def test_an_address_has_the_documented_defaults(text: str, expected: tuple[str, int]) -> None:
    assert parse_address(text) == expected


def test_what_cannot_be_done_ends_with_1(node: AgentNode, tmp_path: Path) -> None:
    node.write(make_state())
    done = run(node, "--textfile", str(tmp_path / "missing" / "hami.prom"))
    assert (done.exit_code, done.stdout) == (1, "")
    assert "No such file" in done.stderr
    (tmp_path / "token").write_text(" \n")
    done = run(node, "--listen", "127.0.0.1:0", "--token-file", str(tmp_path / "token"))
    assert done.exit_code == 1
    assert "has no token" in done.stderr
    done = run(node, "--listen", "192.0.2.1:0")
    assert done.exit_code == 1
    assert "cannot listen on 192.0.2.1" in done.stderr


def test_without_prometheus_client_it_says_what_to_install(node: AgentNode) -> None:
    code = (
        "import sys; sys.modules['prometheus_client'] = None\n"
        f"sys.argv = ['hami-hpc', 'metrics', '--config', {str(node.config)!r}]\n"
        "from hami_hpc.cli import main; main()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 1
    assert "pip install prometheus-client" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_textfile_is_replaced_whole_and_readable_by_node_exporter(node: AgentNode, tmp_path: Path) -> None:
    node.write(make_state())
    path = tmp_path / "collector" / "hami.prom"
    path.parent.mkdir()
    path.write_text("old")
    with path.open() as old:
        assert run(node, "--textfile", str(path)).exit_code == 0
        assert old.read() == "old", "the old file was not written to"
    assert parse(path.read_bytes())["hami_hpc_agent_up"] == {frozenset(): 1}
    assert path.stat().st_mode & 0o777 == 0o644
    assert list(path.parent.iterdir()) == [path]


def test_a_textfile_that_cannot_be_written_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_fd: int, _mode: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fchmod", fail)
    with pytest.raises(OSError, match=f"No space left on device: '{tmp_path}/hami.prom'"):
        textfile.write(tmp_path / "hami.prom", b"x")
    assert list(tmp_path.iterdir()) == []


def test_a_textfile_of_a_link_replaces_the_link_and_not_its_target(tmp_path: Path) -> None:
    (tmp_path / "target").write_text("kept")
    (tmp_path / "hami.prom").symlink_to(tmp_path / "target")
    textfile.write(tmp_path / "hami.prom", b"new")
    assert (tmp_path / "target").read_text() == "kept"
    assert (tmp_path / "hami.prom").read_bytes() == b"new"


def wait_for(path: Path, text: bytes) -> None:
    deadline = time.monotonic() + 20
    while not path.exists() or text not in path.read_bytes():
        assert time.monotonic() < deadline, f"{path} never had {text!r}"
        time.sleep(0.05)


def test_every_writes_again_until_it_is_stopped(node: AgentNode, tmp_path: Path) -> None:
    path = tmp_path / "hami.prom"
    with started(node, "--textfile", str(path), "--every", "1"):
        wait_for(path, b"hami_hpc_agent_up 0.0")
        node.write(make_state())
        wait_for(path, b"hami_hpc_agent_up 1.0")
    assert list(tmp_path.glob(".hami*")) == []


def test_every_goes_on_when_the_file_can_be_written_again(node: AgentNode, tmp_path: Path) -> None:
    path = tmp_path / "collector" / "hami.prom"
    path.parent.mkdir()
    with started(node, "--textfile", str(path), "--every", "1") as process:
        assert process.stderr is not None
        wait_for(path, b"hami_hpc_agent_up 0.0")
        path.parent.rename(tmp_path / "away")
        assert "Is the agent running?" in process.stderr.readline()
        assert process.stderr.readline() == f"{path}: No such file or directory (tried again each 1 s)\n"
        path.parent.mkdir()
        assert process.stderr.readline() == f"{path} is written again\n"
        wait_for(path, b"hami_hpc_agent_up 0.0")


def fetch(url: str, **headers: str) -> str:
    with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=20) as answer:
        return str(answer.read().decode())


def test_listen_serves_a_state_that_appears_and_ages(node: AgentNode, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("s3cret\n")
    with started(node, "--listen", "127.0.0.1:0", "--token-file", str(tmp_path / "token")) as process:
        assert process.stderr is not None
        url = f"http://{process.stderr.readline().split()[-1]}"
        assert "Is the agent running?" in process.stderr.readline()
        assert fetch(f"{url}/healthz") == "ok\n"
        with pytest.raises(urllib.error.HTTPError, match="401") as refused:
            fetch(f"{url}/metrics")
        refused.value.close()
        key = {"Authorization": "Bearer s3cret"}
        assert "hami_hpc_agent_up 0.0" in fetch(f"{url}/metrics", **key)
        time.sleep(1.1)  # the same text is served for a second
        node.write(make_state())
        assert "hami_hpc_agent_up 1.0" in fetch(f"{url}/metrics", **key)
        assert "the agent looks" in process.stderr.readline()
        time.sleep(1.1)
        state = make_state()
        node.write(state._replace(boot_time_ns=state.boot_time_ns - 60 * SECOND))
        assert 'hami_hpc_agent_status{status="stale"} 1.0' in fetch(f"{url}/metrics", **key)
        assert "last looked" in process.stderr.readline()


@pytest.mark.parametrize(("group", "status"), [(GROUP, "looking"), (GROUP + 1, "unreadable")])
def test_an_ordinary_user_needs_the_group_of_the_file(node: AgentNode, group: int, status: str) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root, to become another user")
    node.write(make_state())
    for path in (node.state_file, node.state_file.parent):
        os.chown(path, 0, GROUP)
    node.state_file.parent.chmod(0o750)
    code = (
        "import os, sys\n"
        "from hami_hpc.metrics.exposition import expose\n"
        "os.chdir(sys.argv[1])  # pytest's folders above it are root's alone\n"
        f"os.setgroups([{group}]); os.setgid(65534); os.setuid(65534)\n"
        "print(expose('.').status)\n"
    )
    command = [sys.executable, "-c", code, node.run_dir]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=True)
    assert done.stdout.strip() == status
