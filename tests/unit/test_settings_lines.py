# SPDX-License-Identifier: Apache-2.0
"""Messages about settings name file, line and table, in the forms in which TOML can set a key."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hami_hpc.errors import NodeError
from hami_hpc.node.config import load_settings
from hami_hpc.node.placement_settings import read_placement
from hami_hpc.node.qos_settings import read_qos
from hami_hpc.node.settings_lines import lines_of, where


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "hami-hpc.toml"
    path.write_text(text)
    path.chmod(0o644)
    return path


@pytest.mark.parametrize(
    ("text", "line", "rest"),
    [
        ("version = 1\n\n[vgpu] # x\nshard_mib = 0\n", 4, "table [vgpu]: shard_mib = '0' is not understood"),
        ("version = 1\nvgpu.shard_mib = 0\n", 2, "table [vgpu]: shard_mib = '0'"),
        ("version = 1\nvgpu = {shard_mib = 0}\n", 2, "table [vgpu]: shard_mib = '0'"),
        ("version = 1\n[vgpu]\n  shard_mb = 1\n", 3, "table [vgpu]: unknown key 'shard_mb'; did you mean shard_mib?"),
        ('version = 1\nvgpus = 3\n["vgpu"]\n', 2, "unknown key 'vgpus'; did you mean vgpu?"),
        ("version = 1\n# vgpu = 3\nvgpu = 3\n", 3, "table [vgpu] is not a table"),
        ("version = 1\r\n[classes.lc]\r\nlatency = 1\r\n", 3, "table [classes.lc]: latency = '1'"),
        ("version = 1\n[classes.Lc]\nlatency = true\n", 2, "table [classes]: 'Lc' cannot be the name of a class"),
        ('version = 1\n[vgpu]\ndefault_mem = """\nshard_mib = 2\n"""\nshard_mib = 0\n', 6, "table [vgpu]: shard_mib"),
    ],
)
def test_a_wrong_setting_is_refused_with_its_line_and_the_reason(
    tmp_path: Path, text: str, line: int, rest: str
) -> None:
    path = written(tmp_path, text)
    with pytest.raises(NodeError) as caught:
        load_settings(str(path))
    assert str(caught.value).startswith(f"{path}, line {line}{', ' if rest.startswith('table') else ': '}{rest}")


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("[qos.lc]\npriority = -1\n", 4),
        ('[placement]\n\ngpus = "pack"\n', 5),
        ("[presets.x]\nmem = 8\n", 3),
        ('[gpu_models.h200]\ntotal_mib = 143156\n[gpu_models.h200.mig_profiles]\n"1g.18gb" = "x"\n', 5),
    ],
)
def test_tables_that_are_read_later_have_lines_too(tmp_path: Path, text: str, line: int) -> None:
    path = written(tmp_path, 'version = 1\nvgpu.modes = ["share", "mig"]\n' + text)
    settings = load_settings(str(path))
    with pytest.raises(NodeError, match=f"^{path}, line {line}, table "):
        (read_qos(settings), read_placement(settings), settings.site())


def test_without_the_file_there_is_no_line(tmp_path: Path) -> None:
    assert where("/nowhere/x.toml", "vgpu", "shard_mib") == "/nowhere/x.toml, table [vgpu]"
    folder = tmp_path / "folder.toml"
    folder.mkdir()
    assert where(str(folder), "", "vgpu") == str(folder)


@given(st.text())
def test_any_text_has_lines(text: str) -> None:
    numbers = lines_of(text).values()
    assert all(1 <= number <= text.count("\n") + 1 for number in numbers)
