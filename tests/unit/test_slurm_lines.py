# SPDX-License-Identifier: Apache-2.0
"""slurm.conf is read as Slurm's own parser reads it, which is asked; plugstack.conf as plugstack.c reads it."""

from __future__ import annotations

import ctypes
import faulthandler
import functools
import json
import locale
import os
import tempfile
from pathlib import Path

import pytest
from forked import fork
from hypothesis import given, settings
from hypothesis import strategies as st

from hami_hpc.errors import NodeError
from hami_hpc.slurm import plugstack
from hami_hpc.slurm.files import ConfFile
from hami_hpc.slurm.lines import settings_of

LIBRARY = next(Path("/usr/lib").glob("*/slurm-wlm/libslurmfull.so"), None)
KEYS = ("Alpha", "Beta")
STRING = 1  # S_P_STRING of parse_config.h


class Option(ctypes.Structure):
    """s_p_options_t."""

    _fields_ = (
        ("key", ctypes.c_char_p),
        ("type", ctypes.c_int),
        ("handler", ctypes.c_void_p),
        ("destroy", ctypes.c_void_p),
        ("line_options", ctypes.c_void_p),
    )


@functools.cache
def library() -> ctypes.CDLL:
    return ctypes.CDLL(str(LIBRARY))


def _ask(path: Path) -> dict[str, str] | None:
    slurm = library()
    locale.setlocale(locale.LC_ALL, "C")  # as Slurm's daemons run
    slurm.slurm_s_p_hashtbl_create.restype = ctypes.c_void_p
    options = (Option * (len(KEYS) + 1))(*(Option(key.encode(), STRING) for key in KEYS))
    table = ctypes.c_void_p(slurm.slurm_s_p_hashtbl_create(options))
    if slurm.slurm_s_p_parse_file(table, None, str(path).encode(), False, None) != 0:
        return None
    found = {}
    for key in KEYS:
        value = ctypes.c_char_p()
        if slurm.slurm_s_p_get_string(ctypes.byref(value), key.encode(), table):
            found[key.lower()] = (value.value or b"").decode("utf-8", "replace")
    return found


def as_slurm_reads(path: Path) -> dict[str, str] | None:
    """The values of KEYS, or None for a file that Slurm refuses or dies of: a child asks."""
    library()
    from_child, to_parent = os.pipe()
    child = fork()
    if child == 0:
        faulthandler.disable()
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # the parser prints what it refuses
        os.write(to_parent, json.dumps(_ask(path)).encode())
        os._exit(0)
    os.close(to_parent)
    answer = b"".join(iter(lambda: os.read(from_child, 1 << 16), b""))
    os.close(from_child)
    os.waitpid(child, 0)
    return json.loads(answer or "null")  # type: ignore[no-any-return]


def as_we_read(path: Path) -> dict[str, str]:
    return {key: given[-1].value for key, given in settings_of(ConfFile(str(path)).lines).items()}


PIECES = [b"Alpha", b"beta", b"BETA", b"=", b"+=", b" ", b"\t", b"\n", b"\r\n", b"\r", b"\v", b"\\", b"#", b'"']
PIECES += [b"\\\n", b" \\ \r\n", b"x", b"y,z", b"\xe9", b"\xc2\xa0", b"\xe2\x80\xa8", b"\x1c", b"\x85", b"Alpha=a\n"]
needs_slurm = pytest.mark.skipif(LIBRARY is None, reason="Slurm's library (libslurmfull.so) is not installed here")


