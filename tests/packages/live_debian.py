# SPDX-License-Identifier: Apache-2.0
"""The Debian packages in a fresh chroot without network: installed, used, upgraded under a job, removed and purged."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from chroots import Machine, machine
from made_packages import BASE, LIBRARY, NEXT, NODE, PACKAGES, packages_of


@pytest.fixture
def fresh(tmp_path: Path) -> Iterator[Machine]:
    with machine(BASE, tmp_path, PACKAGES) as made:
        yield made


def install(target: Machine, *parts: str, version: str = "") -> str:
    return target.check("apt-get", "install", "-y", "--no-install-recommends", *packages_of(version, parts or NODE))


def test_a_node_needs_neither_network_nor_compiler(fresh: Machine) -> None:
    assert fresh.run("sh", "-c", "command -v gcc || command -v cc || command -v pip3").returncode != 0
    assert fresh.run("sh", "-c", "grep -v lo: /proc/net/dev | grep -q :").returncode != 0
    install(fresh)
    assert fresh.check("hami-hpc", "--version").startswith("hami-hpc, version 0.")
    doctor = fresh.run("hami-hpc", "doctor")
    assert doctor.returncode in (1, 3)
    assert "Traceback" not in doctor.stdout + doctor.stderr
    assert "hami-hpc.toml" in doctor.stdout + doctor.stderr, "there are no settings yet"
    fresh.prepare_node()
    assert "FAIL" in fresh.run("hami-hpc", "doctor").stdout
    no_gpu = fresh.run("/usr/libexec/hami-hpc/prolog", SLURM_JOB_ID="6")
    assert (no_gpu.returncode, no_gpu.stderr) == (0, "")
    done = fresh.stage("prolog", 7)
    assert done.returncode == 0, done.stderr
    assert fresh.path("/run/hami-hpc/jobs/7/job.limits").exists()
    assert "7" in fresh.check("hami-hpc", "jobs")
    done = fresh.stage("epilog", 7)
    assert done.returncode == 0, done.stderr
    assert not fresh.path("/run/hami-hpc/jobs/7").exists()
    assert fresh.path("/var/lib/hami-hpc/usage/7.json").exists()
    assert fresh.path("/usr/share/man/man1/hami-hpc-doctor.1").exists()
    fresh.check("hami-hpc", "render", "--gpus", "h200:1", "--node", "n1", "--dry-run", "-o", "/etc/slurm")
    units = [f"/usr/lib/systemd/system/hami-hpc-{name}.service" for name in ("agent", "metrics", "reconcile")]
    verified = fresh.run("systemd-analyze", "verify", "--man=no", *units)
    assert "hami-hpc" not in verified.stderr, verified.stderr


def test_what_the_packages_bring_only_root_can_change_and_slurms_files_stay(fresh: Machine) -> None:
    conf = fresh.path("/etc/slurm/slurm.conf")
    conf.parent.mkdir(exist_ok=True)
    conf.write_text("ClusterName=site\n")
    before = fresh.state()
    install(fresh)
    after = fresh.state()
    changed = {name for name in before if before[name] != after.get(name)}
    assert changed == set(), "only files of its own"
    new = {name: text for name, text in after.items() if name not in before}
    assert [name for name, text in new.items() if " 0:0" not in text] == []
    writable = [name for name, text in new.items() if text[0] != "l" and (text[5] == "w" or text[8] == "w")]
    assert writable == []
    outside = {name for name in new if "hami" not in name and "vgpu" not in name}
    assert outside - {"usr/lib/tmpfiles.d", "usr/share/fish", "usr/share/zsh"} <= {"etc/ld.so.preload"} | {
        name for name in outside if new[name].startswith("d")
    }


def test_purging_leaves_what_was_there_before(fresh: Machine) -> None:
    before = fresh.state()
    install(fresh)
    fresh.prepare_node()
    assert fresh.stage("prolog", 7).returncode == 0
    assert fresh.stage("epilog", 7).returncode == 0
    (fresh.path("/var/lib/hami-hpc/usage") / "7.json").unlink()  # collected by accounting
    fresh.path("/etc/hami-hpc/hami-hpc.toml").unlink()
    fresh.check("apt-get", "purge", "-y", "hami-hpc-common", "hami-hpc-slurm", "hami-hpc-node")
    after = fresh.state()
    assert {name: text for name, text in after.items() if before.get(name) != text} == {}
    assert set(before) - set(after) == set()
    assert not fresh.path("/run/hami-hpc").exists()


def test_purging_keeps_settings_and_usage_that_nobody_collected_and_says_so(fresh: Machine) -> None:
    preload = fresh.path("/etc/ld.so.preload")
    preload.write_text("")  # the site's own, be it empty
    install(fresh)
    fresh.prepare_node()
    assert fresh.stage("prolog", 7).returncode == 0
    assert fresh.stage("epilog", 7).returncode == 0
    said = fresh.check("apt-get", "purge", "-y", "hami-hpc-common", "hami-hpc-slurm", "hami-hpc-node")
    assert "kept /var/lib/hami-hpc: usage records" in said
    assert "kept /etc/hami-hpc, which this site wrote" in said
    assert fresh.path("/var/lib/hami-hpc/usage/7.json").exists()
    assert fresh.path("/etc/hami-hpc/hami-hpc.toml").exists()
    assert preload.exists()


def test_nothing_is_removed_while_a_job_runs_or_slurm_names_it(fresh: Machine) -> None:
    install(fresh)
    fresh.prepare_node()
    assert fresh.stage("prolog", 7).returncode == 0
    removed = fresh.run("apt-get", "remove", "-y", "hami-hpc-node")
    assert removed.returncode != 0
    assert "vgpu jobs run on this node" in removed.stdout + removed.stderr
    assert fresh.path(f"{LIBRARY}/libhami-hpc.so").exists()
    assert fresh.stage("epilog", 7).returncode == 0
    conf = fresh.path("/etc/slurm/slurm.conf")
    conf.parent.mkdir(exist_ok=True)
    conf.write_text("ClusterName=site\ninclude slurm-hami-hpc.conf\n")
    removed = fresh.run("dpkg", "--remove", "hami-hpc-node")
    assert removed.returncode != 0
    assert "/etc/slurm/slurm.conf:2:include slurm-hami-hpc.conf" in removed.stderr
    conf.write_text("ClusterName=site\nProlog=prolog.d/*\n")
    link = fresh.path("/etc/slurm/prolog.d/00-slices")
    link.parent.mkdir()
    link.symlink_to("/usr/libexec/hami-hpc/prolog")
    removed = fresh.run("dpkg", "--remove", "hami-hpc-node")
    assert removed.returncode != 0
    assert "/etc/slurm/prolog.d/00-slices -> /usr/libexec/hami-hpc/prolog" in removed.stderr
    link.unlink()
    conf.write_text("ClusterName=site\ninclude slurm-hami-hpc.conf\n")
    fresh.check("dpkg", "--remove", "hami-hpc-node", HAMI_HPC_FORCE="1")
    assert conf.read_text().endswith("include slurm-hami-hpc.conf\n")
    assert fresh.run("dpkg", "--remove", "hami-hpc-slurm").returncode != 0


def test_an_upgrade_keeps_a_running_jobs_record_and_no_stage_is_ever_half_of_each(fresh: Machine) -> None:
    install(fresh)
    fresh.prepare_node()
    assert fresh.stage("prolog", 7).returncode == 0
    record = fresh.path("/run/hami-hpc/jobs/7/job.limits").stat().st_ino  # root changes its last fields in place
    grant = fresh.check("hami-hpc", "jobs", "--format", "json")
    assert "8192" in grant
    library = fresh.path(LIBRARY)
    old = (library / "venv").readlink()
    failed: list[str] = []
    ran: list[int] = []
    is_over = threading.Event()

    def starts() -> None:
        job = 100
        while not is_over.is_set():
            job += 1
            for stage in ("prolog", "epilog"):
                done = fresh.stage(stage, job)
                if done.returncode or "Error" in done.stderr:
                    failed.append(f"{stage} {job}: {done.stderr}")
            ran.append(job)

    thread = threading.Thread(target=starts)
    thread.start()
    try:
        install(fresh, version=NEXT)
    finally:
        is_over.set()
        thread.join()
    assert failed == []
    assert len(ran) > 5
    assert fresh.check("hami-hpc", "--version") == f"hami-hpc, version {NEXT} (next)\n"
    assert (library / "venv").readlink() != old
    assert (library / old).is_dir(), "what runs may import from it"
    assert fresh.path("/run/hami-hpc/jobs/7/job.limits").stat().st_ino == record
    assert fresh.check("hami-hpc", "jobs", "--format", "json") == grant
    assert fresh.stage("epilog", 7).returncode == 0
    assert fresh.path("/var/lib/hami-hpc/usage/7.json").exists()


def test_an_upgrade_that_stops_half_way_leaves_stages_that_run_and_is_finished_later(fresh: Machine) -> None:
    install(fresh)
    fresh.prepare_node()
    fresh.check(
        "dpkg", "--unpack", *packages_of(NEXT, NODE)
    )  # as if the power failed before the packages were configured
    assert fresh.check("hami-hpc", "--version").startswith("hami-hpc, version 0.")
    for stage in ("prolog", "epilog"):
        assert fresh.stage(stage, 8).returncode == 0
    fresh.check("dpkg", "--configure", "-a")
    assert fresh.check("hami-hpc", "--version") == f"hami-hpc, version {NEXT} (next)\n"
    assert len(list(fresh.path(LIBRARY).glob("venv-*"))) == 2


def newer_slurm(target: Machine) -> str:
    """A package of Slurm's plugins with the next micro release and nothing in it; its path on the machine."""
    version = target.check("dpkg-query", "--show", "--showformat=${Version}", "slurm-wlm-basic-plugins")
    number, _, micro = version.rpartition("-")[0].rpartition(".")
    meta = target.path("/tmp/newer/DEBIAN")
    meta.mkdir(parents=True)
    fields = {
        "Package": "slurm-wlm-basic-plugins",
        "Version": f"{number}.{int(micro) + 1}-1",
        "Architecture": target.check("dpkg", "--print-architecture").strip(),
        "Maintainer": "a test <root@localhost>",
        "Description": "a newer Slurm",
    }
    (meta / "control").write_text("".join(f"{name}: {value}\n" for name, value in fields.items()))
    target.check("dpkg-deb", "--build", "/tmp/newer", "/tmp/newer.deb")
    return "/tmp/newer.deb"


