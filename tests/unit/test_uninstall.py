# SPDX-License-Identifier: Apache-2.0
"""make uninstall: nothing of ours is left, nothing of others' gone, and nothing that still needs it breaks."""

from __future__ import annotations

import hashlib
import os
import subprocess
from pathlib import Path

import pytest
from install_testbed import files, make_install, seed_venv
from node_testbed import ROOT, Node

PLUGSTACK = "etc/slurm/plugstack.conf"
# What stands on a machine beside an installation: Slurm's own, the site's settings and filter, accounting's data.
OTHERS = {
    "etc/slurm/slurm.conf": "ClusterName=site\nJobSubmitPlugins=lua\nGresTypes=gpu,shard\n# vgpu\n",
    "etc/slurm/cli_filter.lua": "-- the site's own\n",
    PLUGSTACK: "include plugstack.conf.d/*.conf\n",
    "etc/hami-hpc/hami-hpc.toml": "version = 1\n",
    "etc/hami-hpc/rates.toml": "version = 1\n",
    "var/lib/hami-hpc/usage/7.json": "{}",
    "var/lib/hami-hpc/accounting/manifest.json": "{}",
    "usr/lib/plugins/gres_gpu.so": "Slurm's",
    "usr/bin/sbatch": "Slurm's",
}
WITH_OTHERS = {"PLUGINDIR": "/usr/lib/plugins"}


