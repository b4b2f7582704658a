# SPDX-License-Identifier: Apache-2.0
"""Whether tasks on this node can have a private /etc/ld.so.preload: the answer, and what to do where they cannot."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from hami_hpc.node import ldso


def test_a_missing_list_is_named_with_what_makes_it(tmp_path: Path) -> None:
    reason, advice = ldso.obstacle(tmp_path / "ld.so.preload")
    assert "does not exist" in reason
    assert advice == f"touch {tmp_path}/ld.so.preload"


def test_the_answer_is_what_a_task_would_find(tmp_path: Path) -> None:
    """Nothing in the way, or a reason and the setting for such nodes; and nothing is changed either way."""
    path = tmp_path / "ld.so.preload"
    path.touch()
    reason, advice = ldso.obstacle(path)
    assert bool(reason) == bool(advice)
    assert not reason or 'preload = "env"' in advice
    assert str(tmp_path) not in Path("/proc/self/mountinfo").read_text()
    assert list(tmp_path.iterdir()) == [path]


def test_without_cap_sys_admin_it_says_so(tmp_path: Path) -> None:
    path = tmp_path / "ld.so.preload"
    path.touch()
    script = f"from pathlib import Path; from hami_hpc.node.ldso import obstacle; print(*obstacle(Path('{path}')))"
    drop = ["setpriv", "--bounding-set=-sys_admin", "--inh-caps=-sys_admin"]
    done = subprocess.run([*drop, sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert "tasks cannot have their own mounts here" in done.stdout
    assert "run slurmd as root with CAP_SYS_ADMIN" in done.stdout
    assert 'preload = "env"' in done.stdout
