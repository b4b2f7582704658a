# SPDX-License-Identifier: Apache-2.0
"""doctor on container runtimes: content where the limits reach containers, silent where there is no runtime."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from hami_hpc import places
from hami_hpc.doctor import container_checks
from hami_hpc.doctor.facts import Facts

LIBRARY = "/l/libhami-hpc.so"
BINDS = f"""bind path = /run/hami-hpc/self
bind path = /run/hami-hpc/self/container.preload:/etc/ld.so.preload
bind path = {LIBRARY}
"""


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(container_checks, "ROOT", tmp_path)
    return tmp_path


def levels(root: Path, **settings: Any) -> dict[str, str]:
    values = SimpleNamespace(preload="ldso", interposer=LIBRARY, **settings)
    facts = cast("Facts", SimpleNamespace(settings=values, conf_dir=str(root / "slurm")))
    return {found.what: found.level.value for found in container_checks.check_containers(facts)}


def write(path: Path, text: str, mode: int = 0o644) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(mode)


def test_a_node_without_runtimes_has_no_finding(root: Path) -> None:
    assert levels(root) == {}
    write(root / "slurm/oci.conf", "FileDebug=debug\n")
    assert levels(root) == {}, "an oci.conf that starts nothing"


def test_runtimes_that_let_the_limits_in_are_well(root: Path) -> None:
    write(root / "etc/apptainer/apptainer.conf", "user bind control = yes\n")
    write(root / "etc/singularity/singularity.conf", f"user bind control = no\n{BINDS}")
    hook = root / "etc/enroot/hooks.d/50-hami-hpc.sh"
    hook.parent.mkdir(parents=True)
    hook.symlink_to(places.HOOKS / "enroot/50-hami-hpc.sh")
    write(root / "slurm/oci.conf", 'RunTimeRun="/usr/libexec/hami-hpc/oci-mounts %b && runc run --bundle %b %j"\n')
    write(root / "usr/bin/podman", "")
    write(
        root / "etc/containers/containers.conf.d/50-hami-hpc.conf",
        f'[engine]\nhooks_dir = ["{root}/hami-hpc/podman"]\n',
    )
    found = levels(root)
    assert found == dict.fromkeys(("apptainer", "singularity", "enroot", "oci.conf", "podman"), "OK")


@pytest.mark.parametrize("left_out", range(3))
def test_each_of_the_binds_is_needed_where_users_cannot_bind(root: Path, left_out: int) -> None:
    lines = BINDS.splitlines()
    del lines[left_out]
    write(root / "etc/apptainer/apptainer.conf", "\n".join(["user bind control = no", *lines]))
    assert levels(root) == {"apptainer": "WARN"}


def test_a_hook_that_enroot_would_not_run_does_not_count(root: Path) -> None:
    text = (places.HOOKS / "enroot/50-hami-hpc.sh").read_text()
    write(root / "etc/enroot/hooks.d/50-hami-hpc.sh", text)
    assert levels(root) == {"enroot": "WARN"}, "not executable"
    write(root / "etc/enroot/hooks.d/50-hami-hpc.sh.rpmsave", text, 0o755)
    assert levels(root) == {"enroot": "WARN"}


def test_what_the_advice_names_exists() -> None:
    assert places.OCI_MOUNTS.stat().st_mode & 0o111
    assert (places.HOOKS / "enroot/50-hami-hpc.sh").stat().st_mode & 0o111
    assert (places.HOOKS / "podman/hami-hpc.json").exists()