def uninstall(places: dict[str, str], **environment: str) -> subprocess.CompletedProcess[str]:
    command = ["make", "uninstall", *(f"{name}={value}" for name, value in places.items())]
    return subprocess.run(command, cwd=ROOT, env=os.environ | environment, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What pip installs of this checkout, built once."""
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run((ROOT / "scripts/wheel", folder, "0.1.0"), check=True, capture_output=True)
    (built,) = folder.glob("*.whl")
    return f"--no-deps --no-index {built}"


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """A DESTDIR with others' files; job_submit is Slurm's own until hami_hpc is installed."""
    for name, text in OTHERS.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def test_what_install_brings_uninstall_takes_away_and_nothing_else_twice(machine: Path, wheel: str) -> None:
    places = {"DESTDIR": str(machine), **WITH_OTHERS}
    conf = machine / "etc/slurm/slurm.conf"
    without_lua = conf.read_text().replace("JobSubmitPlugins=lua\n", "")
    conf.write_text(without_lua)
    before = files(machine)
    for _ in range(2):
        seed_venv(machine / "usr/lib/hami-hpc/venv")
        stale = machine / "usr/share/hami-hpc/template-of-before"
        stale.parent.mkdir(parents=True)
        stale.write_text("ours")
        line = f"{hashlib.sha256(b'ours').hexdigest()}  /usr/share/hami-hpc/{stale.name}\n"
        (machine / "usr/lib/hami-hpc/manifest").write_text(line)
        make_install(wheel, **places)
        installed = set(files(machine)) - set(before)
        assert not stale.exists()
        assert {"usr/lib/plugins/spank_hami_hpc.so", "etc/slurm/job_submit.lua", "usr/bin/hami-hpc"} <= installed
        assert "etc/hami-hpc/hami-hpc.toml.example" in installed
        done = uninstall(places)
        assert (done.returncode, done.stderr) == (0, "")
        assert files(machine) == before
        assert not list((machine / "usr").rglob("*hami*"))
    again = uninstall(places)
    assert (again.returncode, files(machine)) == (0, before)
    assert "nothing is installed" in again.stdout


def test_nothing_is_removed_while_slurms_or_systemds_files_name_it_and_what_was_changed_stays(
    machine: Path, wheel: str
) -> None:
    places = {"DESTDIR": str(machine), **WITH_OTHERS}
    seed_venv(machine / "usr/lib/hami-hpc/venv")
    make_install(wheel, **places)
    fragment = machine / "etc/slurm/plugstack.conf.d/hami-hpc.conf"
    fragment.parent.mkdir()
    fragment.write_text("# hami_hpc\nrequired spank_hami_hpc.so\n")
    sshd = machine / "etc/pam.d/sshd"
    sshd.parent.mkdir()
    sshd.write_text("# pam_hami_hpc.so\nsession required /usr/lib/hami-hpc/pam_hami_hpc.so run_dir=/run/hami-hpc\n")
    wants = machine / "etc/systemd/system/timers.target.wants"
    wants.mkdir(parents=True)
    (wants / "hami-hpc-ingest.timer").symlink_to("/usr/lib/systemd/system/hami-hpc-ingest.timer")
    edited, beside = machine / "usr/libexec/hami-hpc/ingest", machine / "usr/share/hami-hpc/note"
    edited.write_text("#!/bin/sh\n# the site's own way to fetch\n")
    beside.write_text("the site's")
    before = files(machine)
    done = uninstall(places)
    assert done.returncode != 0
    assert files(machine) == before
    for line in (
        f"{machine}/etc/slurm/slurm.conf:2:JobSubmitPlugins=lua",
        f"{fragment}:2:required spank_hami_hpc.so",
        f"{sshd}:2:session required /usr/lib/hami-hpc/pam_hami_hpc.so run_dir=/run/hami-hpc",
        str(wants / "hami-hpc-ingest.timer"),
    ):
        assert line in done.stderr.splitlines()
    assert not any("sshd:1:" in line for line in done.stderr.splitlines())
    assert not any("slurm.conf:3" in line or "slurm.conf:4" in line for line in done.stderr.splitlines())

    done = uninstall({**places, "FORCE": "1"})
    assert done.returncode == 0
    assert f"kept {edited}: it was changed" in done.stdout
    kept = {str(path.relative_to(machine)): path.read_bytes() for path in (edited, beside, fragment, sshd)}
    assert files(machine) == {**{name: text.encode() for name, text in OTHERS.items()}, **kept}


def test_nothing_is_removed_while_vgpu_jobs_run_on_the_node(tmp_path: Path) -> None:
    node = Node.make(tmp_path / "node")
    library = tmp_path / "lib/hami-hpc"
    seed_venv(library / "venv")
    (pth,) = library.rglob("checkout.pth")
    pth.write_text(f"{ROOT}\n")
    (library / "libhami-hpc.so").write_text("ours")
    digest = hashlib.sha256(b"ours").hexdigest()
    (library / "manifest").write_text(f"{digest}  {library}/libhami-hpc.so\n")
    places = {"LIBDIR": str(library), "SYSCONFDIR": str(tmp_path / "etc")}
    assert node.prolog(7) == 0
    before = files(library)
    done = uninstall(places, HAMI_HPC_CONFIG=str(node.config))
    assert done.returncode != 0
    assert done.stderr.splitlines()[:2] == [
        "vgpu jobs run on this node. Drain it (scontrol update nodename=... state=drain) and wait for:",
        "7",
    ]
    assert files(library) == before
    assert node.epilog(7) == 0

    pth.write_text("/nowhere\n")
    done = uninstall(places, HAMI_HPC_CONFIG=str(node.config))
    assert "(unknown: the settings cannot be read)" in done.stderr
    assert done.returncode != 0
    pth.write_text(f"{ROOT}\n")

    done = uninstall(places, HAMI_HPC_CONFIG=str(node.config))
    assert (done.returncode, done.stderr) == (0, "")
    assert not library.exists()
    assert (node.root / "state/usage/7.json").exists()


def test_uninstall_is_installed_too_so_that_a_node_needs_no_checkout(tmp_path: Path) -> None:
    """LIBEXECDIR/uninstall with its defaults, and in-use beside it, do what make uninstall does."""
    library, stages = tmp_path / "lib/hami-hpc", tmp_path / "libexec"
    (library / "python").mkdir(parents=True)
    (library / "libhami-hpc.so").write_text("ours")
    digest = hashlib.sha256(b"ours").hexdigest()
    (library / "manifest").write_text(f"{digest}  {library}/libhami-hpc.so\n")
    stages.mkdir()
    for name in ("in-use", "uninstall"):
        text = (ROOT / "scripts" / name).read_text().replace(":=/etc}", f":={tmp_path}/etc}}")
        (stages / name).write_text(text.replace("/usr/lib/hami-hpc", str(library)))
        (stages / name).chmod(0o755)
    conf = tmp_path / "etc/slurm/slurm.conf"
    conf.parent.mkdir(parents=True)
    conf.write_text("GresTypes=gpu,vgpu\n")
    settings = {"HAMI_HPC_CONFIG": str(tmp_path / "none.toml"), "PATH": os.environ["PATH"]}
    done = subprocess.run([stages / "uninstall"], env=settings, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert f"{conf}:1:GresTypes=gpu,vgpu" in done.stderr
    assert (library / "libhami-hpc.so").exists()
    asked = subprocess.run([stages / "in-use", "units"], env=settings, capture_output=True, text=True, check=False)
    assert (asked.returncode, asked.stderr) == (0, "")
    forced = {**settings, "FORCE": "1"}
    done = subprocess.run([stages / "uninstall", "--help"], env=forced, capture_output=True, text=True, check=False)
    assert (done.returncode, "nothing was removed" in done.stderr) == (2, True)
    assert (library / "libhami-hpc.so").exists()
    done = subprocess.run([stages / "uninstall"], env=forced, capture_output=True, text=True, check=False)
    assert (done.returncode, library.exists()) == (0, False), done.stderr


def test_nothing_is_removed_while_a_link_or_a_container_runtime_leads_to_it_in_other_places(tmp_path: Path) -> None:
    places = {"DESTDIR": str(tmp_path), "LIBDIR": "/opt/lib", "LIBEXECDIR": "/opt/bin", "DATADIR": "/opt/share"}
    stage = tmp_path / "opt/bin/prolog"
    manifest = tmp_path / "opt/lib/manifest"
    conf = tmp_path / "etc/slurm/slurm.conf"
    link = tmp_path / "etc/slurm/prolog.d/00-slices"
    runtime = tmp_path / "etc/containers/containers.conf"
    for path in (stage, manifest, conf, link, runtime):
        path.parent.mkdir(parents=True, exist_ok=True)
    stage.write_text("ours")
    manifest.write_text(f"{hashlib.sha256(b'ours').hexdigest()}  /opt/bin/prolog\n")
    conf.write_text("Prolog=/etc/slurm/prolog.d/*\n")
    link.symlink_to("/opt/bin/prolog")
    runtime.write_text('hooks_dir = ["/opt/share/podman"]\n')
    done = uninstall(places)
    assert done.returncode != 0
    said = done.stderr.splitlines()
    assert f"{link} -> /opt/bin/prolog" in said
    assert f'{runtime}:1:hooks_dir = ["/opt/share/podman"]' in said
    assert stage.exists()
    link.unlink()
    runtime.unlink()
    done = uninstall(places)
    assert (done.returncode, done.stderr) == (0, "")
    assert not stage.exists()
