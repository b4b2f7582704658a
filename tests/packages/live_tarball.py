# SPDX-License-Identifier: Apache-2.0
"""A node's tarball in a fresh chroot without network; the RPMs, built, installed and removed there by Debian's rpm."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from chroots import Machine, machine
from hami_packages import release, rpm

ROOT = Path(__file__).resolve().parents[2]
BASE = ROOT / "build/packages-base/root"
PACKAGES = ROOT / "build/packages"
NODE = ("common", "slurm", "node")


@pytest.fixture
def fresh(tmp_path: Path) -> Iterator[Machine]:
    with machine(BASE, tmp_path, PACKAGES) as made:
        yield made


@pytest.fixture
def unpacked(fresh: Machine) -> str:
    (path,) = PACKAGES.glob("hami-hpc-node-*.tar.gz")
    fresh.check("tar", "-xzf", f"/shared/{path.name}", "-C", "/tmp")
    return f"/tmp/{path.name.removesuffix('.tar.gz')}"


def test_a_tarball_is_installed_by_one_command_and_removed_by_another(fresh: Machine, unpacked: str) -> None:
    before = fresh.state()
    said = fresh.check(f"{unpacked}/install")
    assert "Slurm's daemons were not restarted" in said
    assert fresh.check("hami-hpc", "--version").startswith("hami-hpc, version 0.")
    fresh.prepare_node()
    assert fresh.stage("prolog", 7).returncode == 0
    uninstall = "/usr/libexec/hami-hpc/uninstall"
    refused = fresh.run(uninstall)
    assert refused.returncode == 1
    assert "vgpu jobs run on this node" in refused.stderr
    fresh.check(f"{unpacked}/install")  # an upgrade, while the job runs
    assert [job["job_id"] for job in json.loads(fresh.check("hami-hpc", "jobs", "--format", "json"))] == [7]
    assert fresh.stage("epilog", 7).returncode == 0
    fresh.check(uninstall)
    left = {name for name, text in fresh.state().items() if before.get(name) != text and not text.startswith("d")}
    assert left == {
        "etc/hami-hpc/hami-hpc.toml",
        "etc/ld.so.preload",
        *(name for name in left if name.startswith("var/lib/hami-hpc/")),
    }


def test_a_tarball_is_refused_beside_another_slurm_and_beside_packages(fresh: Machine, unpacked: str) -> None:
    fresh.path("/usr/sbin/slurmd").unlink()
    fresh.path("/usr/sbin/slurmd").write_text("#!/bin/sh\necho slurm-wlm 21.08.1\n")
    fresh.path("/usr/sbin/slurmd").chmod(0o755)
    before = fresh.state()
    done = fresh.run(f"{unpacked}/install")
    assert done.returncode == 1
    assert "and this machine has 21.08.1" in done.stderr
    assert fresh.state() == before
    common = next(PACKAGES.glob("hami-hpc-common_*.deb")).name
    fresh.check("dpkg", "--install", f"/shared/{common}")
    done = fresh.run(f"{unpacked}/install", FORCE="1")
    assert "a Debian package or an RPM has installed hami_hpc here" in done.stderr


def built(fresh: Machine, version: str) -> list[str]:
    """RPMs of the trees, built in the chroot by Debian's rpmbuild."""
    (tarball,) = PACKAGES.glob("hami-hpc-node-*.tar.gz")
    slurm = tarball.name.rpartition("-slurm")[2].partition("-")[0]
    (library,) = (PACKAGES / "trees/common/usr/lib/hami-hpc/python/lib").glob("python3.*")
    places = dict.fromkeys(release.PLACES, "/usr") | {
        "SYSCONFDIR": "/etc",
        "LIBDIR": "/usr/lib/hami-hpc",
        "LIBEXECDIR": "/usr/libexec/hami-hpc",
        "TMPFILESDIR": "/usr/lib/tmpfiles.d",
    }
    this = release.Release(version, slurm, library.name.removeprefix("python"), places, 1_800_000_000)
    text = rpm.spec(NODE, PACKAGES / "trees", this).replace(str(PACKAGES), "/shared")
    fresh.path("/tmp/hami-hpc.spec").write_text(text)
    fresh.check("rpmspec", "--parse", "/tmp/hami-hpc.spec")
    fresh.check(
        "rpmbuild", "--quiet", "--nodeps", "-bb", "--define", f"_topdir /tmp/rpm-{version}", "/tmp/hami-hpc.spec"
    )
    found = sorted(fresh.path(f"/tmp/rpm-{version}/RPMS").rglob("*.rpm"))
    assert [path.name.partition(f"-{version}")[0] for path in found] == [f"hami-hpc-{part}" for part in sorted(NODE)]
    return [f"/{path.relative_to(fresh.root)}" for path in found]


def test_rpms_install_upgrade_and_are_erased(fresh: Machine) -> None:
    """Debian's rpm does not know Debian's packages: --nodeps. What they require is looked at."""
    one, two = built(fresh, "1.0"), built(fresh, "2.0")
    needs = fresh.check("rpm", "--query", "--package", "--requires", next(name for name in one if "-slurm-1" in name))
    assert "slurm = " in needs
    assert "hami-hpc-common = 1.0-slurm" in needs
    before = fresh.state()
    fresh.check("rpm", "--force-debian", "--nodeps", "--install", *one)
    assert fresh.check("hami-hpc", "--version").startswith("hami-hpc, version 0.")
    fresh.prepare_node()
    assert fresh.stage("prolog", 7).returncode == 0
    assert fresh.run("rpm", "--force-debian", "--erase", "--nodeps", "hami-hpc-node").returncode != 0
    assert fresh.path("/usr/lib/hami-hpc/libhami-hpc.so").exists()
    fresh.check("rpm", "--force-debian", "--nodeps", "--upgrade", *two)
    assert fresh.check("hami-hpc", "jobs").count("8") > 0
    assert fresh.stage("epilog", 7).returncode == 0
    fresh.check("rpm", "--force-debian", "--erase", "hami-hpc-node", "hami-hpc-slurm", "hami-hpc-common", "--nodeps")
    left = {name for name, text in fresh.state().items() if before.get(name) != text and not text.startswith("d")}
    assert {name for name in left if not name.startswith(("var/lib/hami-hpc/", "var/lib/rpm/", "root/.rpmdb/"))} == {
        "etc/hami-hpc/hami-hpc.toml",
        "etc/ld.so.preload",
    }
