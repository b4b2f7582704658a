# SPDX-License-Identifier: Apache-2.0
"""MIG in the settings: profiles as text and back, what is refused, and what render makes of them."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lua_process import INTERPRETERS, require
from mig_models import NAMES, profiles_of
from test_plain_toml import items

from hami_hpc.core import plain_toml
from hami_hpc.core.gpu_choice import Where
from hami_hpc.core.inventory import Gpu
from hami_hpc.core.mig_choice import OfferedProfile, choose
from hami_hpc.core.mig_layout import covering
from hami_hpc.core.mig_text import read_profiles, settings_lines, split
from hami_hpc.core.request import Request, parse
from hami_hpc.core.units import resolve
from hami_hpc.errors import NodeError, RequestError
from hami_hpc.node import mig_settings
from hami_hpc.node.config import Settings, load_settings
from hami_hpc.render import inputs
from hami_hpc.render.files import render_nodes
from hami_hpc.render.offer import lua_text, make_offer, node_modes, shards_may_have_types, site_table
from hami_hpc.render.rendered import Rendered, Target
from hami_hpc.slurm import commands

H200_MIB = 143156
LINES = settings_lines(profiles_of("h200"))


def settings_text(*lines: str, modes: str = '["share", "mig"]', vgpu: str = "", total_mib: int = H200_MIB) -> str:
    return "\n".join(
        [
            "version = 1",
            f"[vgpu]\nmodes = {modes}\n{vgpu}",
            f"[gpu_models.h200]\ntotal_mib = {total_mib}",
            "[gpu_models.h200.mig_profiles]",
            *lines,
            '[partitions.gpu]\ngpu_models = ["h200"]\n',
        ]
    )


def settings_of(folder: Path, *lines: str, **named: str | int) -> Settings:
    path = folder / "hami-hpc.toml"
    path.write_text(settings_text(*lines, **named), encoding="utf-8")  # type: ignore[arg-type]
    path.chmod(0o644)
    return load_settings(str(path))


def test_the_lines_for_the_settings_read_as_nvidias_tables(tmp_path: Path) -> None:
    assert LINES[0] == '"1g.18gb" = "16384 MiB, 1/7 compute, 1/8 memory at {0,1,2,3,4,5,6}, at most 7"'
    assert [line.partition(" ")[0] for line in LINES] == [
        '"1g.18gb"',
        '"1g.35gb"',
        '"2g.35gb"',
        '"3g.71gb"',
        '"4g.71gb"',
        '"7g.141gb"',
    ]
    text = settings_text(*LINES)
    assert plain_toml.read(text) is not None  # no prolog has to import tomllib for them
    assert settings_of(tmp_path, *LINES).mig_profiles["h200"]["7g.141gb"].startswith("143104 MiB, 7/7 compute")


@pytest.mark.parametrize("model", NAMES)
def test_profiles_written_as_settings_are_read_back(model: str) -> None:
    profiles = profiles_of(model)
    table = plain_toml.read("\n".join(settings_lines(profiles)))
    assert table is not None
    again = read_profiles(table, 1)
    assert [each._replace(profile_id=-1) for each in profiles] == list(again)
    assert items(table)


def test_of_profiles_that_units_cannot_tell_apart_one_is_printed() -> None:
    profiles = profiles_of("h200")
    media = profiles[0]._replace(profile_id=20, name="1g.18gb+me", instances_max=1)
    assert settings_lines((media, *profiles)) == LINES
    with pytest.raises(ValueError, match="takes all of it"):
        settings_lines(profiles[:4])


def test_every_line_becomes_an_offer_of_the_site(tmp_path: Path) -> None:
    site = settings_of(tmp_path, *LINES).site()
    assert site.mig["h200"][0] == OfferedProfile("1g.18gb", 16384, 12, 14, 70)
    assert [offer.name for offer in site.mig["h200"]] == [line.split('"')[1] for line in LINES]
    assert site.mig_waste_percent == 20


def test_a_line_that_is_deleted_is_a_profile_that_nobody_gets(tmp_path: Path) -> None:
    settings = settings_of(tmp_path, *LINES[:1], *LINES[3:5])
    site = settings.site()
    assert [(offer.name, offer.mem_percent, offer.cores) for offer in site.mig["h200"]] == [
        ("1g.18gb", 12, 14),
        ("3g.71gb", 50, 42),
        ("4g.71gb", 50, 57),
    ]
    parsed = parse("vgpu:mode=mig,mem=20G")
    assert parsed is not None
    assert resolve(parsed.request, site, Where(("gpu",))).mem_mib == 71424


def test_without_mig_in_modes_no_profile_is_offered(tmp_path: Path) -> None:
    settings = settings_of(tmp_path, *LINES, modes='["share"]')
    assert settings.site().mig == {}
    gpus = [Gpu(0, 0, "", "h200", "h200", H200_MIB)]
    assert "vgpu_mig" not in make_offer(settings.site(), gpus).features


def test_a_prolog_finds_the_profile_of_a_jobs_units(tmp_path: Path) -> None:
    settings = settings_of(tmp_path, *LINES)
    for offer in settings.site().mig["h200"]:
        assert mig_settings.profile_name(settings, "h200", offer.mem_mib, offer.cores) == offer.name
        chosen = covering(profiles_of("h200"), offer.mem_mib, offer.cores)
        assert chosen is not None
        assert chosen.name == offer.name
    assert mig_settings.profile_name(settings, "h200", 8192, 50) is None
    few = settings_of(tmp_path, *LINES[:1])
    assert mig_settings.profile_name(few, "h200", 16384, 14) == "1g.18gb"
    assert mig_settings.profile_name(few, "h200", 143104, 100) is None
    assert mig_settings.profile_name(few, "h200", H200_MIB, 100) is None  # the whole GPU counts, and is not offered
    assert mig_settings.profile_name(settings_of(tmp_path), "h200", 16384, 14) is None


GOOD = '"1g.18gb" = "16384 MiB, 1/7 compute, 1/8 memory at {0,1}, at most 7"'


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('"1g.18gb" = ""', "1g.18gb = '' is not understood; allowed is text such as '16384 MiB, 1/7 compute, 1/8"),
        ('"1g.18gb" = "16 GiB"', "is not understood"),
        (GOOD.replace("{0,1}", "{,}"), "is not understood"),
        (GOOD.replace("{0,1}", "0"), "is not understood"),
        (GOOD.replace("16384", "-1"), "is not understood"),
        (GOOD.replace("at most 7", "at most 7; rm"), "is not understood"),
        (GOOD.replace("16384", "0"), "has a part of 0"),
        (GOOD.replace("1/7", "0/7"), "has a part of 0"),
        (GOOD.replace("1/7", "8/7"), "a part above the whole"),
        (GOOD.replace("1/8", "1/0"), "a part above the whole"),
        (GOOD.replace("1/8", "1/17"), "more than 16 slices"),
        (GOOD.replace("at most 7", "at most 0"), "has a part of 0"),
        (GOOD.replace("{0,1}", "{0,8}"), "past the GPU's end"),
        (GOOD.replace("{0,1}", "{0,0}"), "a start twice"),
        (GOOD.replace("1g.18gb", "small"), "'small' is not the name of a MIG profile"),
        (GOOD.replace("16384", "143157"), "1g.18gb has 143157 MiB, and a GPU has 143156 MiB to give"),
        (GOOD + "\n" + GOOD.replace("1g.18gb", "2g.18gb").replace("1/7", "1/6"), "same numbers of compute and memory"),
        (
            GOOD + "\n" + GOOD.replace("1g.18gb", "1g.18gb+me"),
            "no job could get 1g.18gb+me, because 1g.18gb is no larger and has as much memory and compute",
        ),
    ],
)
def test_wrong_profiles_are_refused_with_what_is_allowed(tmp_path: Path, line: str, said: str) -> None:
    settings = settings_of(tmp_path, line)
    with pytest.raises(NodeError) as caught:
        settings.site()
    assert said in str(caught.value)
    assert re.match(
        rf"{re.escape(settings.path)}, line \d+, table \[gpu_models.h200.mig_profiles\]: ", str(caught.value)
    )


@pytest.mark.parametrize(
    ("named", "said"),
    [
        ({"vgpu": "mig_waste_percent = 101"}, "a whole number from 0 to 100"),
        ({"vgpu": 'mig_nodes = "gpu1"'}, "a list of names"),
        ({"vgpu": 'mig_node = ["gpu1"]'}, "did you mean mig_nodes?"),
    ],
)
def test_wrong_settings_of_mig_are_refused_when_the_file_is_read(
    tmp_path: Path, named: dict[str, str], said: str
) -> None:
    with pytest.raises(NodeError) as caught:
        settings_of(tmp_path, *LINES, **named)
    assert said in str(caught.value)


def test_profiles_that_are_no_texts_are_refused_when_the_file_is_read(tmp_path: Path) -> None:
    with pytest.raises(NodeError, match=r"\[gpu_models.h200.mig_profiles\]: 1g.18gb = '7' is not understood"):
        settings_of(tmp_path, '"1g.18gb" = 7')


def test_oversized_scaling_and_profiles_are_refused_together(tmp_path: Path) -> None:
    settings = settings_of(tmp_path, *LINES, vgpu="memory_scaling = 0.9")
    with pytest.raises(NodeError, match=r"7g.141gb has 143104 MiB, and a GPU has 128840 MiB to give"):
        settings.site()


def test_mig_nodes_divide_the_nodes_by_mode() -> None:
    hosts = ("gpu[03-04]", "big1")
    assert node_modes(("share", "mig"), hosts, "gpu03") == ("mig",)
    assert node_modes(("share", "mig"), hosts, "big1") == ("mig",)
    assert node_modes(("share", "mig"), hosts, "gpu05") == ("share",)
    assert node_modes(("share", "mig"), hosts, "gpu3") == ("share",)
    assert node_modes(("share", "mig"), (), "gpu03") == ("share", "mig")
    assert node_modes(("share",), hosts, "gpu03") == ("share",)
    assert node_modes(("mig",), hosts, "gpu03") == ("mig",)
    with pytest.raises(NodeError, match="modes offers mig alone, and mig_nodes does not name gpu05"):
        node_modes(("mig",), hosts, "gpu05")


def rendered(
    settings: Settings,
    node: str,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    static: tuple[tuple[str, str], ...] = (),
    has_typed_shards: bool = True,
) -> Rendered:
    monkeypatch.setattr(inputs, "check_modes", lambda modes, path: None)  # of backends: not this test's subject
    target = Target(
        directory=str(folder),
        node=node,
        node_parameters="",
        device="/dev/nvidia",
        plugin_dir="",
        spank="spank_hami_hpc.so",
        prolog="/bin/true",
        epilog="/bin/true",
        cgroup=False,
        static=static,
        has_typed_shards=has_typed_shards,
    )
    return render_nodes(settings, [((Gpu(0, 0, "GPU-1", "h200", "h200", H200_MIB),), target)])


def about_mig(out: Rendered) -> list[str]:
    return [remark for remark in out.remarks if remark.startswith("modes offers mig")]


def test_render_gives_each_node_the_features_of_its_modes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = settings_of(tmp_path, *LINES, vgpu='mig_nodes = ["gpu[01-02]"]')
    for node, feature in (("gpu02", "Feature=vgpu_mig,vgpu_type_h200"), ("gpu03", "Feature=vgpu_share,vgpu_type_h200")):
        out = rendered(settings, node, tmp_path / "etc", monkeypatch)
        assert feature in out.files["slurm-hami-hpc.conf"]
        assert not about_mig(out)


STATIC = (("3g.71gb", "/dev/nvidia_mig/0"), ("1g.18gb", "/dev/nvidia_mig/1"), ("1g.18gb", "/dev/nvidia_mig/2"))


def test_render_writes_static_instances_as_gpus_after_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = settings_of(tmp_path)
    out = rendered(settings, "gpu1", tmp_path / "etc", monkeypatch, STATIC)
    assert "Gres=gpu:h200:1,gpu:3g.71gb:1,gpu:1g.18gb:2,shard:h200:559," in out.files["slurm-hami-hpc.conf"]
    lines = [line for line in out.files["hami-hpc-gres.conf"].splitlines() if " Name=gpu " in line]
    assert lines == [
        "NodeName=gpu1 Name=gpu Type=h200 File=/dev/nvidia0",
        "NodeName=gpu1 Name=gpu Type=3g.71gb File=/dev/nvidia_mig/0",
        "NodeName=gpu1 Name=gpu Type=1g.18gb File=/dev/nvidia_mig/1",
        "NodeName=gpu1 Name=gpu Type=1g.18gb File=/dev/nvidia_mig/2",
    ]
    out = rendered(settings, "gpu1", tmp_path / "etc", monkeypatch, STATIC, has_typed_shards=False)
    assert "gpu:1g.18gb:2,shard:559," in out.files["slurm-hami-hpc.conf"]
    assert "NodeName=gpu1 Name=shard Count=559 File=/dev/nvidia0" in out.files["hami-hpc-gres.conf"].splitlines()
    (tmp_path / "etc").mkdir(exist_ok=True)
    (tmp_path / "etc/gres.conf").write_text(f"Name=gpu Type=h200 File=/dev/nvidia0\n{lines[1]}\n")
    out = rendered(settings, "gpu1", tmp_path / "etc", monkeypatch, STATIC)
    (merge,) = [merge for merge in out.merges if "static MIG layout" in merge.what]
    assert merge.lines == tuple(lines[2:])
    assert not [merge for merge in out.merges if "instead of" in merge.what], "a static line keeps its type"
    assert " Name=gpu " not in "".join(
        line for line in out.files["hami-hpc-gres.conf"].splitlines() if not line.startswith("#")
    )


@pytest.mark.parametrize(
    ("release", "static", "may"),
    [
        ("22.05.8", True, True),
        ("23.02.7", True, True),
        ("23.11.4", True, False),
        ("26.05.3", True, False),
        ("26.05.3", False, True),
    ],
)
def test_shards_have_no_type_where_slurm_refuses_the_instances_of_a_layout(
    release: str, static: bool, may: bool
) -> None:
    assert shards_may_have_types(commands.version_of(release), static) is may


def test_shards_have_no_type_beside_a_layout_where_the_release_is_not_known() -> None:
    assert not shards_may_have_types(None, True)
    assert shards_may_have_types(None, False)


def test_render_remarks_on_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    both = rendered(settings_of(tmp_path), "gpu1", tmp_path / "etc", monkeypatch)
    assert "Feature=vgpu_share,vgpu_mig,vgpu_type_h200" in both.files["slurm-hami-hpc.conf"]
    assert [remark.partition(",")[0] for remark in about_mig(both)] == [
        "modes offers mig",
        "modes offers mig beside others",
    ]
    alone = rendered(settings_of(tmp_path, *LINES, modes='["mig"]'), "gpu1", tmp_path / "etc", monkeypatch)
    assert not about_mig(alone)


@pytest.mark.parametrize("interpreter", INTERPRETERS)
def test_the_filters_read_the_profiles_that_render_writes(tmp_path: Path, interpreter: str) -> None:
    table = lua_text(site_table(settings_of(tmp_path, *LINES).site()))
    code = f"local t = {table}\nlocal p = t.gpu_models.h200.mig[2]\nprint(p.name, p.mem_mib, p.shards)"
    done = subprocess.run([require(interpreter), "-e", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["1g.35gb", "33280", "139"]


@pytest.mark.parametrize(
    ("request_", "key"),
    [
        (Request(), "mode=mig"),
        (Request(mode="mig"), "mode=mig"),
        (Request(mode="auto"), "mode=auto"),
        (Request(mig="1g.18gb"), "mig=1g.18gb"),
        (Request(isolation="hard", mode="auto"), "isolation=hard"),
    ],
)
def test_what_cannot_be_had_is_named_as_it_was_asked_for(request_: Request, key: str) -> None:
    refused = choose(request_, {}, ("h200",), "partition gpu", ("mig", "share"))
    assert isinstance(refused, RequestError)
    assert str(refused).startswith(f"{key} ") or f" {key} " in str(refused), str(refused)


PATTERN = r"(\d{1,8}) MiB, (\d{1,3})/(\d{1,3}) compute, (\d{1,3})/(\d{1,3}) memory at \{(\d[\d,]*)\}, at most (\d{1,3})"


@given(
    st.sampled_from(range(len(LINES))),
    st.lists(st.tuples(st.integers(0, 80), st.text("0123456789,/{}Mab٣²- \n", max_size=3))),
)
def test_a_profiles_text_is_split_as_by_a_pattern(line: int, changes: list[tuple[int, str]]) -> None:
    """Texts of the settings, with some characters replaced."""
    text = LINES[line].partition(" = ")[2].strip('"')
    for at, new in changes:
        text = text[:at] + new + text[at + len(new) :]
    match = re.fullmatch(PATTERN, text, re.ASCII)
    assert split(text) == (list(match.groups()) if match else None)
