# SPDX-License-Identifier: Apache-2.0
"""render on a site that has files of its own: none of them is changed, and what is printed serves both."""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import threading
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from node_testbed import GPU_MIB, ROOT, Node

from hami_hpc.cli import main, render_command
from hami_hpc.render.marks import is_ours

SLURM_CONF = """\
ClusterName=site   # a comment
GresTypes=gpu,bandwidth
SelectType=select/cons_res
JobSubmitPlugins=all_partitions
CliFilterPlugins=lua
PrologFlags=X11
include conf.d/stages.conf
NodeName=DEFAULT Feature=rack1
NodeName=node[1-4] CPUs=64 \\
    RealMemory=512000 Gres=gpu:2,bandwidth:lustre:10G
PartitionName=gpu Nodes=node[1-4] Prolog=/not/a/key/here
"""
STAGES = "Prolog={etc}/prolog\nEpilog={etc}/epilog.d/*\nAccountingStorageTRES=gres/gpu,license/x\n"
SLURMDBD = "AccountingStorageType=accounting_storage/slurmdbd\n"
FEATURES = "vgpu_share,vgpu_type_h200,vgpu_policy_cap,vgpu_policy_burst"
OFFER = (
    "shard:h200:1118,vgpu:std:1118,vgpu:lc:1118,vgpu:be:1118,"
    f"vgpu_mem:{2 * GPU_MIB},vgpu_cores:200,vgpu_slo:67080000000"
)
FOREIGN_SUBMIT = "function slurm_job_submit(j, p, u) return slurm.SUCCESS end\n-- hami_hpc.lua .job_submit(\n"


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node.make(tmp_path / "node", with_gpus=False)


@pytest.fixture
def site(node: Node) -> Path:
    """A site's /etc/slurm with slurm.conf, gres.conf, plugstack.conf, stages and filters of its own."""
    etc = node.root / "etc"
    for folder in ("conf.d", "epilog.d", "plugstack.conf.d"):
        (etc / folder).mkdir(parents=True)
    (etc / "slurm.conf").write_text(SLURM_CONF)
    (etc / "conf.d" / "stages.conf").write_text(STAGES.format(etc=etc) + SLURMDBD)
    (etc / "gres.conf").write_text("NodeName=node[1-4] Name=gpu File=/dev/nvidia[0-1]\nName=bandwidth Count=10G\n")
    (etc / "plugstack.conf").write_text("optional /usr/lib/site.so a=b\n")
    (etc / "job_submit.lua").write_text(FOREIGN_SUBMIT)
    for script in ("prolog", "epilog.d/50-site"):
        (etc / script).write_text("#!/bin/sh\n# hami-hpc-prolog hami-hpc-epilog\n")
    return etc


def render(node: Node, *arguments: str, name: str = "node1", gpus: str = "h200:2") -> Result:
    given = ["render", "--config", str(node.config), "--gpus", gpus, "--node", name]
    return CliRunner().invoke(main, [*given, "--output", str(node.root / "etc"), *arguments], catch_exceptions=False)


def snapshot(folder: Path) -> dict[str, tuple[str, int, int]]:
    """Name -> digest, mode and time of every file, and of every directory its names."""
    found = {}
    for path in sorted(folder.rglob("*")):
        data = path.read_bytes() if path.is_file() else b"directory"
        status = path.stat()
        found[str(path)] = (hashlib.sha256(data).hexdigest(), status.st_mode, status.st_mtime_ns * path.is_file())
    return found


def merged(output: str) -> list[str]:
    """The lines that render tells the administrator to write or run."""
    return re.findall(r"^ {9}(\S.*)$", output, re.MULTILINE)


def test_nothing_of_the_sites_own_changes(node: Node, site: Path) -> None:
    before = snapshot(site)
    done = render(node)
    assert done.exit_code == 3, done.output
    after = snapshot(site)
    assert {name: after[name] for name in before} == before
    assert all("hami" in name for name in after.keys() - before.keys())