def test_another_slurm_makes_the_package_manager_complain(fresh: Machine) -> None:
    install(fresh)
    newer = newer_slurm(fresh)
    done = fresh.run("apt-get", "install", "-y", "--no-remove", newer)
    assert done.returncode != 0
    assert "hami-hpc-slurm" in done.stdout + done.stderr
    done = fresh.run("dpkg", "--install", newer)
    assert done.returncode != 0
    assert "hami-hpc-slurm" in done.stderr


def test_plugins_do_not_install_beside_another_slurm(fresh: Machine) -> None:
    fresh.run("dpkg", "--force-all", "--install", newer_slurm(fresh))
    done = fresh.run("dpkg", "--install", *packages_of("", NODE))
    assert done.returncode != 0
    assert "slurm-wlm-basic-plugins" in done.stderr
    assert (
        fresh.run("dpkg-query", "--show", "--showformat=${Status}", "hami-hpc-slurm").stdout != "install ok installed"
    )


def test_a_place_of_make_install_is_refused(fresh: Machine) -> None:
    fresh.path(LIBRARY).mkdir()
    fresh.path(f"{LIBRARY}/manifest").write_text("")
    done = fresh.run("dpkg", "--install", *packages_of("", ("common",)))
    assert done.returncode != 0
    assert "make install or a tarball installed hami_hpc here" in done.stderr
    assert not fresh.path("/usr/bin/hami-hpc").exists()


