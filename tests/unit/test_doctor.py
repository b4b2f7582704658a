# SPDX-License-Identifier: Apache-2.0
"""doctor: all is well on a node that has everything, and each thing that is missing is named with what to do."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from click.testing import CliRunner
from doctor_testbed import BROKEN, BUILD, Healthy, build_library, swap_without_plugin
from node_testbed import GPU_MIB, ROOT, UUIDS, Node

from hami_hpc import builds
from hami_hpc.cli import main
from hami_hpc.cli.doctor_command import examine
from hami_hpc.cli.exit_codes import ExitCode
from hami_hpc.core import qos, quota
from hami_hpc.core.finding import Level
from hami_hpc.core.inventory import Device
from hami_hpc.doctor import accounting_checks, container_checks, pam_checks, slurm_checks
from hami_hpc.doctor.build_checks import FILTER_PLUGIN, GRES_PLUGINS, SLURMS_FILTER, plugin_version
from hami_hpc.doctor.facts import Facts
from hami_hpc.errors import NodeError
from hami_hpc.isolation import share_checks
from hami_hpc.node import ldso, mounts, nvml
from hami_hpc.slurm import commands, node_features, step_pids
from hami_hpc.slurm.plugstack import SPANK_PLUGIN


@pytest.fixture
def healthy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Healthy:
    node = Node.make(tmp_path / "node")
    healthy = Healthy(node, tmp_path)
    healthy.etc.mkdir()
    for name in (*GRES_PLUGINS, SPANK_PLUGIN, FILTER_PLUGIN, SLURMS_FILTER):
        build_library(tmp_path / "plugins" / name, 0x160508)
    shutil.copy(tmp_path / "plugins" / SPANK_PLUGIN, tmp_path / "libhami-hpc.so")
    extra = f'[vgpu]\nbare_shard = "refuse"\npreload = "ldso"\n[paths]\ninterposer = "{tmp_path}/libhami-hpc.so"'
    node.config.write_text(node.config.read_text().replace("[paths]", extra))
    node.config.write_text(node.config.read_text() + "[agent]\n")
    healthy.write_agent_state()
    healthy.write("etc/slurm.conf", "include slurm-hami-hpc.conf\n")
    healthy.write("etc/cgroup.conf", "ConstrainDevices=yes\n")
    for name in ("job_submit.lua", "cli_filter.lua"):
        shutil.copy(ROOT / "slurm-plugins/lua" / name, healthy.etc / name)
    command = ["render", "--config", str(node.config), "--gpus", "h200:2", "--node", "node1", "-o", str(healthy.etc)]
    assert CliRunner().invoke(main, command).exit_code == 0
    healthy.write("ld.so.preload", "")
    healthy.write("max_user_namespaces", "0\n")
    monkeypatch.setattr(container_checks, "ROOT", tmp_path / "root")
    monkeypatch.setattr(pam_checks, "FOLDER", tmp_path / "root/etc/pam.d")
    monkeypatch.setattr(share_checks, "LD_SO_PRELOAD", tmp_path / "ld.so.preload")
    monkeypatch.setattr(mounts, "obstacle", lambda: None)  # where the tests cannot mount: test_job_dirs_mounts.py
    obstacle = ldso.obstacle  # where the tests' own root directory is no mount point there is one: test_ldso.py
    monkeypatch.setattr(ldso, "obstacle", lambda path: ("", "") if path.is_file() else obstacle(path))
    monkeypatch.setattr(share_checks, "USER_NAMESPACES", tmp_path / "max_user_namespaces")
    monkeypatch.setattr(share_checks, "USER_NAMESPACES_OFF", tmp_path / "none")
    monkeypatch.setattr(nvml, "read_devices", lambda: healthy.devices)
    without_limits = SimpleNamespace(NVMLError=RuntimeError, nvmlShutdown=lambda: None)
    monkeypatch.setattr(nvml, "open_nvml", lambda: without_limits)
    features = (("vgpu_share", "vgpu_type_h200"),) * 2
    monkeypatch.setattr(node_features, "read", lambda *_arguments: features)
    monkeypatch.setattr(commands, "configuration", lambda: healthy.slurm)
    monkeypatch.setattr(commands, "holding_rows", lambda _node, _form: "".join(healthy.running))
    monkeypatch.setattr(step_pids, "listed_pids", lambda _node, _run, _timeout_s: healthy.listed)
    monkeypatch.setattr(commands, "node_name", lambda: "node1")
    monkeypatch.setattr(commands, "gpus_by_type", lambda _node: healthy.counted)
    monkeypatch.setattr(commands, "gres_by_type", lambda _node, name: healthy.mps if name == "mps" else healthy.classes)
    monkeypatch.setattr(commands, "qos_names", lambda: healthy.qos)
    monkeypatch.setattr(commands, "records_for_slurmdbd", lambda: next(healthy.waiting, 0))
    monkeypatch.setattr(accounting_checks, "APART_S", 0.0)
    monkeypatch.setattr(builds, "build_text", lambda: BUILD)
    monkeypatch.setenv("SLURM_CONF", f"{healthy.etc}/slurm.conf")
    return healthy


def test_doctor_is_content_with_a_node_that_has_everything(healthy: Healthy) -> None:
    done = healthy.run()
    assert done.exit_code == 0, done.output
    assert {line[:4] for line in done.output.splitlines()} == {"OK  "}, done.output
    rows = json.loads(healthy.run("--format", "json").output)
    assert {row["level"] for row in rows} == {"OK"}
    assert set(rows[0]) == {"what", "level", "detail", "advice"}


def test_doctor_creates_and_changes_nothing(healthy: Healthy) -> None:
    def snapshot() -> dict[str, tuple[int, int, int]]:
        paths = [path for path in healthy.base.rglob("*") if "__pycache__" not in path.parts]
        return {str(path): (path.stat().st_mtime_ns, path.stat().st_size, path.stat().st_mode) for path in paths}

    healthy.node.clear()
    Path(healthy.node.settings.run_dir).mkdir(mode=0o755)
    healthy.write_agent_state()
    before = snapshot()
    assert healthy.run().exit_code == 0
    assert snapshot() == before, "a node before its first job"
    healthy.node.enter_gpus()
    healthy.node.prolog(7)
    before = snapshot()
    assert "1 grant(s)" in healthy.run().output
    assert snapshot() == before


def test_a_prolog_in_its_job_is_named_where_the_job_has_a_daemon(healthy: Healthy) -> None:
    healthy.slurm.update(PrologFlags="Alloc, Contain, RunInJob")
    assert "RunInJob" not in healthy.findings()
    settings = healthy.node.settings._replace(modes=("share", "mps"))
    facts = cast(Facts, SimpleNamespace(settings=settings))
    (found,) = slurm_checks._run_in_job(facts)
    assert found.level is Level.WARN
    assert "the daemon of mode=mps" in found.detail


@pytest.mark.parametrize("name", BROKEN)
def test_doctor_names_what_was_taken_away_and_what_to_do(healthy: Healthy, name: str) -> None:
    take_away, what, level, words = BROKEN[name]
    take_away(healthy)
    findings = healthy.findings()
    found = findings[what]
    assert found.level is level, found
    assert words in f"{found.detail} -> {found.advice}"
    failing = {one.what for one in findings.values() if one.level is Level.FAIL}
    assert failing == ({what} if level is Level.FAIL else set()), "nothing else is blamed"
    assert healthy.run().exit_code == (ExitCode.FOUND if level is Level.FAIL else 0)
    assert all(one.advice for one in findings.values() if not one.is_ok)


@pytest.mark.parametrize(
    ("version", "settings", "level", "words"),
    [
        ("22.05.8", {"TaskPlugin": "task/hami_hpc"}, Level.OK, "slurmd waits until their memory has left"),
        ("22.05.8", {"PreemptParameters": "suspend_grace_time=60"}, Level.WARN, "has 2 s to leave"),
        ("24.05.1", {"TaskPlugin": "task/cgroup,hami_hpc"}, Level.OK, "slurmd waits"),
        ("24.11.5", {"TaskPlugin": "task/cgroup,hami_hpc"}, Level.WARN, "suspend_grace_time=23, enough for 143156 MiB"),
        ("24.11.5", {"PreemptParameters": "(null)"}, Level.WARN, "has 2 s to leave the GPU"),
        ("24.11.5", {"PreemptParameters": "youngest_first,suspend_grace_time=22"}, Level.WARN, "has 22 s"),
        ("23.11.0", {"PreemptParameters": "Suspend_Grace_Time=23,youngest_first"}, Level.OK, "has 23 s to leave"),
    ],
)
def test_the_time_that_slurm_gives_the_memory_of_suspended_jobs(
    healthy: Healthy, version: str, settings: dict[str, str], level: Level, words: str
) -> None:
    swap_without_plugin(healthy)
    healthy.slurm.update(settings, SLURM_VERSION=version)
    found = healthy.findings()["swap"]
    assert found.level is level, found
    assert words in f"{found.detail} -> {found.advice}"


def test_an_installed_command_of_another_build_than_its_libraries_fails(
    healthy: Healthy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(builds, "build_text", lambda: "0.2.0 (ffff)")
    found = [one for one in examine(str(healthy.node.config)) if one.what == "builds"]
    assert [one.level for one in found] == [Level.OK, Level.WARN], "a checkout goes on while its last build stays"
    monkeypatch.setattr("hami_hpc.installed.BUILD", "0.2.0 (ffff)")
    assert healthy.findings()["builds"].level is Level.FAIL


def test_prologs_of_a_site_are_followed_to_ours(healthy: Healthy) -> None:
    (healthy.etc / "prolog.d").mkdir()
    (healthy.etc / "prolog.d" / "00-hami-hpc").symlink_to(healthy.etc / "hami-hpc-prolog")
    healthy.slurm["Prolog"] = "prolog.d/*"
    assert healthy.findings()["Prolog"].is_ok
    del healthy.slurm["Prolog"]
    healthy.slurm |= {"Prolog[0]": "/bin/true", "Prolog[1]": f"{healthy.etc}/hami-hpc-prolog"}  # as 24.05 shows it
    assert healthy.findings()["Prolog"].is_ok


def test_includes_of_plugstack_conf_are_followed(healthy: Healthy) -> None:
    healthy.write("etc/plugstack.conf", "include plugstack.conf.d/*.conf\n")
    found = healthy.findings()["plugstack.conf"]
    assert found.is_ok
    assert "plugstack.conf.d/hami-hpc.conf:" in found.detail


def test_doctor_finds_a_damaged_ledger(healthy: Healthy) -> None:
    path = next(healthy.node.root.rglob("ledger.db"))
    path.write_bytes(b"SQLite format 3\0" + b"x" * 5000)
    assert "damaged" in healthy.findings()["ledger"].detail


def test_doctor_says_what_a_class_of_the_sites_own_means(healthy: Healthy) -> None:
    text = "[classes.interactive]\nqos = []\nlatency = true\nfloor = 9\nslice_us = 700\npolicies = ['burst', 'cap']\n"
    healthy.node.config.write_text(healthy.node.config.read_text() + text)
    detail = healthy.findings()["class interactive"].detail
    for words in ("burst: the time", "9 % of the time", "timeslices of 700 us", "policy= may be burst or cap"):
        assert words in detail
    assert "timeslices of" not in healthy.findings()["class lc"].detail


@pytest.mark.parametrize(("mib", "said"), [(GPU_MIB - 1, "the settings give h200 143156 MiB"), (GPU_MIB, "h200")])
def test_doctor_finds_settings_that_promise_more_memory_than_there_is(healthy: Healthy, mib: int, said: str) -> None:
    healthy.devices = (Device(0, UUIDS[0], "NVIDIA H200", mib),)
    found = healthy.findings()["GPU 0"]
    assert found.is_ok == (mib == GPU_MIB)
    assert said in found.detail


@pytest.mark.parametrize(("arguments", "environment"), [(("--node", "node2"), {}), ((), {"HAMI_HPC_NODE": "node2"})])
def test_doctor_on_a_host_of_several_nodes_is_told_which_it_is(
    healthy: Healthy, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], environment: dict[str, str]
) -> None:
    def several() -> str:
        raise NodeError("slurm.conf has node1, node2 for host h; say which node this is with --node NAME")

    monkeypatch.setattr(commands, "node_name", several)
    assert not healthy.findings()[
        "modes out of service, jobs of an earlier boot, jobs without a slice, gres.conf, classes"
    ].is_ok
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert "OK    gres.conf: node2 has 2 gpu" in healthy.run(*arguments).output


def test_a_node_without_gpus_is_told_apart(healthy: Healthy, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_driver() -> tuple[Device, ...]:
        raise NodeError("NVML cannot be used")

    monkeypatch.setattr(nvml, "read_devices", no_driver)
    assert healthy.findings()["driver, gres.conf"].level is Level.FAIL, "Slurm counts GPUs here"
    healthy.counted = {}
    findings = healthy.findings("login1")
    assert "login1 has no GPUs in Slurm and none here" in findings["GPUs"].detail
    assert "driver" not in findings
    assert all(one.is_ok for one in findings.values())


def test_doctor_goes_on_when_slurm_does_not_answer(healthy: Healthy, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def down() -> dict[str, str]:
        asked.append(1)
        raise NodeError("slurmctld is down")

    monkeypatch.setattr(commands, "configuration", down)
    findings = healthy.findings()
    (stopped,) = (one for one in findings.values() if not one.is_ok)
    assert stopped.what == "plugins, builds, slurm.conf, devices, stages, QoS, memory, slurmdbd, gres.conf, classes"
    assert stopped.detail == "slurmctld is down"
    assert findings["plugstack.conf"].is_ok
    assert len(asked) == 1, "and waits for it once"


def test_a_slurm_conf_that_is_not_there_is_said_once_in_plain_words(
    healthy: Healthy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_CONF", "/nowhere/slurm.conf")
    done = healthy.run()
    assert done.exit_code == ExitCode.FOUND
    (line,) = (line for line in done.output.splitlines() if "/nowhere/slurm.conf" in line)
    assert line == (
        "FAIL  plugins, builds, slurm.conf, devices, plugstack.conf, stages, filters, QoS, memory, slurmdbd, "
        "gres.conf, classes: $SLURM_CONF names /nowhere/slurm.conf, which does not exist; "
        "set it to slurm.conf, or unset it"
    )
    assert [line[:4] for line in done.output.splitlines()].count("FAIL") == 1


def test_without_checked_qos_doctor_says_who_gets_which_class(healthy: Healthy) -> None:
    healthy.slurm["AccountingStorageEnforce"] = "none"
    found = healthy.findings()["AccountingStorageEnforce"]
    assert (found.level, "every vGPU job is of class std without" in found.advice) == (Level.FAIL, True)
    known, healthy.qos = healthy.qos, frozenset({"normal"})
    findings = healthy.findings()
    assert findings["AccountingStorageEnforce"].level is Level.WARN
    assert findings["AccountingStorageEnforce"].detail.startswith("this cluster has no QoS of a class")
    assert "for other classes hami-hpc qos apply" in findings["AccountingStorageEnforce"].advice
    assert "QoS" not in findings, "nobody misses them"
    healthy.qos = known
    healthy.slurm["AccountingStorageType"] = "accounting_storage/none"
    findings = healthy.findings()
    assert findings["AccountingStorageEnforce"].level is Level.WARN
    assert findings["AccountingStorageEnforce"].detail.startswith("this cluster has no slurmdbd")
    assert "QoS" not in findings, "nobody asks slurmdbd"
    healthy.slurm["AccountingStorageTRES"] = "cpu,mem,energy,node,billing,fs/disk,vmem,pages"
    assert "classes, accounting" not in healthy.findings(), "nor can it be told what to store"
    text = healthy.node.config.read_text()
    healthy.node.config.write_text(text.replace("[vgpu]\n", '[vgpu]\nqos_enforced = "yes"\n', 1))
    found = healthy.findings()["AccountingStorageEnforce"]
    assert (found.level, "any user picks a class without" in found.advice) == (Level.FAIL, True)


def test_doctor_without_settings_says_only_that(tmp_path: Path) -> None:
    (one,) = examine(str(tmp_path / "none.toml"))
    assert "cannot be read" in one.detail


def test_the_version_of_a_plugin_is_read_without_loading_it(tmp_path: Path) -> None:
    build_library(tmp_path / "x.so", 0x1A0505)
    assert commands.version_text(plugin_version(tmp_path / "x.so")) == "26.05.5"
    assert builds.stamp_of(tmp_path / "x.so") == BUILD
    with pytest.raises(NodeError, match="no plugin_version"):
        plugin_version(Path(sys.executable))
    with pytest.raises(NodeError, match="contains no build"):
        builds.stamp_of(Path(sys.executable))


def test_the_version_is_the_builds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hami_hpc.installed.BUILD", BUILD)
    assert CliRunner().invoke(main, ["--version"]).output == f"hami-hpc, version {BUILD}\n"


def test_in_a_checkout_without_git_the_revision_is_unknown(tmp_path: Path) -> None:
    for name in ("scripts/build-info", "pyproject.toml"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    done = subprocess.run([tmp_path / "scripts/build-info"], capture_output=True, text=True, check=True)
    assert done.stdout.endswith(" (revision unknown)\n")
    source = tmp_path / "build_info.c"
    for _ in range(2):
        subprocess.run([tmp_path / "scripts/build-info", source], check=True)
        times = source.stat().st_mtime_ns
    subprocess.run([tmp_path / "scripts/build-info", source], check=True)
    assert source.stat().st_mtime_ns == times, "nothing is linked again for the same text"


@pytest.mark.parametrize(
    ("version", "be", "is_warned"),
    [
        ("24.11.5", "grace_time_s = 3", True),
        ("24.5.0", 'grace_time_s = 3\npreempt_mode = "requeue"', True),
        ("23.11.11", "grace_time_s = 3", False),
        ("24.11.5", "grace_time_s = 0", False),
        ("24.11.5", 'grace_time_s = 3\npreempt_mode = "cancel"', False),
    ],
)
def test_a_grace_time_that_slurm_keeps_in_mind_too_long_is_a_warning(
    healthy: Healthy, monkeypatch: pytest.MonkeyPatch, version: str, be: str, is_warned: bool
) -> None:
    monkeypatch.setattr(commands, "qos_rows", lambda _columns: [])
    healthy.slurm["SLURM_VERSION"] = version
    tables = f'[qos.lc]\npreempt = ["be"]\ngrace_time_s = 9\n[qos.be]\n{be}\n'
    healthy.node.config.write_text(healthy.node.config.read_text() + tables)
    found = healthy.findings().get("grace time of QoS")
    assert (found is not None) is is_warned
    if found:
        assert (found.level, found.detail.split(" that")[0]) == (Level.WARN, "jobs of be")


def test_a_slurmdbd_that_is_not_as_the_settings_say_is_a_warning(
    healthy: Healthy, monkeypatch: pytest.MonkeyPatch
) -> None:
    unset = {"Priority": "0", "GraceTime": "00:00:00", "UsageFactor": "1.000000", "PreemptMode": "cluster"}
    rows = [dict.fromkeys(qos.COLUMNS, "") | unset | {"Name": name} for name in ("normal", "lc", "be")]
    monkeypatch.setattr(commands, "qos_rows", lambda _columns: rows)
    assert "QoS in slurmdbd" not in healthy.findings(), "without [qos.*] nothing is wanted"
    tables = '[qos.lc]\npriority = 9\npreempt = ["be"]\n[qos.night]\n'
    healthy.node.config.write_text(healthy.node.config.read_text() + tables)
    found = healthy.findings()
    assert found["QoS in slurmdbd"].level is Level.WARN
    assert found["QoS in slurmdbd"].detail == (
        "night is not there; Priority of lc is 0, not 9; Preempt of lc is none, not be"
    )
    assert found["QoS in slurm.conf"].level is Level.WARN
    assert "PreemptType=preempt/qos; PreemptMode=REQUEUE" in found["QoS in slurm.conf"].detail
    rows[1] |= {"Priority": "9", "Preempt": "be"}
    rows.append(rows[0] | {"Name": "night"})
    parameters = "nohold_on_prolog_fail,preempt_youngest_first,preempt_strict_order,preempt_reorder_count=10"
    healthy.slurm |= {"PreemptType": "preempt/qos", "PreemptMode": "REQUEUE", "SchedulerParameters": parameters}
    assert {found.level for what, found in healthy.findings().items() if what.startswith("QoS")} == {Level.OK}
    assert healthy.run().exit_code == ExitCode.DONE


def test_a_slurmdbd_that_is_not_as_the_quotas_say_is_a_warning(
    healthy: Healthy, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "quotas in slurmdbd" not in healthy.findings(), "without quotas.toml nothing is wanted"
    row = dict.fromkeys(quota.COLUMNS, "") | {"Account": "physics", "Fairshare": "1"}
    monkeypatch.setattr(commands, "association_rows", lambda _cluster, _columns: [row])
    monkeypatch.setattr(commands, "qos_rows", lambda _columns: [])
    quotas = healthy.node.config.with_name("quotas.toml")
    healthy.slurm["AccountingStorageEnforce"] = "associations,qos"
    quotas.write_text("version = 1\n[accounts.physics]\ngpus = 2\n[accounts.vision]\ngpus = 1\n")
    found = healthy.findings()
    assert found["quotas in slurmdbd"].level is Level.WARN
    assert "account vision is not there; sacctmgr --immediate modify account" in found["quotas in slurmdbd"].detail
    assert found["quotas in slurm.conf"].level is Level.WARN
    row["GrpTRES"] = "billing=2000"
    quotas.write_text("version = 1\n[accounts.physics]\ngpus = 2\n")
    healthy.slurm["AccountingStorageEnforce"] = "associations,limits,qos"
    after = healthy.findings()
    assert after["quotas in slurmdbd"].level is after["quotas in slurm.conf"].level is Level.OK