def test_keys_that_slurm_conf_has_are_left_out_and_printed_merged(node: Node, site: Path) -> None:
    done = render(node)
    fragment = (site / "slurm-hami-hpc.conf").read_text()
    assert [line for line in fragment.splitlines() if line and not line.startswith("#")] == []
    lines = merged(done.output)
    assert "GresTypes=gpu,bandwidth,shard,vgpu,vgpu_mem,vgpu_cores,vgpu_slo" in lines
    assert "SelectType=select/cons_tres" in lines
    assert "JobSubmitPlugins=all_partitions,lua" in lines
    assert not any(line.startswith(("CliFilterPlugins", "PrologFlags")) for line in lines), "both are right already"
    tracked = next(line for line in lines if line.startswith("AccountingStorageTRES="))
    assert tracked.startswith("AccountingStorageTRES=gres/gpu,license/x,gres/gpu:h200,gres/shard,")
    assert f"Gres=gpu:h200:2,{OFFER},bandwidth:lustre:10G Feature=rack1,{FEATURES}" in lines
    assert "include slurm-hami-hpc.conf" in lines
    assert f"{site}/slurm.conf, line 2: instead of GresTypes=gpu,bandwidth write:" in done.output
    assert f"{site}/conf.d/stages.conf, line 3: instead of AccountingStorageTRES=" in done.output


def test_the_sites_own_prolog_and_epilog_keep_running_beside_ours(node: Node, site: Path) -> None:
    lines = merged(render(node).output)
    folder = f"{site}/hami-hpc-prolog.d"
    assert f"ln -s {site}/hami-hpc-prolog {folder}/00-hami-hpc" in lines
    assert f"Prolog={folder}/*" in lines
    assert f"ln -s {site}/hami-hpc-epilog {site}/epilog.d/zz-hami-hpc" in lines
    for line in lines:
        if line.startswith(("mkdir", "printf", "chmod", "ln ")):
            subprocess.run(["sh", "-c", line], check=True)
    assert (Path(folder) / "50-site").read_text() == f"#!/bin/sh\nexec {site}/prolog\n"
    assert os.access(f"{folder}/00-hami-hpc", os.X_OK)


@pytest.mark.parametrize(
    ("pattern", "prolog", "epilog"),
    [
        ("*", "00-hami-hpc", "zz-hami-hpc"),
        ("site-*.sh", "site-00-hami-hpc.sh", "site-zz-hami-hpc.sh"),
        ("[0-9]*", "00-hami-hpc", "zz-hami-hpc"),
    ],
)
def test_a_link_beside_the_sites_own_stages_has_a_name_that_their_pattern_matches(
    node: Node, site: Path, pattern: str, prolog: str, epilog: str
) -> None:
    (site / "conf.d" / "stages.conf").write_text(f"Prolog={site}/p.d/{pattern}\nEpilog={site}/epilog.d/{pattern}\n")
    lines = merged(render(node).output)
    assert f"ln -s {site}/hami-hpc-prolog {site}/p.d/{prolog}" in lines
    assert f"ln -s {site}/hami-hpc-epilog {site}/epilog.d/{epilog}" in lines


def test_gres_conf_keeps_its_gpu_lines_and_gets_an_include(node: Node, site: Path) -> None:
    lines = merged(render(node).output)
    assert "NodeName=node[1-4] Name=gpu Type=h200 File=/dev/nvidia[0-1]" in lines
    assert "include hami-hpc-gres.conf" in lines
    ours = (site / "hami-hpc-gres.conf").read_text()
    assert "Name=gpu " not in ours, "slurmd would count the GPUs twice"
    assert "NodeName=node1 Name=shard Type=h200 Count=1118 File=/dev/nvidia[0-1]" in ours


@pytest.mark.parametrize("shared", ["include plugstack.conf.d/*.conf", "include {etc}/plugstack.conf.d/*"])
def test_a_plugstack_conf_that_includes_the_drop_in_needs_nothing(node: Node, site: Path, shared: str) -> None:
    assert f"include {site}/plugstack.conf.d/hami-hpc.conf" in merged(render(node).output)
    (site / "plugstack.conf").write_text(f"{shared.format(etc=site)}\n")
    assert not any("plugstack.conf" in line for line in merged(render(node).output))


def test_an_optional_line_or_one_with_other_arguments_is_to_be_replaced(node: Node, site: Path) -> None:
    (site / "plugstack.conf").write_text("optional /x/spank_hami_hpc.so run_dir=/other\n")
    (line,) = (line for line in merged(render(node).output) if "spank_hami_hpc" in line)
    assert line.startswith("required spank_hami_hpc.so run_dir=")