@needs_slurm
@pytest.mark.parametrize(
    "data",
    [
        b"Alpha=gres/gpu,\\\nlicense/x\r\nBeta=1",
        b"Alpha=a\\#b # c\nBeta=\\\\",
        b'Alpha+="a b"\nbeta="c"d\n',
        b"Alpha=1\xc2\xa0Beta=2\n",
        b"# nothing goes on here \\\nAlpha = 1 \\ # one\n\n",
        b"ALPHA=caf\xe9\nalpha=\x1cx\n",
    ],
)
def test_a_line_that_slurm_accepts_is_read_as_slurm_reads_it(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "slurm.conf"
    path.write_bytes(data)
    by_slurm = as_slurm_reads(path)
    assert by_slurm
    assert as_we_read(path) == by_slurm


@needs_slurm
@given(st.lists(st.sampled_from(PIECES), max_size=12).map(b"".join))
@settings(max_examples=150, deadline=None)
def test_any_text_that_slurm_accepts_is_read_as_slurm_reads_it(data: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "slurm.conf"
        path.write_bytes(data)
        by_slurm = as_slurm_reads(path)
        if by_slurm is not None:
            assert as_we_read(path) == by_slurm


def test_a_carriage_return_is_part_of_a_plugstack_word_as_in_slurm(tmp_path: Path) -> None:
    path = tmp_path / "plugstack.conf"
    path.write_bytes(b"required /x/spank_hami_hpc.so\r\n")
    assert plugstack.our_line(str(path)) is None, "Slurm looks for a plugin whose name ends with CR"
    (tmp_path / "ours.conf").write_text("required spank_hami_hpc.so a=b\n")
    path.write_bytes(b"include ours.conf\r\n")
    assert plugstack.our_line(str(path)) is None, "Slurm includes nothing"
    path.write_bytes(b"include\tours.conf \r\n")
    assert plugstack.our_line(str(path)) is not None


def test_a_plugstackconfig_that_goes_on_in_the_next_line_is_read_whole(tmp_path: Path) -> None:
    conf = tmp_path / "slurm.conf"
    conf.write_bytes(b"# not here \\\nPlugStackConfig=/a/\\ \r\nb.conf # \\\nA=1\n")
    assert plugstack.plugstack_path(str(conf)) == "/a/b.conf"


def test_an_include_may_name_the_cluster(tmp_path: Path) -> None:
    conf, inner = tmp_path / "slurm.conf", tmp_path / "site.conf"
    inner.write_text("PlugStackConfig=/a.conf\n")
    conf.write_text("ClusterName=Site\ninclude %c.conf\n")
    assert plugstack.plugstack_path(str(conf)) == "/a.conf"
    assert as_we_read(conf)["plugstackconfig"] == "/a.conf"
    conf.write_text("include %c.conf\nClusterName=Site\n")
    with pytest.raises(NodeError, match="no ClusterName before it"):
        ConfFile(str(conf))
    with pytest.raises(NodeError, match="no ClusterName before it"):
        plugstack.plugstack_path(str(conf))


def test_files_that_include_themselves_are_refused_and_at_once(tmp_path: Path) -> None:
    conf = tmp_path / "slurm.conf"
    conf.write_text("include slurm.conf\n" * 9)
    with pytest.raises(NodeError, match="include itself"):
        ConfFile(str(conf))
    with pytest.raises(NodeError, match="include itself"):
        plugstack.plugstack_path(str(conf))
    with pytest.raises(NodeError, match="include itself"):
        plugstack.our_line(str(conf))
    with pytest.raises(NodeError, match="include itself"):
        plugstack.reads(str(conf), "/x")


@pytest.mark.parametrize("kind", ["directory", "pipe", "long", "loop", "mark"])
def test_what_is_no_configuration_file_is_refused_in_one_line(tmp_path: Path, kind: str) -> None:
    conf, other = tmp_path / "slurm.conf", tmp_path / "other.conf"
    conf.write_text("include other.conf\n")
    writer = -1
    if kind == "directory":
        other.mkdir()
    elif kind == "pipe":
        os.mkfifo(other)
        writer = os.open(other, os.O_RDWR)  # a writer that writes nothing
    elif kind == "long":
        other.touch()
        os.truncate(other, 100 << 20)
    elif kind == "loop":
        other.symlink_to(other)
    else:
        other.write_text("\ufeffClusterName=x\n")
    with pytest.raises(NodeError) as raised:
        ConfFile(str(conf))
    if writer >= 0:
        os.close(writer)
    assert str(raised.value).startswith(str(other))
    assert "\n" not in str(raised.value)
