# SPDX-License-Identifier: Apache-2.0
"""The doctor's checks of mode=share, each with its whole finding."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from node_testbed import Node

from hami_hpc.core.finding import Finding, Level, finding
from hami_hpc.errors import NodeError
from hami_hpc.isolation import share_checks
from hami_hpc.isolation.table import backend_of
from hami_hpc.node import ldso
from hami_hpc.node.config import Settings, load_settings

NAMESPACES_ADVICE = "sysctl user.max_user_namespaces=0 on GPU nodes, unless containers of users need them"
SEEN = "users can hide /etc/ld.so.preload from their own programs"


class Host:
    """What the checks look at, below a directory of the test's."""

    def __init__(self, base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.config = Node.make(base / "node").config
        self.plain = self.config.read_text()
        self.interposer = base / "libhami-hpc.so"
        self.interposer.write_text("")
        self.interposer.chmod(0o644)
        self.most = base / "max_user_namespaces"
        self.most.write_text("0\n")
        self.switch = base / "unprivileged_userns_clone"
        self.tried: list[Path] = []
        self.obstacle = ("", "")
        self.uid = 0
        monkeypatch.setattr(share_checks, "USER_NAMESPACES", self.most)
        monkeypatch.setattr(share_checks, "USER_NAMESPACES_OFF", self.switch)
        monkeypatch.setattr(share_checks, "LD_SO_PRELOAD", base / "ld.so.preload")
        monkeypatch.setattr(ldso, "obstacle", self.try_mounts)
        monkeypatch.setattr(os, "geteuid", lambda: self.uid)

    def try_mounts(self, path: Path) -> tuple[str, str]:
        self.tried.append(path)
        return self.obstacle

    def settings(self, preload: str) -> Settings:
        more = f'[vgpu]\npreload = "{preload}"\n[paths]\ninterposer = "{self.interposer}"'
        self.config.write_text(self.plain.replace("[paths]", more))
        return load_settings(str(self.config))

    def check(self, preload: str = "ldso") -> list[Finding]:
        return list(backend_of("share").check(self.settings(preload)))


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    return Host(tmp_path, monkeypatch)


def test_a_finding_has_advice_only_when_something_is_wrong() -> None:
    assert finding("a", True, "b", "c") == Finding("a", Level.OK, "b", "")
    assert finding("a", False, "b", "c") == Finding("a", Level.FAIL, "b", "c")
    assert finding("a", False, "b", "c", Level.WARN) == Finding("a", Level.WARN, "b", "c")
    assert [Finding("a", level, "").is_ok for level in Level] == [True, False, False]


def test_a_node_that_has_everything(host: Host) -> None:
    assert host.check() == [
        Finding("interposer", Level.OK, str(host.interposer)),
        Finding("preload", Level.OK, f"ldso: {share_checks.LD_SO_PRELOAD}"),
        Finding("user namespaces", Level.OK, "0 allowed"),
    ]
    assert host.tried == [share_checks.LD_SO_PRELOAD]


def test_an_interposer_that_is_not_there(host: Host) -> None:
    host.interposer.unlink()
    advice = "install hami_hpc here (make install), or correct [paths]"
    assert host.check()[0] == Finding("interposer", Level.FAIL, f"{host.interposer}: No such file or directory", advice)


@pytest.mark.parametrize(
    ("owner", "mode", "level"),
    [
        (0, 0o604, Level.OK),
        (0, 0o755, Level.OK),
        (0, 0o640, Level.FAIL),
        (0, 0o641, Level.FAIL),
        (0, 0o646, Level.FAIL),
        (0, 0o664, Level.FAIL),
        (1, 0o644, Level.FAIL),
    ],
)
def test_the_interposer_is_roots_and_everybody_can_read_it(host: Host, owner: int, mode: int, level: Level) -> None:
    os.chown(host.interposer, owner, -1)
    host.interposer.chmod(mode)
    advice = "" if level is Level.OK else f"chown root {host.interposer}; chmod 0644 {host.interposer}"
    assert host.check()[0] == Finding("interposer", level, str(host.interposer), advice)


def test_mounts_that_cannot_be_made(host: Host) -> None:
    host.obstacle = ("no mounts here", "do this")
    assert host.check()[1] == Finding("preload", Level.FAIL, "ldso: no mounts here", "do this")


def test_a_preload_by_environment_is_warned_of(host: Host) -> None:
    assert host.check("env")[1] == Finding(
        "preload",
        Level.WARN,
        "env: a program that clears its environment is not fenced",
        'set preload = "ldso" in [vgpu], render, restart slurmd',
    )
    assert host.tried == []


@pytest.mark.parametrize("preload", ["ldso", "env"])
def test_only_root_can_check(host: Host, preload: str) -> None:
    host.uid = 1
    with pytest.raises(NodeError) as caught:
        host.check(preload)
    assert str(caught.value) == "only root can try the mounts of preload: run this as root"


@pytest.mark.parametrize(
    ("most", "switch", "allowed"),
    [("0", None, 0), ("1", None, 1), ("15000", "1", 15000), ("15000", "0", 0), ("0", "1", 0)],
)
def test_user_namespaces_are_warned_of(host: Host, most: str, switch: str | None, allowed: int) -> None:
    host.most.write_text(f"{most}\n")
    if switch is not None:
        host.switch.write_text(f"{switch}\n")
    expected = Finding("user namespaces", Level.OK, "0 allowed")
    if allowed:
        expected = Finding("user namespaces", Level.WARN, f"{allowed} allowed: {SEEN}", NAMESPACES_ADVICE)
    assert host.check()[2] == expected


@pytest.mark.parametrize("text", [None, "x"])
def test_a_limit_that_cannot_be_read(host: Host, text: str | None) -> None:
    host.most.unlink()
    if text is not None:
        host.most.write_text(text)
    with pytest.raises(NodeError, match=r"max_user_namespaces cannot be read \(.+\)$"):
        host.check()