def test_filters_of_the_sites_own_get_the_lines_to_add(node: Node, site: Path) -> None:
    lines = merged(render(node).output)
    assert "local rc = hami.job_submit(job_desc, part_list, submit_uid)" in lines, "a comment calls nothing"
    assert f"install -m 0644 {ROOT}/slurm-plugins/lua/cli_filter.lua {site}/cli_filter.lua" in lines
    for name in ("job_submit.lua", "cli_filter.lua"):
        (site / name).write_bytes((ROOT / "slurm-plugins" / "lua" / name).read_bytes())
    assert not any("lua" in line and "Plugins" not in line for line in merged(render(node).output))


def test_after_merging_nothing_is_left(node: Node, site: Path) -> None:
    for _ in range(2):  # what the first run prints is what the second wants
        lines = merged(render(node).output)
        keys = [line for line in lines if re.match(r"(GresTypes|SelectType|JobSubmit|AccountingStorage|Prolog)", line)]
        for line in lines:
            if line.startswith(("mkdir", "printf", "chmod", "ln ")):
                subprocess.run(["sh", "-c", line], check=True)
        if keys:
            node_line = next(line for line in lines if line.startswith("Gres="))
            text = "\n".join(keys) + f"\nCliFilterPlugins=lua\nPrologFlags=X11\nEpilog={site}/epilog.d/*\n"
            text += f"NodeName=node[1-4] CPUs=64 {node_line}\ninclude slurm-hami-hpc.conf\n{SLURMDBD}"
            (site / "slurm.conf").write_text(text)
            gpus = "NodeName=node[1-4] Name=gpu Type=h200 File=/x\n"
            (site / "gres.conf").write_text(f"{gpus}include hami-hpc-gres.conf\n")
            (site / "plugstack.conf").write_text("include plugstack.conf.d/*.conf\n")
            for name in ("job_submit.lua", "cli_filter.lua"):
                (site / name).write_bytes((ROOT / "slurm-plugins" / "lua" / name).read_bytes())
    done = render(node)
    assert (done.exit_code, merged(done.output)) == (0, [])


def test_each_nodes_run_adds_or_replaces_its_own_lines(node: Node) -> None:
    etc = node.root / "etc"
    render(node, name="node2", gpus="h200:4")
    render(node, name="node1")
    render(node, name="node2", gpus="h200:8")
    for name in ("slurm-hami-hpc.conf", "hami-hpc-gres.conf"):
        text = (etc / name).read_text()
        assert re.findall(r"^# --- node (\S+)$", text, re.MULTILINE) == ["node1", "node2"]
    lines = (etc / "slurm-hami-hpc.conf").read_text().splitlines()
    assert [line.split(",")[0] for line in lines if line.startswith("NodeName")] == [
        "NodeName=node1 Gres=gpu:h200:2",
        "NodeName=node2 Gres=gpu:h200:8",
    ]
    assert (etc / "hami-hpc-gres.conf").read_text().count("Name=gpu") == 2


def test_a_node_that_the_sites_slurm_conf_does_not_name_is_pointed_out(node: Node, site: Path) -> None:
    said = f"note: {site}/slurm.conf has no NodeName=login7 ({site}/slurm.conf, line 9 has node[1-4]), so "
    done = render(node, name="login7")
    assert said in done.output
    assert "run hami-hpc forget-node login7, then this command again with --node NAME" in done.output
    assert "has no NodeName" not in render(node, "--node-parameters", "CPUs=64", name="login7").output
    assert "has no NodeName" not in render(node).output


def test_a_restart_is_asked_for_when_all_is_merged_and_slurms_daemons_read_something_new(node: Node) -> None:
    first = render(node)
    assert (first.exit_code, "\nnext: restart slurmd on the nodes, then slurmctld; " in first.output) == (0, True)
    assert "next: " not in render(node).output
    (node.root / "etc" / "hami-hpc-metrics.service").unlink()
    assert "next: " not in render(node).output
    assert "next: " not in render(node, "--diff", gpus="h200:4").output
    assert "next: " in render(node, gpus="h200:4").output


