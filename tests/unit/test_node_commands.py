# SPDX-License-Identifier: Apache-2.0
"""inventory, jobs and doctor: what they show, and what doctor finds wrong."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from node_testbed import GPU_MIB, ROOT, UUIDS, Node

from hami_hpc.cli import doctor_command, main
from hami_hpc.cli.doctor_command import Finding, examine, plugin_version
from hami_hpc.core.inventory import Device
from hami_hpc.errors import NodeError
from hami_hpc.shell import nvml, slurm

pytest_plugins = ["unmounted"]

SLURM = {
    "PluginDir": "",
    "SLURM_VERSION": "22.05.8",
    "GresTypes": "gpu,shard,vgpu,vgpu_mem,vgpu_cores",
    "SelectType": "select/cons_tres",
    "PrologFlags": "Alloc",
    "JobSubmitPlugins": "lua",
    "CliFilterPlugins": "lua",
}


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Node:
    devices = tuple(Device(minor, uuid, "NVIDIA H200", GPU_MIB) for minor, uuid in enumerate(UUIDS))
    monkeypatch.setattr(nvml, "read_devices", lambda: devices)
    monkeypatch.setattr(slurm, "configuration", lambda: SLURM | {"PluginDir": f"/nowhere:{tmp_path}/plugins"})
    monkeypatch.setattr(slurm, "node_name", lambda: "node1")
    monkeypatch.setattr(slurm, "gpu_count", lambda _node: 2)
    return Node.make(tmp_path / "node")


def run(node: Node, *arguments: str) -> Result:
    return CliRunner().invoke(main, list(arguments), env={"HAMI_HPC_CONFIG": str(node.config)})


def build_plugin(folder: Path, name: str, version: int) -> None:
    """A shared object with the one symbol that Slurm looks at first."""
    folder.mkdir(exist_ok=True)
    source = f"const unsigned int plugin_version = {version};"
    command = ["gcc", "-shared", "-fPIC", "-x", "c", "-", "-o", str(folder / name)]
    subprocess.run(command, input=source, text=True, check=True)


def found(node: Node) -> dict[str, Finding]:
    return {finding.what: finding for finding in examine(str(node.config))}


def test_jobs_shows_limit_and_use_of_each_grant(node: Node) -> None:
    node.prolog(7, mem_mib=4096)
    node.prolog(12, gpu="1")
    node.write_usage(7, used_bytes=1000 << 20, peak_bytes=2000 << 20, oom_count=3, device_oom_count=4)
    assert [line.split() for line in run(node, "jobs").output.splitlines()[1:]] == [
        ["7", "65534", "0", "std", "4096", "1000", "2000", "3", "4", "50"],
        ["12", "65534", "1", "std", "8192", "0", "0", "0", "0", "50"],
    ]
    rows = json.loads(run(node, "jobs", "--json").output)
    assert [(row["job_id"], row["used_bytes"], row["usage"]) for row in rows] == [(7, 1000 << 20, "ok"), (12, 0, "ok")]
    assert [(row["oom_count"], row["device_oom_count"]) for row in rows] == [(3, 4), (0, 0)]


def test_inventory_shows_slurms_index_model_and_shards(node: Node) -> None:
    rows = json.loads(run(node, "inventory", "--json").output)
    assert [(row["slurm_index"], row["model"], row["total_mib"], row["shards"]) for row in rows] == [
        (0, "h200", GPU_MIB, 559),
        (1, "h200", GPU_MIB, 559),
    ]
    assert UUIDS[1] in run(node, "inventory").output


def test_doctor_is_content_with_a_node_that_has_everything(node: Node, tmp_path: Path) -> None:
    for name in (*doctor_command.GRES_PLUGINS, doctor_command.SPANK_PLUGIN):
        build_plugin(tmp_path / "plugins", name, 0x160508)
    interposer = tmp_path / "libhami-hpc.so"
    interposer.write_text("")
    text = node.config.read_text().replace("[paths]", f'[paths]\ninterposer = "{interposer}"')
    node.config.write_text(text)
    done = run(node, "doctor")
    assert done.exit_code == 0, done.output
    assert "FAIL" not in done.output
    assert all(row["is_ok"] for row in json.loads(run(node, "doctor", "--json").output))


def test_doctor_tells_what_is_missing_and_what_to_do(node: Node, tmp_path: Path) -> None:
    build_plugin(tmp_path / "plugins", "gres_vgpu.so", 0x160507)
    done = run(node, "doctor")
    assert done.exit_code == 1
    findings = found(node)
    assert not findings["gres_vgpu.so"].is_ok
    assert "for Slurm 22.05.7" in findings["gres_vgpu.so"].detail
    assert "rebuild it against the installed Slurm" in findings["gres_vgpu.so"].advice
    assert "in none of /nowhere" in findings["gres_vgpu_mem.so"].detail
    assert "No such file" in findings["interposer"].detail
    assert all(finding.advice for finding in findings.values() if not finding.is_ok)


def test_doctor_finds_an_interposer_that_others_can_write(node: Node, tmp_path: Path) -> None:
    interposer = tmp_path / "libhami-hpc.so"
    interposer.write_text("")
    interposer.chmod(0o777)
    node.config.write_text(node.config.read_text().replace("[paths]", f'[paths]\ninterposer = "{interposer}"'))
    assert not found(node)["interposer"].is_ok


@pytest.mark.parametrize(("mib", "said"), [(GPU_MIB - 1, "promises 143156"), (GPU_MIB, "h200")])
def test_doctor_finds_settings_that_promise_more_memory_than_there_is(
    node: Node, monkeypatch: pytest.MonkeyPatch, mib: int, said: str
) -> None:
    monkeypatch.setattr(nvml, "read_devices", lambda: (Device(0, UUIDS[0], "NVIDIA H200", mib),))
    finding = found(node)["GPU 0"]
    assert finding.is_ok == (mib == GPU_MIB)
    assert said in finding.detail


def test_doctor_finds_a_gpu_that_slurm_does_not_count(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slurm, "gpu_count", lambda _node: 1)
    assert not found(node)["gres.conf"].is_ok


@pytest.mark.parametrize(("arguments", "environment"), [(("--node", "node2"), {}), ((), {"HAMI_HPC_NODE": "node2"})])
def test_doctor_on_a_host_of_several_nodes_is_told_which_it_is(
    node: Node, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], environment: dict[str, str]
) -> None:
    def several() -> str:
        raise NodeError("slurm.conf has node1, node2 for host h; say which node this is with --node NAME")

    monkeypatch.setattr(slurm, "node_name", several)
    assert not found(node)["gres.conf"].is_ok
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert "OK    gres.conf: node2 has 2 gpu" in run(node, "doctor", *arguments).output


def test_doctor_goes_on_when_slurm_does_not_answer(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    def down() -> dict[str, str]:
        raise NodeError("slurmctld is down")

    monkeypatch.setattr(slurm, "configuration", down)
    findings = found(node)
    assert findings["plugins"].detail == "slurmctld is down"
    assert findings["gres.conf"].is_ok


def test_doctor_without_settings_says_only_that(tmp_path: Path) -> None:
    (finding,) = examine(str(tmp_path / "none.toml"))
    assert "cannot be read" in finding.detail


def test_the_version_of_a_plugin_is_read_without_loading_it(tmp_path: Path) -> None:
    build_plugin(tmp_path, "x.so", 0x1A0505)
    assert slurm.version_text(plugin_version(tmp_path / "x.so")) == "26.05.5"
    with pytest.raises(NodeError, match="no plugin_version"):
        plugin_version(Path(sys.executable))


@pytest.mark.parametrize(
    ("gres", "count"),
    [
        ("gpu:h200:2(S:0,1),shard:1118", 2),
        ("shard:8,gpu:1", 1),
        ("gpu:a100:4(S:0),gpu:h200:4(S:1),vgpu:std:9", 8),
        ("vgpu:std:9", 0),
    ],
)
def test_gpus_of_all_types_are_counted_and_nothing_else(monkeypatch: pytest.MonkeyPatch, gres: str, count: int) -> None:
    monkeypatch.setattr(slurm, "_output", lambda *_command: f"NodeName=n CfgTRES=gres/gpu=99 Gres={gres} NodeAddr=n")
    assert slurm.gpu_count("n") == count


def test_an_unknown_command_and_a_broken_file_end_in_one_line(node: Node) -> None:
    unknown = run(node, "nosuch")
    assert unknown.exit_code == 2
    assert "No such command 'nosuch'" in unknown.output
    node.config.write_text("version = 2\n")
    broken = run(node, "jobs")
    assert broken.exit_code == 1
    assert broken.output.count("\n") == 1


def test_the_node_commands_load_without_accountings_libraries() -> None:
    code = (
        "import sys; sys.modules['pandas'] = sys.modules['duckdb'] = sys.modules['pyarrow'] = None\n"
        "from click.testing import CliRunner; from hami_hpc.cli import main\n"
        "print(CliRunner().invoke(main, ['jobs', '--help']).exit_code, CliRunner().invoke(main, ['--help']).exit_code)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert done.stdout.split() == ["0", "0"]
