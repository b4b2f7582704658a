# SPDX-License-Identifier: Apache-2.0
"""The site's settings: what the file may say, and what is said of a wrong one."""

from __future__ import annotations

import os
import re
import tomllib
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hami_hpc.contract import constants as c
from hami_hpc.core import plain_toml
from hami_hpc.core.grant import JobUnits
from hami_hpc.errors import NodeError
from hami_hpc.node.config import ClassSettings, Settings, load_settings, parse_settings, settings_path

CLASS_KEYS = (
    *("qos", "policy", "policies", "latency", "floor", "priority", "slice_us", "max_processes"),
    *("swap", "swap_pinned_mib"),
)


OVERSOLD = """
version = 1
[vgpu]
memory_scaling = 3
shard_mib = 150
modes = ['share']
slices_max = 1
[agent]
[classes.be]
swap = true
[gpu_models.h200]
total_mib = 200
"""


def load(tmp_path: Path, text: str) -> Settings:
    path = tmp_path / "hami-hpc.toml"
    path.write_text(text)
    return load_settings(str(path))


def test_a_file_with_a_version_alone_means_the_contracts_defaults(tmp_path: Path) -> None:
    path = tmp_path / "hami-hpc.toml"
    path.write_text("version = 1\n")
    settings = load_settings(str(path))
    assert (settings.run_dir, settings.state_dir) == (c.FILE_RUN_DIR, c.FILE_STATE_DIR)
    assert (settings.shard_mib, settings.default_mem) == (c.DEFAULT_SHARD_MIB, c.DEFAULT_MEM)
    site = settings.site()
    assert (site.classes, site.gpu_models) == ({"std": (), "lc": ("lc",), "be": ("be",)}, {})


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "version = 1 must be there"),
        ("version = 2", "version = 1 must be there"),
        ("version = true", "version = 1 must be there"),
        ("version = 1\nvgp = 1", "unknown key 'vgp'; did you mean vgpu?"),
        ("version = 1\n[vgpu]\nshard_mb = 1", r"table \[vgpu\]: unknown key 'shard_mb'; did you mean shard_mib?"),
        (
            "version = 1\n[vgpu]\nmodes = []",
            "modes = '..' is not understood; allowed is at least one of: share",
        ),
        (
            'version = 1\n[vgpu]\nmig_nodes = ["gpu[03-04"]',
            "mig_nodes = 'gpu.03-04' is not understood; allowed",
        ),
        ('version = 1\n[vgpu]\nmig_nodes = ["gpu3 gpu4"]', "mig_nodes = 'gpu3 gpu4' is not understood"),
        ('version = 1\n[vgpu]\nmig_nodes = ["gpu[a]"]', "mig_nodes = 'gpu.a.' is not understood"),
        ("version = 1\n[vgpu]\nqqq = 1", "unknown key 'qqq'; known: .*shard_mib"),
        ("version = 1\n[classes.std]\nqoss = []", r"\[classes.std\]: unknown key 'qoss'; did you mean qos?"),
        ("version = 1\n[classes.Gold]", "'Gold' cannot be the name of a class: it has 1 to 15 characters, lower-case"),
        ("version = 1\n[classes.a_class_of_16_by]", "cannot be the name of a class: it has 1 to 15"),
        ("version = 1\n[classes.2]", "'2' cannot be the name of a class: .* begins with a letter"),
        ("version = 1\n[classes.policy]", "'policy' .*: policy is a key of a request .vgpu:policy=burst"),
        ("version = 1\n[classes.mem]", "'mem' .*: mem is a key of a request .vgpu:mem=8G."),
        ("version = 1\n[classes.progress]", "'progress' .*: Slurm reads it as something else"),
        ("version = 1\n[classes.shard]", "'shard' .*: Slurm reads it as something else"),
        ("version = 1\n[classes.h200]\n[gpu_models.h200]\ntotal_mib = 9999", r"'h200' .*\[gpu_models.h200\] has it"),
        ("version = 1\n[gpu_models.be]\ntotal_mib = 9999", r"'be' .*\[gpu_models.be\] has it"),
        ("version = 1\n[classes.gold]\nslice_us = 9", "slice_us = '9' .* 0 .it follows from cores. or .* 10 to 100000"),
        ("version = 1\n[vgpu]\nmax_processes = -1", "max_processes = '-1' is not understood; .* from 0 to 2048"),
        ("version = 1\n[classes.gold]\nmax_processes = 2049", "max_processes = '2049' is not understood"),
        ("version = 1\n[classes.gold]\nmax_processes = true", "max_processes = 'True' is not understood"),
        ("version = 1\n[classes.gold]\nslice_us = 100001", "slice_us = '100001' is not understood"),
        ("version = 1\n[classes.gold]\npriority = 1001", "priority = '1001' .* whole number from 0 to 1000"),
        ("version = 1\n[classes.gold]\nqos = ['LC']", r"QoS 'LC' is in \[classes.lc\] and \[classes.gold\]"),
        ("version = 1\n[classes]\ngold = 1", r"\[classes.gold\] is not a table"),
        ("version = 1\n[classes.lc]\nlatency = 1", "latency = '1' is not understood; allowed is true or false"),
        ("version = 1\n[classes.lc]\nfloor = 51", "floor = '51' is not understood; .* from 0 to 50"),
        ("version = 1\n[classes.lc]\npolicies = ['fair']", "policies = 'fair' is not understood; .*cap, burst, none"),
        ("version = 1\n[classes.lc]\npolicies = ['cap']", 'allowed is a list with the class\'s own policy, "burst"'),
        ("version = 1\n[vgpu]\nshard_mib = 0", "shard_mib = '0' .* whole number from 1"),
        ("version = 1\n[vgpu]\nshard_mib = true", "whole number"),
        ("version = 1\n[vgpu]\nshard_mib = 1.5", "whole number"),
        ("version = 1\n[vgpu]\nmemory_scaling = nan", "a number from 0.1 to 3$"),
        ("version = 1\n[vgpu]\nmemory_scaling = 0.09", "a number from 0.1 to 3$"),
        ("version = 1\n[vgpu]\nmemory_scaling = 3.01", "a number from 0.1 to 3$"),
        ("version = 1\n[vgpu]\nmemory_scaling = true", "a number from 0.1 to 3$"),
        ("version = 1\n[vgpu]\nmemory_scaling = 1.01", r"allowed is at most 1 without the table \[agent\]"),
        (OVERSOLD.replace("[agent]", ""), r"memory_scaling = '3' .* at most 1 without the table \[agent\]"),
        (OVERSOLD.replace("'share'", "'share', 'mps'"), r'at most 1 unless modes = \["share"\]: in other modes'),
        (OVERSOLD.replace("'share'", "'mig'"), r'at most 1 unless modes = \["share"\]'),
        (OVERSOLD.replace("slices_max = 1", "slices_max = 2"), "at most 1 unless slices_max = 1: jobs with several"),
        (OVERSOLD.replace("true", "false"), "at most 1 unless a class has swap = true: no job could leave"),
        ("version = 1\n[classes.be]\nswap_pinned_mib = 1", "0 without swap = true: nothing of its jobs is moved"),
        (OVERSOLD.replace("= 150", "= 181"), "shard_mib = 181 is more than a whole h200"),
        ("version = 1\n[vgpu]\nbare_shard = 'perhaps'", '"refuse" or "translate" or "allow"'),
        ("version = 1\n[vgpu]\nqos_enforced = true", '"auto" or "yes"'),
        ("version = 1\n[vgpu]\nmodes = ['vgpu']", "a list of: share, mps, mig"),
        ("version = 1\n[mps]\nstatic_partitions = 'always'", '"auto" or "never"'),
        ("version = 1\n[vgpu]\ndefault_cores = 101", "whole number from 1 to 100"),
        ("version = 1\n[paths]\nrun_dir = 'run'", "absolute path"),
        ("version = 1\n[paths]\nrun_dir = '/a b'", "absolute path without spaces"),
        ("version = 1\n[classes.lc]\nqos = ['x']\n[classes.be]\nqos = ['x']", "QoS 'x' is in"),
        ("version = 1\n[gpu_models.h200]", "total_mib = '0'"),
        ("version = 1\n[gpu_models.'h 200']\ntotal_mib = 1", "'h 200' in .* is no name"),
        ("version = 1\n[partitions.gpu]\ngpu_models = ['h200']", "gpu_models = 'h200' is not understood"),
        ("version = 1\n[vgpu]\nshard_mib = 300\n[gpu_models.h200]\ntotal_mib = 200", "more than a whole h200"),
        ("version = 1\nvgpu = 3", r"\[vgpu\] is not a table"),
        ("version = ", "not valid TOML"),
        ("\ufeffversion = 1\n", "begins with a byte order mark, which TOML does not have"),
    ],
)
def test_a_wrong_file_is_refused_with_file_key_and_remedy(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(NodeError, match=said) as caught:
        load(tmp_path, text)
    assert str(tmp_path) in str(caught.value)


def test_memory_can_be_oversold_where_jobs_can_take_turns(tmp_path: Path) -> None:
    """By hand: 90 % of 200 MiB hold one shard of 150 MiB, and 600 MiB hold four."""
    settings = load(tmp_path, OVERSOLD)
    assert settings.memory_scaling == 3.0
    assert settings.gpu_size("h200") == (150, 1, 600, 4, 400)
    assert settings.cores_of_gpu() == {400}
    assert settings.site().memory_scaling == 3.0


def test_every_gpu_has_100_cores_where_memory_is_not_oversold(tmp_path: Path) -> None:
    models = "".join(f"\n[gpu_models.m{mib}]\ntotal_mib = {mib}" for mib in (999, 143156))
    assert load(tmp_path, f"version = 1\n[vgpu]\nmemory_scaling = 0.7{models}").cores_of_gpu() == {100}
    assert load(tmp_path, "version = 1").cores_of_gpu() == {100}


def test_only_a_latency_critical_class_has_a_floor_and_lc_alone_is_one_by_default(tmp_path: Path) -> None:
    classes = load(tmp_path, "version = 1").classes
    assert {name: (entry.latency, entry.floor) for name, entry in classes.items()} == {
        "std": (False, 0),
        "lc": (True, 5),
        "be": (False, 0),
    }
    text = "version = 1\n[classes.std]\nlatency = true\nfloor = 50\n[classes.lc]\nlatency = false\nfloor = 20"
    classes = load(tmp_path, text).classes
    assert [(entry.latency, entry.floor) for entry in classes.values()] == [(True, 50), (False, 0), (False, 0)]


def test_a_site_has_as_many_classes_as_it_names_and_always_the_three(tmp_path: Path) -> None:
    text = "version = 1\n[classes.interactive]\nlatency = true\nslice_us = 500\npriority = 1000\n[classes.x]\nqos = []"
    settings = load(tmp_path, text)
    assert list(settings.classes) == ["std", "lc", "be", "interactive", "x"]
    assert settings.classes["interactive"] == (("interactive",), "burst", ("burst",), True, 5, 500, 1000, 0, False, 0)
    assert settings.classes["x"] == ((), "burst", ("burst",), False, 0, 0, 0, 0, False, 0)
    assert settings.classes["lc"] == (("lc",), "burst", ("burst",), True, 5, 0, 100, 0, False, 0)
    assert settings.classes["std"] == ((), "cap", ("cap",), False, 0, 0, 0, 0, False, 0)
    assert settings.site().classes["interactive"] == ("interactive",)
    assert settings.site().policies["x"] == ("burst",)


def test_a_class_has_as_many_processes_as_it_says_else_as_all_have(tmp_path: Path) -> None:
    classes = load(tmp_path, "version = 1\n[vgpu]\nmax_processes = 8\n[classes.be]\nmax_processes = 1").classes
    assert {name: entry.max_processes for name, entry in classes.items()} == {"std": 8, "lc": 8, "be": 1}
    classes = load(tmp_path, "version = 1\n[vgpu]\nmax_processes = 2048\n[classes.lc]\nmax_processes = 0").classes
    assert {name: entry.max_processes for name, entry in classes.items()} == {"std": 2048, "lc": 0, "be": 2048}


def test_the_document_has_each_key_of_a_class_and_an_example_that_is_read(tmp_path: Path) -> None:
    text = (Path(__file__).resolve().parents[2] / "docs" / "qos.md").read_text(encoding="utf-8")
    classes = text.partition("\n## The classes\n")[2].partition("\n## ")[0]
    assert re.findall(r"^\| `(\w+)` \|", classes, re.MULTILINE) == list(CLASS_KEYS)
    assert set(CLASS_KEYS) == set(ClassSettings._fields)
    example = classes.split("```toml\n")[1].split("```")[0]
    assert plain_toml.read(example) == tomllib.loads(example), "a prolog reads it without tomllib"
    assert load(tmp_path, f"version = 1\n{example}").classes["interactive"].qos == ("desk",)


def test_a_class_of_these_settings_is_the_jobs_and_another_is_the_nodes_fault(tmp_path: Path) -> None:
    settings = load(tmp_path, "version = 1\n[classes.interactive]")
    units = JobUnits(7, 1000, 0, "interactive", 8192, 50)
    assert settings.class_of_job(units) == settings.classes["interactive"]
    with pytest.raises(NodeError, match=r"job 7 is of class 'gone', which .*hami-hpc.toml .* Copy the controller's"):
        settings.class_of_job(units._replace(service_class="gone"))


def test_a_job_may_ask_for_its_classs_own_policy_alone_unless_the_settings_name_more(tmp_path: Path) -> None:
    classes = load(tmp_path, "version = 1\n[classes.be]\npolicy = 'none'").classes
    assert [entry.policies for entry in classes.values()] == [("cap",), ("burst",), ("none",)]
    classes = load(tmp_path, "version = 1\n[classes.be]\npolicies = ['burst', 'none']").classes
    assert (classes["be"].policy, classes["be"].policies) == ("burst", ("burst", "none"))


@pytest.mark.parametrize("mode", [0o666, 0o664, 0o646])
def test_root_does_not_read_a_file_that_others_can_write(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "hami-hpc.toml"
    path.write_text("version = 1\n")
    path.chmod(mode)
    with pytest.raises(NodeError, match=f"chmod 0644 {path}"):
        load_settings(str(path))


def test_root_does_not_read_a_file_of_another_user(tmp_path: Path) -> None:
    path = tmp_path / "hami-hpc.toml"
    path.write_text("version = 1\n")
    os.chown(path, 65534, -1)
    with pytest.raises(NodeError, match="belongs to uid 65534"):
        load_settings(str(path))


def test_a_missing_file_a_pipe_and_a_directory_are_named(tmp_path: Path) -> None:
    with pytest.raises(NodeError, match="No such file"):
        load_settings(str(tmp_path / "none"))
    os.mkfifo(tmp_path / "pipe")
    for name in ("pipe", "."):
        with pytest.raises(NodeError, match=r"regular file|Is a directory"):
            load_settings(str(tmp_path / name))


@pytest.mark.parametrize(
    "text",
    [
        "a = " + "[" * 200_000,
        "version = {" + "a." * 5000 + "a = 1}",
        "version = " + "1" * 5000,
        'version = "' + "x" * 100_000 + '"',
        'version = 1\n"a\\nb" = 1',
        'version = 1\n[gpu_models."a\\u001b[31m\\nb"]',
    ],
    ids=["arrays", "tables", "digits", "text", "key", "name"],
)
def test_a_file_made_to_hurt_is_refused_in_one_short_line(tmp_path: Path, text: str) -> None:
    path = tmp_path / "hami-hpc.toml"
    path.write_text(text)
    with pytest.raises(NodeError) as raised:
        load_settings(str(path))
    said = str(raised.value)
    assert said.startswith(str(path))
    assert said.isprintable()
    assert len(said) < 400


def test_the_environment_names_the_file_for_people_only() -> None:
    assert settings_path({"HAMI_HPC_CONFIG": "/x.toml"}) == "/x.toml"
    assert settings_path({}) == settings_path({"HAMI_HPC_CONFIG": ""}) == c.FILE_CONFIG


PLAIN = st.recursive(
    st.one_of(st.booleans(), st.integers(), st.floats(), st.text(max_size=8)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=8), inner, max_size=3)),
    max_leaves=8,
)
KEYS = st.sampled_from(["vgpu", "paths", "classes", "gpu_models", "partitions", "other"])


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # a busy machine is no fault of the settings
@given(st.dictionaries(KEYS, PLAIN, max_size=4))
def test_any_document_is_read_or_refused_by_name(document: dict[str, object]) -> None:
    try:
        read = parse_settings({"version": 1, **document}, "/x.toml")
    except NodeError as refused:
        said = str(refused)
    else:
        said = read.path
    assert "/x.toml" in said


def test_host_lists_of_slurm_are_understood() -> None:
    hosts = ("gpu[03-04,7],n-1.site.org", "gpu7", "rack[1-2]node[1-4]x")
    assert parse_settings({"version": 1, "vgpu": {"mig_nodes": list(hosts)}}, "x").mig_nodes == hosts