def test_accounting_is_installed_alone_beside_the_commands(fresh: Machine) -> None:
    install(fresh, "common", "accounting")
    assert "Commands of accounting" in fresh.check("hami-hpc", "--help")
    assert "GPU-hours" in fresh.check("hami-hpc", "bill", "--help")
    assert fresh.path("/usr/share/man/man1/hami-hpc-bill.1").exists()
    assert not fresh.path(f"{LIBRARY}/libhami-hpc.so").exists()
    fresh.path("/etc/hami-hpc").mkdir(exist_ok=True)
    fresh.path("/etc/hami-hpc/hami-hpc.toml").write_text("version = 1\n")
    export = fresh.run("sh", "-c", "echo '{}' | hami-hpc bill --month 2026-10 --input -")
    assert export.returncode == 1
    assert "Traceback" not in export.stderr
    fresh.check("apt-get", "purge", "-y", "hami-hpc-accounting")
    assert not fresh.path(f"{LIBRARY}/accounting").exists()
    assert "hami-hpc-accounting" in fresh.run("hami-hpc", "bill", "--help").stderr


def test_a_controller_needs_nothing_of_a_node(fresh: Machine) -> None:
    install(fresh, "common", "slurm")
    fresh.path("/etc/hami-hpc").mkdir(exist_ok=True)
    fresh.path("/etc/hami-hpc/hami-hpc.toml").write_text(
        'version = 1\n[gpu_models.h200]\ntotal_mib = 143156\n[partitions.gpu]\ngpu_models = ["h200"]\n'
    )
    done = fresh.run("hami-hpc", "render", "--gpus", "h200:8", "--node", "gpu02", "-o", "/etc/slurm")
    assert "wrote  /etc/slurm/hami_hpc_site.lua" in done.stdout, done.stderr
    assert not fresh.path(f"{LIBRARY}/libhami-hpc.so").exists()
