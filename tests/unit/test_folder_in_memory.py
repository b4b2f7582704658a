# SPDX-License-Identifier: Apache-2.0
"""The folder of tests that mount: not below /dev/shm, which jobs of other tests unmount, and gone afterwards."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from harness.mounting import can_mount, folder_in_memory


def mount_and_fail() -> None:
    with folder_in_memory("t-") as folder:
        assert folder.is_mount()
        assert not str(folder).startswith("/dev/shm")
        below = folder / "a"
        below.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "none", below], check=True)
        raise RuntimeError(folder)


@pytest.mark.skipif(not can_mount(), reason="nothing can be mounted here")
def test_it_is_a_file_system_of_its_own_and_leaves_no_mount() -> None:
    with pytest.raises(RuntimeError) as failed:
        mount_and_fail()
    [folder] = failed.value.args
    assert not folder.exists()
    assert str(folder) not in Path("/proc/self/mountinfo").read_text()
