# SPDX-License-Identifier: Apache-2.0
"""render: what Slurm and the filters read agrees with the settings and the node's GPUs."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st
from node_testbed import GPU_MIB, ROOT, Node

from hami_hpc.cli import main
from hami_hpc.core.inventory import Gpu
from hami_hpc.core.site import Site
from hami_hpc.errors import NodeError
from hami_hpc.node import nvml
from hami_hpc.render.offer import hostlist, lua_text, make_offer

FILES = [
    "gres.conf",
    "hami-hpc-gres.conf",
    "hami-hpc-metrics.service",
    "hami-hpc-reconcile.service",
    "hami-hpc-reconcile.timer",
    "hami-hpc-agent.service",
    "hami-hpc-pam.conf",
    "hami-hpc-tenants.txt",
    "hami_hpc_site.lua",
    "plugstack.conf",
    "plugstack.conf.d/hami-hpc.conf",
    "slurm-hami-hpc.conf",
]
LUAS = [name for name in ("lua5.1", "lua5.4") if shutil.which(name)]
SITE = Site(256, 1.0, "25%", 25, "allow", ["share"], {}, {"h200": 143156, "a100": 40330}, {})


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node.make(tmp_path / "node", with_gpus=False)


def files_in(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def render(node: Node, *arguments: str) -> Result:
    given = ["render", "--config", str(node.config), "--gpus", "h200:2", "--node", "node1"]
    return CliRunner().invoke(main, [*given, "--output", str(node.root / "etc"), *arguments], catch_exceptions=False)


def test_all_files_are_written_and_a_second_time_none_changes(node: Node) -> None:
    first = render(node)
    assert first.exit_code == 0
    written = sorted(str(path.relative_to(node.root / "etc")) for path in files_in(node.root / "etc"))
    assert written == sorted([*FILES, "hami-hpc-prolog", "hami-hpc-epilog"])
    times = {path: path.stat().st_mtime_ns for path in files_in(node.root / "etc")}
    second = render(node)
    assert second.output.count("unchanged") == len(times)
    assert {path: path.stat().st_mtime_ns for path in files_in(node.root / "etc")} == times


def test_a_hook_without_memory_left_does_not_end_the_agent(node: Node) -> None:
    assert render(node).exit_code == 0
    unit = (node.root / "etc" / "hami-hpc-agent.service").read_text().splitlines()
    assert {"MemoryMax=256M", "OOMPolicy=continue"} <= set(unit)


@pytest.mark.parametrize(
    ("reconcile", "apply", "status"), [(0, 0, 0), (3, 0, 3), (0, 1, 1), (3, 1, 1)], ids=lambda value: str(value)
)
def test_a_static_mig_layout_is_made_at_boot_whatever_reconcile_leaves_to_a_person(
    node: Node, tmp_path: Path, reconcile: int, apply: int, status: int
) -> None:
    """slurmd does not start without its devices, and after a power cut slurmctld may not answer yet."""
    assert render(node).exit_code == 0
    unit = (node.root / "etc" / "hami-hpc-reconcile.service").read_text()
    program = tmp_path / "program"
    program.write_text(
        f'#!/bin/sh\necho "$*" >>"$0.log"\ncase $1 in reconcile) exit {reconcile} ;; esac\nexit {apply}\n'
    )
    program.chmod(0o755)
    ended = 0
    for line in re.findall(
        r"^ExecStart=(.*)$", unit.replace(f"{sys.executable} -I -m hami_hpc.cli", str(program)), re.M
    ):
        words = [word.replace("$$", "$") for word in shlex.split(line)]
        ended = ended or subprocess.run(words, check=False).returncode  # systemd leaves the others out after a failure
    assert Path(f"{program}.log").read_text() == "reconcile\nmig apply\n"
    assert ended == status


def test_a_dry_run_prints_the_files_and_writes_nothing(node: Node) -> None:
    done = render(node, "--dry-run")
    assert all(f"/{name} <==" in done.output for name in FILES)
    assert not (node.root / "etc").exists()


def test_gres_conf_counts_shards_per_gpu_and_lets_the_plugins_load(node: Node) -> None:
    render(node)
    text = (node.root / "etc" / "hami-hpc-gres.conf").read_text()
    lines = [line for line in text.splitlines() if line.startswith("NodeName")]
    assert lines == [
        "NodeName=node1 Name=gpu Type=h200 File=/dev/nvidia[0-1]",
        "NodeName=node1 Name=shard Type=h200 Count=1118 File=/dev/nvidia[0-1]",
        "NodeName=node1 Name=vgpu Type=std Count=1118",
        "NodeName=node1 Name=vgpu Type=lc Count=1118",
        "NodeName=node1 Name=vgpu Type=be Count=1118",
        f"NodeName=node1 Name=vgpu_mem Count={2 * GPU_MIB}",
        "NodeName=node1 Name=vgpu_cores Count=200",
        f"NodeName=node1 Name=vgpu_slo Count={1118 * 60_000_000}",
    ]


def test_the_fragment_offers_what_gres_conf_has(node: Node) -> None:
    render(node, "--node-parameters", "CPUs=8 Port=7777", "--plugin-dir", "/a:/b", "--prolog", "/p", "--epilog", "/e")
    text = (node.root / "etc" / "slurm-hami-hpc.conf").read_text()
    settings = dict(line.split("=", 1) for line in text.splitlines() if line and not line.startswith("#"))
    assert settings["NodeName"] == (
        "node1 CPUs=8 Port=7777 Gres=gpu:h200:2,shard:h200:1118,vgpu:std:1118,vgpu:lc:1118,vgpu:be:1118,"
        f"vgpu_mem:{2 * GPU_MIB},vgpu_cores:200,vgpu_slo:67080000000 "
        "Feature=vgpu_share,vgpu_type_h200,vgpu_policy_cap,vgpu_policy_burst"
    )
    assert settings["GresTypes"] == "gpu,shard,vgpu,vgpu_mem,vgpu_cores,vgpu_slo"
    assert settings["PluginDir"] == "/a:/b"
    assert (settings["Prolog"], settings["Epilog"], settings["PrologFlags"]) == ("/p", "/e", "Alloc")
    tracked = settings["AccountingStorageTRES"].split(",")
    assert {"gres/gpu", "gres/gpu:h200", "gres/vgpu:be", "gres/vgpu_mem", "gres/vgpu_cores"} <= set(tracked)
    assert not (node.root / "etc" / "hami-hpc-prolog").exists(), "the given script is used as it is"


def test_slurmd_itself_reads_the_files_and_spreads_the_shards(node: Node) -> None:
    if shutil.which("slurmd") is None:
        pytest.fail("slurmd is not installed: apt-get install slurmd")
    for number in range(2):
        (node.root / f"nvidia{number}").touch()
    host = subprocess.run(["hostname", "-s"], capture_output=True, text=True, check=True).stdout.strip()
    render(node, "--device", str(node.root / "nvidia"), "--node-parameters", f"NodeHostname={host} CPUs=1")
    (node.root / "slurm.conf").write_text(
        f"ClusterName=x\nSlurmctldHost=localhost\nSlurmdSpoolDir={node.root}\nStateSaveLocation={node.root}\n"
        f"ProctrackType=proctrack/linuxproc\ninclude {node.root}/etc/slurm-hami-hpc.conf\n"
        "PartitionName=gpu Nodes=node1\n"
    )
    (node.root / "gres.conf").write_text("include etc/hami-hpc-gres.conf\n")
    # A container or chroot may have no cgroups, without which slurmd stops. Slurm knows "disabled" from 23.11 on;
    # before, the plugin for v1 is the one that looks at nothing until it is used.
    release = subprocess.run(["slurmd", "-V"], capture_output=True, text=True, check=True).stdout.split()[-1]
    plugin = "disabled" if tuple(int(part) for part in release.split(".")[:2]) >= (23, 11) else "cgroup/v1"
    (node.root / "cgroup.conf").write_text(f"CgroupPlugin={plugin}\n")
    command = ["slurmd", "-G", "-f", str(node.root / "slurm.conf"), "-N", "node1"]
    done = subprocess.run(command, capture_output=True, text=True)
    said = done.stdout + done.stderr
    found = re.findall(r"Gres Name=(\S+) Type=(\S+) Count=(\d+)(?: Index=(\d+))?", said)
    assert sorted(found) == sorted(
        [
            ("gpu", "h200", "1", "0"),
            ("gpu", "h200", "1", "1"),
            ("shard", "h200", "559", "0"),
            ("shard", "h200", "559", "1"),
            ("vgpu", "std", "1118", ""),
            ("vgpu", "lc", "1118", ""),
            ("vgpu", "be", "1118", ""),
            ("vgpu_mem", "(null)", str(2 * GPU_MIB), ""),
            ("vgpu_cores", "(null)", "200", ""),
            ("vgpu_slo", "(null)", "67080000000", ""),
        ]
    ), said


def test_a_class_of_the_sites_own_is_a_type_of_gres_in_each_file(node: Node) -> None:
    text = '[classes.interactive]\nqos = ["desk"]\npolicies = ["burst", "none"]\n'
    node.config.write_text(node.config.read_text() + text)
    render(node)
    etc = node.root / "etc"
    gres = (etc / "hami-hpc-gres.conf").read_text().splitlines()
    assert "NodeName=node1 Name=vgpu Type=interactive Count=1118" in gres
    conf = (etc / "slurm-hami-hpc.conf").read_text()
    assert "vgpu:be:1118,vgpu:interactive:1118,vgpu_mem:" in conf
    assert "gres/vgpu:be,gres/vgpu:interactive,gres/vgpu_mem" in conf
    assert "vgpu_policy_none" in conf
    lua = (etc / "hami_hpc_site.lua").read_text()
    assert re.search(r'interactive.* = \{ *"desk" *\}', lua), lua
    assert re.search(r'interactive.* = \{ *"burst", "none" *\}', lua), lua
    node.config.write_text(node.config.read_text().replace(text, ""))
    render(node)
    assert not [path.name for path in files_in(etc) if "interactive" in path.read_text()], "a class that is gone"


@pytest.mark.parametrize("lua", LUAS)
def test_the_site_table_is_lua_of_every_version(node: Node, lua: str) -> None:
    render(node)
    script = (
        "local t = dofile(arg[1]); print(t.version, t.shard_mib, t.default_mem, t.bare_shard, t.qos_enforced, "
        "t.modes[1], #t.classes.std, t.classes.lc[1], t.gpu_models.h200.total_mib, t.partitions.gpu.gpu_models[1])"
    )
    command = [lua, "-e", script.replace("arg[1]", f"'{node.root}/etc/hami_hpc_site.lua'")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["1", "256", "25%", "refuse", "auto", "share", "0", "lc", "143156", "h200"]


def test_the_fragment_for_configless_hosts_has_the_same_table(node: Node) -> None:
    render(node)
    etc = node.root / "etc"
    sent = [line[5:] for line in (etc / "slurm-hami-hpc.conf").read_text().splitlines() if line.startswith("#lua ")]
    table = (etc / "hami_hpc_site.lua").read_text().partition("\nreturn ")[2]
    assert "\n".join(sent) == table.rstrip("\n")


@given(st.text(max_size=60))
def test_any_text_is_escaped_into_one_printable_lua_string(text: str) -> None:
    literal = lua_text(text)
    assert literal.isascii()
    assert literal.isprintable()
    inner = re.sub(r"\\(\d{3})", lambda match: chr(int(match[1])), literal[1:-1])
    assert inner.encode("latin-1") == text.encode()
    assert '"' not in re.sub(r"\\\d{3}", "", literal[1:-1])


@pytest.mark.parametrize("lua", LUAS)
def test_lua_reads_escaped_text_as_it_was(lua: str) -> None:
    text = 'a"b\\c\n\0 9]]--\u00e9'
    done = subprocess.run([lua, "-e", f"io.write({lua_text(text)})"], capture_output=True, check=True)
    assert done.stdout == text.encode()


def test_the_wrappers_pass_the_settings_on(node: Node) -> None:
    render(node)
    wrapper = node.root / "etc" / "hami-hpc-prolog"
    assert f"exec '{ROOT}/prolog/prolog' --config '{node.config}'" in wrapper.read_text()
    done = subprocess.run([wrapper], env={"HAMI_HPC_VGPU": "1", "SLURM_JOB_ID": "7"}, capture_output=True, text=True)
    assert done.returncode == 1
    assert "job 7 has a vgpu but HAMI_HPC_CLASS" in done.stderr


@pytest.mark.parametrize(
    ("gpus", "said"),
    [
        ("h300:2", "known|model of: h200"),
        *((f"h200:{count}", "MODEL:COUNT") for count in ("x", "0", "257", "", "²", "9" * 5000)),
    ],
)
def test_gpus_given_by_hand_must_be_of_the_settings(node: Node, gpus: str, said: str) -> None:
    done = CliRunner().invoke(main, ["render", "--config", str(node.config), "--gpus", gpus, "--dry-run"])
    assert done.exit_code == 2
    assert re.search(said, done.output)


def test_a_machine_without_gpus_is_told_how_to_render_for_others(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_driver() -> None:
        raise NodeError("NVML cannot be used")

    monkeypatch.setattr(nvml, "read_devices", no_driver)
    words = ["render", "--config", str(node.config), "--output", str(node.root / "etc")]
    done = CliRunner().invoke(main, words)
    assert done.exit_code == 1
    assert (
        "NVML cannot be used. On a machine without GPUs name those of the nodes: --inventory DIRECTORY" in done.stderr
    )


def test_a_node_with_two_models_is_refused_with_what_to_do_instead(node: Node) -> None:
    node.config.write_text(node.config.read_text() + "[gpu_models.a100]\ntotal_mib = 40330\n")
    done = CliRunner().invoke(
        main, ["render", "--config", str(node.config), "--gpus", "h200:2,a100:1", "-o", str(node.root / "etc")]
    )
    assert done.exit_code == 1
    assert "GPUs of 2 models (a100, h200)" in done.output
    assert "Give every node GPUs of one model" in done.output
    assert not (node.root / "etc").exists()
    assert make_offer(SITE, [Gpu(0, 0, "", "a100", "a100", 40330)]).shards == 157


@given(st.sets(st.integers(0, 40), min_size=1))
def test_a_hostlist_names_exactly_the_numbers_given(numbers: set[int]) -> None:
    found: set[int] = set()
    for part in hostlist(numbers).strip("[]").split(","):
        first, _, last = part.partition("-")
        found |= set(range(int(first), int(last or first) + 1))
    assert found == numbers


def test_a_default_that_no_request_could_have_is_refused_before_anything_is_written(node: Node) -> None:
    node.config.write_text(node.config.read_text().replace("version = 1", "version = 1\n[vgpu]\ndefault_mem = '25'"))
    done = render(node)
    assert done.exit_code == 1
    assert "default_mem" in done.output
    assert not (node.root / "etc").exists()


def test_render_imports_no_pandas() -> None:
    code = "import sys, hami_hpc.cli.render_command; print([m for m in ('pandas', 'duckdb') if m in sys.modules])"
    done = subprocess.run(
        [str(ROOT / ".venv/bin/python"), "-c", code], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert done.stdout.strip() == "[]"
