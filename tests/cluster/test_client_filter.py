# SPDX-License-Identifier: Apache-2.0
"""CliFilterPlugins=hami_hpc and =lua in sbatch, salloc and srun: both do the same with a vgpu request. The first leaves
all other commands alone, whatever is wrong with Slurm's cli_filter/lua or its script, and needs neither for what most
users ask sbatch for."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from harness import config, jobs
from harness.jobs import Done
from harness.layout import Layout

USER = "games"
FORMS = ("hami_hpc", "lua")
REQUEST = "vgpu:mem=8G,cores=50"
REFUSED_HERE = "hami_hpc: vgpu requests cannot be checked on this host"


def client_conf(layout: Layout, name: str, change: Callable[[Path], object]) -> dict[str, str]:
    """Returns the variable that names slurm.conf in a changed copy of the configuration, which only clients read."""
    etc = config.copy_for_clients(layout, name)
    change(etc)
    return {"SLURM_CONF": str(etc / "slurm.conf")}


def edit(etc: Path, old: str, new: str) -> None:
    fragment = etc / "slurm-hami-hpc.conf"
    text = fragment.read_text()
    assert old in text
    fragment.write_text(text.replace(old, new))


@pytest.fixture
def forms(cluster: Layout) -> dict[str, dict[str, str]]:
    """The environment of a client of each form."""
    assert "\nCliFilterPlugins=hami_hpc\n" in (cluster.etc / "slurm-hami-hpc.conf").read_text(), "render's choice"
    with_lua = client_conf(cluster, "lua", lambda etc: edit(etc, "CliFilterPlugins=hami_hpc", "CliFilterPlugins=lua"))
    return {"hami_hpc": {}, "lua": with_lua}


def sbatch(layout: Layout, extra: dict[str, str], *options: str, lines: str = "") -> Done:
    script = f"#!/bin/sh\n{lines}true\n"
    return jobs.run_as(layout, USER, ("sbatch", "--parsable", "--hold", *options), extra=extra, stdin=script)


@pytest.mark.parametrize("form", FORMS)
def test_a_request_may_stand_in_an_option_a_line_of_the_script_or_the_environment(
    cluster: Layout, forms: dict[str, dict[str, str]], form: str
) -> None:
    done = [
        sbatch(cluster, forms[form], f"--gres={REQUEST}"),
        sbatch(cluster, forms[form], lines=f"#SBATCH --gres={REQUEST}\n"),
        sbatch(cluster, forms[form] | {"SBATCH_GRES": REQUEST}),
    ]
    for one in done:
        assert one.status == 0, one.text
        asked = jobs.job_facts(cluster, int(one.out))["TRES"]
        assert "gres/vgpu_mem=8192" in asked
        assert "gres/vgpu_cores=50" in asked
    jobs.run_as(cluster, "root", ("scancel", f"--user={USER}"))


@pytest.mark.parametrize("form", FORMS)
def test_srun_and_salloc_get_a_slice_of_their_own(cluster: Layout, forms: dict[str, dict[str, str]], form: str) -> None:
    show, extra = ("printenv", "HAMI_HPC_MEM_MIB", "HAMI_HPC_CORES"), forms[form]
    done = [
        jobs.run_as(cluster, USER, ("srun", "-n1", f"--gres={REQUEST}", *show), extra=extra),
        jobs.run_as(cluster, USER, ("srun", "-n1", *show), extra=extra | {"SLURM_GRES": REQUEST}),
        jobs.run_as(cluster, USER, ("salloc", f"--gres={REQUEST}", "srun", "-n1", *show), extra=extra),
        jobs.run_as(cluster, USER, ("salloc", "srun", "-n1", *show), extra=extra | {"SALLOC_GRES": REQUEST}),
    ]
    assert [(one.status, one.out.split()) for one in done] == [(0, ["8192", "50"])] * 4, done


@pytest.mark.parametrize("form", FORMS)
def test_a_step_gets_its_part_of_the_job(cluster: Layout, forms: dict[str, dict[str, str]], form: str) -> None:
    step = "srun -n1 --exact --gres=vgpu:mem=3G,cores=20 printenv HAMI_HPC_MEM_MIB HAMI_HPC_CORES"
    too_much = "srun -n1 --gres=vgpu:mem=9G,cores=20 true"
    script = f"#!/bin/sh\n{step}\nsrun -n1 printenv HAMI_HPC_MEM_MIB\n{too_much} 2>&1 | grep -c 'hami_hpc: '\n"
    command = ("sbatch", "--parsable", f"--gres={REQUEST}")
    done = jobs.run_as(cluster, USER, command, extra=forms[form], stdin=script)
    assert done.status == 0, done.text
    jobs.wait_for_state(cluster, int(done.out), "COMPLETED")
    assert jobs.output(cluster, USER, int(done.out)).split() == ["3072", "20", "8192", "1"]


BAD = (
    ("--gres=vgpu:mem=0",),
    ("--gres=vgpu:memory=8G",),
    ("--gres=vgpu:mem=8G,mem=9G",),
    ("--gres=vgpu:a100:mem=8G,cores=50",),
    ("--gres=vgpu:mem=8G,mode=fast",),
    (f"--gres={REQUEST}", "--constraint=vgpu_mig"),
    ("--gres=vgpu:mem=1G,gpu:1",),
    ("--gres=VGPU:mem=1G",),
    ("--gres=gpu:0, vGPU",),
    ("--gres= vgpu:mem=1G",),
    ("--gres=shard:1,vgpu:std:1,vgpu_mem:90000,vgpu_cores:1",),
    ("--gpus=vgpu:1",),
    ("--gpus-per-node=vgpu:mem=8G",),
    ("--partition=cpu", f"--gres={REQUEST}"),
    (f"--gres={REQUEST}", "--mem-per-gpu=1G"),
    (f"--gres={REQUEST}", "--ntasks-per-gpu=2", "--ntasks=2"),
    ("--partition=cpu", ":", "--gres=vgpu:cores=101"),
)


@pytest.mark.parametrize("options", BAD, ids=[" ".join(options) for options in BAD])
def test_a_bad_request_gets_the_same_message(
    cluster: Layout, forms: dict[str, dict[str, str]], options: tuple[str, ...]
) -> None:
    ours, lua = (sbatch(cluster, forms[form], *options) for form in FORMS)
    assert ours.status == lua.status != 0
    # Whether the client or slurmctld refuses it, the first line is for the user, and shows what the user wrote.
    said = [re.findall(r"^sbatch: error: (?:lua: |\d: )*hami_hpc: (.*)\n", one.err) for one in (ours, lua)]
    assert said[0] == said[1] != []
    assert ours.err.count("hami_hpc: ") == 1
    assert "~" not in ours.err


# Options beside a plain request, and the same option twice (Slurm takes the last). The answer is the same too.
BESIDE = (
    ("--array=1-2", "--gres=vgpu:mem=1G"),
    ("--array=1-2", "--gres=vgpu:mem=0"),
    ("--test-only", "--gres=vgpu:mem=1G"),
    ("--test-only", "--gres=vgpu:mem=0"),
    ("--test-only", "--gres=vgpu:mem=900G"),
    ("--test-only", "--partition=cpu", "--gres=vgpu:mem=1G"),
    ("--gres=vgpu:mem=1G", "--gres=vgpu:mem=2G,cores=10"),
    ("--gres=vgpu:mem=1G", "--gres=gpu:1"),
    ("--gres=gpu:1", "--gres=vgpu:mem=1G"),
    ("--gres=gpu:1,vgpu:mem=1G",),
    ("--gpus=1", "--gres=vgpu:mem=1G"),
    ("--gres=vgpu:mem=1G,slo=10ms",),
    ("--gres=vgpu:mem=1G,slo=10",),
    ("--gres=vgpu:mem=1G,cores=50,slo=10ms", "--qos=lc"),
    ("--gres=vgpu:mem=1G,policy=burst",),
    ("--gres=vgpu:mem=1G,policy=cap",),
    ("--gres=vgpu:mem=1G,policy=fast",),
)


def answer(done: Done) -> tuple[bool, list[str]]:
    """Whether it is accepted, and the first line for the user without times and numbers of jobs."""
    lines = [re.sub(r"^sbatch: (?:error: )?(?:lua: |\d: )*", "", line) for line in done.err.splitlines()]
    return done.status == 0, [re.sub(r"\bJob \d+|\d{4}-\d\d-\d\dT[\d:]+", "N", line) for line in lines[:1]]


@pytest.mark.parametrize("options", BESIDE, ids=[" ".join(options) for options in BESIDE])
def test_options_beside_a_request_get_the_same_answer(
    cluster: Layout, forms: dict[str, dict[str, str]], options: tuple[str, ...]
) -> None:
    ours, lua = (sbatch(cluster, forms[form], *options) for form in FORMS)
    assert answer(ours) == answer(lua), ours.text + lua.text
    assert (ours.status == 0) != ("hami_hpc: " in ours.err)
    if ours.out.strip():
        asked = [jobs.job_facts(cluster, int(one.out))["TRES"] for one in (ours, lua)]
        assert asked[0] == asked[1]
    jobs.run_as(cluster, "root", ("scancel", f"--user={USER}"))


def test_lua_is_started_only_for_commands_that_can_concern_hami_hpc(cluster: Layout) -> None:
    def tell(etc: Path) -> None:
        script = etc / "cli_filter.lua"
        script.write_text(f'slurm.log_error("Lua is started")\n{script.read_text()}')

    def is_started(*command: str) -> bool:
        done = jobs.run_as(cluster, USER, command, extra=extra)
        assert done.status == 0, done.text
        return "Lua is started" in done.err

    extra = client_conf(cluster, "telling", tell)
    batch, run = ("sbatch", "--hold", "--wrap=true"), ("srun", "-n1", "true")
    asked = ((*batch, f"--gres={REQUEST}"), (*batch, "--gres=vgpu:h200:mem=25%"))
    for plain in (
        *asked,
        ("sbatch", "--wrap=true"),
        (*batch, "--gres=gpu:1"),
        ("srun", "-n1", "true"),
        ("salloc", "true"),
    ):
        assert not is_started(*plain), plain
    for ours in ((*batch, "--gres=vgpu"), ("srun", f"--gres={REQUEST}", *run[1:])):
        assert is_started(*ours), ours
    # srun may have to translate GPUs of a type, and bare shards, for its step.
    assert is_started("srun", "--gres=gpu:1", *run[1:])
    jobs.run_as(cluster, "root", ("scancel", f"--user={USER}"))


def without_slurms_lua(layout: Layout) -> Callable[[Path], None]:
    """A client's PluginDir that has all of Slurm's plugins but cli_filter_lua.so."""

    def change(etc: Path) -> None:
        slurms = Path(config._slurm_plugin_dir())
        folder = etc / "slurm-wlm"
        folder.mkdir()
        for plugin in slurms.iterdir():
            if plugin.name != "cli_filter_lua.so":
                (folder / plugin.name).symlink_to(plugin)
        edit(etc, f"PluginDir={slurms}:", f"PluginDir={folder}:")

    return change


BROKEN: dict[str, Callable[[Layout], Callable[[Path], object]]] = {
    "Slurm's cli_filter_lua.so is missing": without_slurms_lua,
    "cli_filter.lua is missing": lambda _layout: lambda etc: (etc / "cli_filter.lua").unlink(),
    "cli_filter.lua is not Lua": lambda _layout: lambda etc: (etc / "cli_filter.lua").write_text("<html>\n"),
    "hami_hpc.lua cannot be read": lambda _layout: lambda etc: (etc / "hami_hpc.lua").chmod(0o600),
}


@pytest.mark.parametrize("what", BROKEN)
def test_what_is_wrong_with_lua_refuses_what_needs_it_and_nothing_else(cluster: Layout, what: str) -> None:
    extra = client_conf(cluster, "broken", BROKEN[what](cluster))
    plain = sbatch(cluster, extra, "--partition=cpu")
    whole = jobs.run_as(cluster, USER, ("srun", "-n1", "--gres=gpu:1", "true"), extra=extra)
    assert (plain.status, plain.err, whole.status) == (0, "", 0), plain.text + whole.text
    asked = sbatch(cluster, extra, f"--gres={REQUEST}")
    assert (asked.status, asked.err) == (0, "")
    assert "gres/vgpu_mem=8192" in jobs.job_facts(cluster, int(asked.out))["TRES"]
    commands = (("sbatch", "--gres=vgpu", "--wrap=true"), ("srun", "-n1", "true"), ("salloc", "true"))
    for name, *rest in commands:
        done = jobs.run_as(cluster, USER, (name, f"--gres={REQUEST}", *rest), extra=extra)
        assert done.status != 0
        assert REFUSED_HERE in done.err, done.text
    jobs.run_as(cluster, "root", ("scancel", f"--user={USER}"))


def test_a_micro_release_of_slurm_without_a_build_of_the_plugin_submits_jobs_as_before(cluster: Layout) -> None:
    """Slurm would refuse every command if it compared this plugin's version with its own to the micro release."""
    number = sum(part << shift for part, shift in zip(config.slurm_release(), (16, 8), strict=False))

    def change(etc: Path) -> None:
        folder = etc / "other-micro"
        folder.mkdir()
        plugin = (cluster.plugins / "cli_filter_hami_hpc.so").read_bytes()
        found = re.findall(rb"(?s)." + re.escape(number.to_bytes(4, "little")[1:]), plugin)
        assert len(found) == 1, "plugin_version"
        changed = plugin.replace(found[0], bytes([found[0][0] ^ 0x40]) + found[0][1:])
        (folder / "cli_filter_hami_hpc.so").write_bytes(changed)
        edit(etc, f":{cluster.plugins}\n", f":{folder}\n")

    extra = client_conf(cluster, "micro", change)
    for options in (("--partition=cpu",), (f"--gres={REQUEST}",)):
        done = sbatch(cluster, extra, *options)
        assert (done.status, done.err) == (0, ""), done.text
    assert "150" in sbatch(cluster, extra, "--gres=vgpu:mem=8G,cores=150").err
    jobs.run_as(cluster, "root", ("scancel", f"--user={USER}"))