def test_two_runs_at_once_lose_no_node(node: Node) -> None:
    render(node, name="node0")
    command = [str(ROOT / ".venv/bin/hami-hpc"), "render", "--config", str(node.config), "--gpus", "h200:2"]

    def run(name: str) -> None:
        full = [*command, "--node", name, "-o", str(node.root / "etc")]
        subprocess.run(full, check=True, capture_output=True)

    threads = [threading.Thread(target=run, args=(f"node{number}",)) for number in range(1, 7)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    text = (node.root / "etc" / "hami-hpc-gres.conf").read_text()
    assert re.findall(r"^# --- node (\S+)$", text, re.MULTILINE) == ["node[0-6]"]
    assert is_ours(text)


def test_an_edited_file_is_kept_until_force_which_keeps_a_copy(node: Node) -> None:
    render(node)
    path = node.root / "etc" / "plugstack.conf.d" / "hami-hpc.conf"
    edited = path.read_text().replace("required", "optional")
    path.write_text(edited)
    before = snapshot(node.root / "etc")
    done = render(node)
    assert done.exit_code == 1
    assert "was edited since render wrote it" in done.output
    assert "--force" in done.output
    assert snapshot(node.root / "etc") == before
    assert render(node, "--force").exit_code == 0
    assert "required" in path.read_text()
    (copy,) = path.parent.glob("hami-hpc.conf.bak-*")
    assert copy.read_text() == edited


@pytest.mark.parametrize(("answer", "is_replaced"), [("y", True), ("n", False)])
def test_at_a_terminal_render_asks_before_it_replaces_an_edited_file(
    node: Node, monkeypatch: pytest.MonkeyPatch, answer: str, is_replaced: bool
) -> None:
    render(node)
    path = node.root / "etc" / "hami-hpc-gres.conf"
    path.write_text(path.read_text() + "# edited\n")
    monkeypatch.setattr(render_command, "is_terminal", lambda: True)
    arguments = ["render", "--config", str(node.config), "--gpus", "h200:2", "--node", "node1"]
    done = CliRunner().invoke(main, [*arguments, "-o", str(node.root / "etc")], input=f"{answer}\n")
    assert "Replace it (a copy is kept beside it)?" in done.output
    assert done.exit_code == (0 if is_replaced else 1)
    assert ("# edited" not in path.read_text()) == is_replaced


def test_a_file_or_link_of_somebody_elses_under_our_name_is_kept(node: Node) -> None:
    etc = node.root / "etc"
    etc.mkdir()
    (etc / "slurm-hami-hpc.conf").symlink_to("/etc/passwd")
    done = render(node)
    assert done.exit_code == 1
    assert "was not written by this render" in done.output
    assert (etc / "slurm-hami-hpc.conf").is_symlink()
    assert render(node, "--force").exit_code == 0
    assert next(etc.glob("slurm-hami-hpc.conf.bak-*")).is_symlink()


def test_a_gres_conf_of_an_earlier_release_is_the_sites(node: Node) -> None:
    etc = node.root / "etc"
    etc.mkdir()
    old = "# hami_hpc: gres.conf of node1, written by `hami-hpc render`\nNodeName=node1 Name=shard Count=8\n"
    (etc / "gres.conf").write_text(old)
    done = render(node)
    assert done.exit_code == 3
    assert "delete this line" in done.output
    assert (etc / "gres.conf").read_text() == old


def test_diff_shows_and_changes_nothing(node: Node) -> None:
    first = render(node, "--diff")
    assert first.exit_code == 3
    assert "+GresTypes=gpu,shard" in first.output
    assert not (node.root / "etc").exists()
    render(node)
    same = render(node, "--diff")
    assert same.exit_code == 0
    assert "@@" not in same.output
    assert "-NodeName=node1 Name=vgpu_cores Count=200" in render(node, "--diff", gpus="h200:1").output


def test_diff_says_where_only_a_files_mode_or_kind_differs(node: Node) -> None:
    """Such as files that were copied with umask 077, which sbatch could not read."""
    render(node)
    site, prolog = node.root / "etc/hami_hpc_site.lua", node.root / "etc/hami-hpc-prolog"
    site.chmod(0o600)
    prolog.rename(node.root / "elsewhere")
    prolog.symlink_to(node.root / "elsewhere")
    done = render(node, "--diff")
    assert done.exit_code == 3
    assert f"{site}: the same content, its mode 0600 would be 0644\n" in done.output
    assert f"{prolog}: the same content, no link any more\n" in done.output


def test_a_full_disk_leaves_the_old_file(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    render(node)
    before = snapshot(node.root / "etc")

    def full(_fd: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    done = render(node, gpus="h200:1")
    assert done.exit_code == 1
    assert "No space left" in done.output
    assert snapshot(node.root / "etc") == before


def test_an_include_that_is_not_there_is_named(node: Node, site: Path) -> None:
    (site / "conf.d" / "stages.conf").unlink()
    done = render(node)
    assert done.exit_code == 1
    assert f"{site}/slurm.conf, line 7 includes" in done.output
