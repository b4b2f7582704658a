# SPDX-License-Identifier: Apache-2.0
"""Prolog: from what Slurm gave the job to ledger row and run directory."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from node_testbed import GPU_MIB, ROOT, UUIDS, Node, job_environment

from hami_hpc.contract import constants as c
from hami_hpc.core.inventory import Device
from hami_hpc.core.records import parse_limits
from hami_hpc.node import nvml, usage_files


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node.make(tmp_path / "node")


def test_a_vgpu_job_gets_a_ledger_row_and_a_complete_run_directory(node: Node) -> None:
    assert node.run("prolog", job_environment(7, gpu="1")) == (0, "")
    node.assert_job_is_ready(7)
    grant = node.grants()[7]
    assert (grant.gpu_uuid, grant.gpu_minor, grant.policy, grant.mode) == (UUIDS[1], 1, "cap", "share")
    assert (node.root / "run" / "self").is_dir()


def test_the_limits_record_says_what_the_contract_lays_out(node: Node) -> None:
    node.prolog(7, mem_mib=4096)
    data = (node.jobs / "7" / c.FILE_JOB_LIMITS).read_bytes()

    def number(name: str) -> int:
        offset, width, _ = c.LIMITS_FIELDS[name]
        return int.from_bytes(data[offset : offset + width], "little")

    assert len(data) == number("record_size") == c.LIMITS_SIZE
    assert data[:8] == b"HAMILIM1"
    assert number("abi_version") == c.ABI_VERSION
    assert number("step_id") == c.JOB_STEP_ID
    assert number("mem_limit_bytes") == 4096 << 20
    assert number("gpu_total_bytes") == GPU_MIB << 20
    assert (number("cores_percent"), number("policy"), number("mode")) == (50, 0, 0)
    assert number("class_name") == int.from_bytes(b"std", "little")
    parsed = parse_limits(data, model="h200")
    assert parsed == node.grants()[7]


def test_a_class_of_the_sites_own_is_in_the_record_the_ledger_and_the_usage_record(node: Node) -> None:
    text = '[classes.interactive]\npolicy = "none"\nlatency = true\nfloor = 9\nslice_us = 700\npriority = 300\n'
    text += "max_processes = 2\n"
    node.config.write_text(node.config.read_text() + text)
    assert node.prolog(7, **{c.ENV_CLASS: "interactive"}) == 0
    grant = node.grants()[7]
    assert (grant.service_class, grant.policy, grant.latency, grant.floor_percent) == ("interactive", "none", 1, 9)
    assert (grant.slice_us, grant.class_priority, grant.max_processes) == (700, 300, 2)
    assert parse_limits((node.jobs / "7" / c.FILE_JOB_LIMITS).read_bytes(), model="h200") == grant
    assert node.epilog(7) == 0
    assert json.loads((Path(node.settings.state_dir) / "usage" / "7.json").read_text())["class"] == "interactive"


def test_running_twice_changes_nothing_and_keeps_the_usage(node: Node) -> None:
    node.prolog(7)
    first = node.grants()[7]
    node.write_usage(7, used_bytes=123456, peak_bytes=234567)
    before = (node.jobs / "7" / c.FILE_USAGE).read_bytes()
    assert node.prolog(7) == 0
    assert node.grants()[7] == first
    assert (node.jobs / "7" / c.FILE_USAGE).read_bytes() == before
    assert node.names() == ["7"]


def test_a_requeued_job_with_another_slice_replaces_the_old_grant(node: Node) -> None:
    node.prolog(7, mem_mib=4096)
    node.write_usage(7, peak_bytes=99)
    assert node.prolog(7, mem_mib=8192, gpu="1") == 0
    node.assert_job_is_ready(7)
    assert node.grants()[7].mem_mib == 8192
    assert usage_files.read_usage(str(node.jobs / "7"), node.grants()[7], 2**62).peak_bytes == 0
    assert (node.record()["mem_mib"], node.record()["peak_bytes"]) == (4096, 99), "the last run has its record"


def test_a_job_without_vgpu_touches_nothing(tmp_path: Path) -> None:
    node = Node(tmp_path)
    assert node.run("prolog", {"SLURM_JOB_ID": "7", "SLURM_JOB_UID": "0", "SLURM_JOB_GPUS": "0"}) == (0, "")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("missing", [c.ENV_VGPU, c.ENV_CLASS, c.ENV_MEM_MIB, c.ENV_CORES])
def test_a_vgpu_variable_that_is_missing_is_the_nodes_fault(node: Node, missing: str) -> None:
    environment = job_environment(7)
    del environment[missing]
    status, errors = node.run("prolog", environment)
    assert status == 1
    assert f"job 7 has a vgpu but {missing} did not reach its prolog" in errors
    assert "hami-hpc doctor" in errors
    node.assert_nothing_is_held()


def test_the_sluid_of_slurm_26_05_is_noted_also_of_a_job_that_is_refused(node: Node) -> None:
    sluid = {"SLURM_JOB_SLUID": "s00H5T7VE3QKG4"}
    assert node.prolog(7) == 0
    assert not (node.jobs / "7" / c.FILE_SLUID).exists()
    assert node.run("prolog", job_environment(7) | sluid) == (0, "")
    assert (node.jobs / "7" / c.FILE_SLUID).read_text() == "s00H5T7VE3QKG4\n"
    status, _ = node.run("prolog", job_environment(8, mem_mib=0) | {"SLURM_JOB_SLUID": "s00H5T7VE3QKG5"})
    assert status == 0
    assert (node.jobs / "8" / c.FILE_REFUSED).exists()
    assert (node.jobs / "8" / c.FILE_SLUID).read_text() == "s00H5T7VE3QKG5\n"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({c.ENV_MEM_MIB: "8G"}, "not a number"),
        ({c.ENV_MEM_MIB: "\u0667"}, "not a number"),
        ({c.ENV_MEM_MIB: "9" * 400}, "not a number"),
        ({c.ENV_CLASS: "gold"}, "job 7 is of class 'gold', which"),
        ({c.ENV_CLASS: "Gold"}, "not the name of a class"),
        ({"SLURM_JOB_GPUS": ""}, "has a vgpu but no GPU"),
        ({"SLURM_JOB_GPUS": "GPU-1"}, "not a list of device indices"),
        ({"SLURM_JOB_UID": "-1"}, "SLURM_JOB_UID is '-1'"),
    ],
)
def test_nonsense_from_slurm_is_the_nodes_fault(
    node: Node, given: dict[str, str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert node.prolog(7, **given) == 1
    assert said in capsys.readouterr().err
    node.assert_nothing_is_held()


@pytest.mark.parametrize(
    "given", [{c.ENV_VGPU: "2"}, {"SLURM_JOB_GPUS": "0,1"}, {c.ENV_CORES: "101"}, {c.ENV_MEM_MIB: "0"}]
)
def test_the_jobs_own_fault_leaves_the_node_up_and_tells_the_job(
    node: Node, given: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert node.prolog(7, **given) == 0
    assert "Its steps will be refused" in capsys.readouterr().err
    assert node.grants() == {}
    assert [path.name for path in (node.jobs / "7").iterdir()] == [c.FILE_REFUSED]
    assert "job 7" in (node.jobs / "7" / c.FILE_REFUSED).read_text()
    assert node.epilog(7, **given) == 0
    node.assert_nothing_is_held()


def test_a_grant_beyond_the_gpus_memory_names_the_holders_and_what_to_do(
    node: Node, capsys: pytest.CaptureFixture[str]
) -> None:
    assert node.prolog(7, mem_mib=100000) == 0
    assert node.prolog(8, mem_mib=GPU_MIB - 100000) == 0
    assert node.prolog(9, mem_mib=1) == 1
    errors = capsys.readouterr().err
    assert "job 7: 100000 MiB, job 8: 43156 MiB" in errors
    assert "hami-hpc reconcile" in errors
    assert node.prolog(9, mem_mib=1, gpu="1") == 0
    assert sorted(node.grants()) == [7, 8, 9]


def test_a_grant_larger_than_the_gpu_points_at_the_settings(node: Node, capsys: pytest.CaptureFixture[str]) -> None:
    assert node.prolog(7, mem_mib=GPU_MIB + 1) == 1
    assert "total_mib of h200" in capsys.readouterr().err


def test_memory_scaling_allows_as_much_less(node: Node) -> None:
    node.config.write_text(node.config.read_text().replace("version = 1", "version = 1\n[vgpu]\nmemory_scaling = 0.5"))
    assert node.prolog(7, mem_mib=GPU_MIB // 2 - 1) == 0
    assert node.prolog(8, mem_mib=1) == 0
    assert node.prolog(9, mem_mib=1) == 1


def test_a_missing_driver_is_the_nodes_fault_and_says_so(tmp_path: Path) -> None:
    node = Node.make(tmp_path / "node", with_gpus=False)
    status, errors = node.run("prolog", job_environment(7))
    assert status == 1
    assert "NVML cannot be used" in errors
    assert "nvidia-smi" in errors


def test_gpus_come_from_nvml_once_and_then_from_the_ledger(tmp_path: Path) -> None:
    sim = ROOT / "build" / "native" / "sim"
    assert (sim / "sim-machine").exists(), "build the simulation first: make -C native"
    machine = tmp_path / "machine"
    subprocess.run([sim / "sim-machine", machine, "h200", "h200"], check=True)
    node = Node.make(tmp_path / "node", with_gpus=False)
    driver = {"LD_LIBRARY_PATH": str(sim), "HAMI_SIM": str(machine)}
    assert node.run("prolog", job_environment(7, gpu="1") | driver) == (0, "")
    grant = node.grants()[7]
    assert (grant.gpu_minor, grant.model, grant.gpu_total_mib) == (1, "h200", GPU_MIB)
    assert node.run("prolog", job_environment(8, gpu="0")) == (0, ""), "the second prolog needs no driver"
    status, errors = node.run("prolog", job_environment(9, gpu="2") | driver)
    assert status == 1
    assert "was given GPU 2, but the driver shows 2 GPU(s)" in errors


def test_a_gpu_that_is_new_is_looked_for_in_the_driver_and_one_that_is_not_there_is_named(
    node: Node, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    devices = [Device(minor, f"GPU-{minor}", "NVIDIA H200", GPU_MIB) for minor in range(3)]
    monkeypatch.setattr(nvml, "read_devices", lambda: devices)
    assert node.prolog(7, gpu="2") == 0
    assert node.grants()[7].gpu_uuid == "GPU-2"
    assert node.prolog(8, gpu="3") == 1
    assert "job 8 was given GPU 3, but the driver shows 3 GPU(s) here" in capsys.readouterr().err


def test_the_class_decides_which_policy_a_job_may_have(node: Node) -> None:
    node.config.write_text(node.config.read_text() + '[classes.std]\npolicies = ["cap", "none"]\n')
    assert node.prolog(7, SLURM_JOB_CONSTRAINTS="vgpu_policy_none") == 0
    node.assert_job_is_ready(7)
    assert node.grants()[7].policy == "none"
    assert node.prolog(8) == 0
    assert node.grants()[8].policy == "cap"
    assert node.prolog(9, SLURM_JOB_CONSTRAINTS="vgpu_policy_burst") == 0, "a fault of the job does not drain"
    assert 9 not in node.grants()
    refusal = (node.jobs / "9" / c.FILE_REFUSED).read_text()
    assert "policy=burst is not allowed in class std, whose policies are: cap, none" in refusal


def test_an_slo_of_a_latency_critical_job_is_in_its_record(node: Node) -> None:
    assert node.prolog(7, HAMI_HPC_CLASS="lc", HAMI_HPC_SLO_US="10000") == 0
    assert node.grants()[7].slo_us == 10_000
    record = (node.jobs / "7" / c.FILE_JOB_LIMITS).read_bytes()
    offset, width, _ = c.LIMITS_FIELDS["slo_us"]
    assert int.from_bytes(record[offset : offset + width], "little") == 10_000
    assert node.prolog(8, HAMI_HPC_CLASS="lc") == 0
    assert node.grants()[8].slo_us == 0


@pytest.mark.parametrize("slo", ["99", "60000001", "1e3", "-1", "10000000000000"])
def test_an_slo_out_of_range_is_the_jobs_fault(node: Node, slo: str) -> None:
    assert node.prolog(7, HAMI_HPC_CLASS="lc", HAMI_HPC_SLO_US=slo) == 0
    assert 7 not in node.grants()
    assert f"HAMI_HPC_SLO_US={slo} is out of range" in (node.jobs / "7" / c.FILE_REFUSED).read_text()


def test_an_slo_in_a_class_that_is_not_latency_critical_is_refused_on_the_node_too(node: Node) -> None:
    assert node.prolog(7, HAMI_HPC_SLO_US="10000") == 0
    assert 7 not in node.grants()
    refusal = (node.jobs / "7" / c.FILE_REFUSED).read_text()
    assert "slo= needs a latency-critical class, and class std is none" in refusal


def test_settings_that_others_can_write_are_refused(node: Node, capsys: pytest.CaptureFixture[str]) -> None:
    node.config.chmod(0o664)
    assert node.prolog(7) == 1
    assert "root reads only settings that root alone can write" in capsys.readouterr().err


def test_a_run_directory_that_others_can_write_is_refused(node: Node, capsys: pytest.CaptureFixture[str]) -> None:
    (node.root / "run").chmod(0o777)
    assert node.prolog(7) == 1
    assert "is not a directory that only root can write" in capsys.readouterr().err


def test_the_prolog_trusts_no_path_from_the_environment(node: Node, tmp_path: Path) -> None:
    trap = tmp_path / "trap"
    trap.mkdir()
    for name in ("sqlite3", "tomllib", "hami_hpc", "sitecustomize"):
        (trap / f"{name}.py").write_text("raise SystemExit(77)")
    evil = {"PYTHONPATH": str(trap), "PYTHONHOME": str(trap), "HAMI_HPC_CONFIG": str(trap), "PYTHONSTARTUP": str(trap)}
    assert node.run("prolog", job_environment(7) | evil) == (0, "")
    node.assert_job_is_ready(7)


def test_two_prologs_of_one_job_at_once_leave_one_complete_directory(node: Node) -> None:
    for job_id in range(1, 26):
        both = [node.start("prolog", job_environment(job_id, mem_mib=1)) for _ in range(2)]
        assert [process.communicate(timeout=60)[1] for process in both] == ["", ""]
        node.assert_job_is_ready(job_id)
    assert len(node.names()) == 25


def test_two_prologs_at_once_never_give_the_same_memory_twice(node: Node) -> None:
    for round_number in range(25):
        jobs = (1000 + 2 * round_number, 1001 + 2 * round_number)
        both = [node.start("prolog", job_environment(job_id, mem_mib=GPU_MIB - 1000)) for job_id in jobs]
        errors = [process.communicate(timeout=60)[1] for process in both]
        assert sorted(process.returncode for process in both) == [0, 1], errors
        assert len(node.grants()) == 1
        for job_id in jobs:
            assert node.epilog(job_id) == 0
    node.assert_nothing_is_held()


@pytest.mark.parametrize("umask", ["077", "000"])
def test_on_a_new_node_users_can_read_what_is_theirs_whatever_slurmds_umask_is(node: Node, umask: str) -> None:
    assert not (node.root / "state").exists()
    for stage in ("prolog", "epilog"):
        command = [str(ROOT / "prolog" / stage), *node.arguments]
        under = ["/bin/sh", "-c", f'umask {umask}; exec "$@"', "sh", *command]
        assert subprocess.run(under, env=job_environment(7), check=False).returncode == 0
    folders = (node.root / "state", node.root / "state" / "usage", node.root / "run", node.jobs)
    assert [folder.stat().st_mode & 0o777 for folder in folders] == [0o755] * 4
    assert (node.root / "state" / "usage" / "7.json").stat().st_mode & 0o007 == 0
