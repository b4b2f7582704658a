# SPDX-License-Identifier: Apache-2.0
"""slurm-plugins/cli_filter/token.c: the token that sbatch's filter writes is read as what the user wrote."""

from __future__ import annotations

import ctypes
import re
import subprocess
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from lua_process import read_vectors

from hami_hpc.contract import constants as c
from hami_hpc.core.request import Request, parse
from hami_hpc.errors import RequestError

ROOT = Path(__file__).resolve().parents[2]
SIZE = 256
MARK = b"\xa5" * 64
PIECES = st.sampled_from(
    [
        *("mem=8G", "mem=25%", "cores=50", "cores=", "=5", "mem=0", "count=2", "mode=mps", "slo=10ms", "policy=burst"),
        *(
            "type=h200",
            "type=h200|a100",
            "mem~1G",
            "coers=1",
            "h200",
            "2",
            "small",
            "std",
            "",
            "gpu:1",
            "shard:3",
            "x y",
        ),
        *("vgpu", "vgpu:1", "vgpu_mem:9", "gres", "a=b=c", "mig=1g.18gb+me", "mem=8G;cores=5", "gpu", "nic:1", "mem"),
    ]
)
ITEMS = st.tuples(st.lists(PIECES, min_size=1, max_size=5), st.lists(st.sampled_from(",,:;"), min_size=5, max_size=5))


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    path = tmp_path_factory.mktemp("token") / "token.so"
    flags = ["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-I", str(ROOT / "native/include")]
    source = ROOT / "slurm-plugins/cli_filter/token.c"
    subprocess.run(["cc", *flags, str(source), "-o", str(path)], check=True)
    return ctypes.CDLL(str(path))


def token_of(library: ctypes.CDLL, value: bytes) -> str | None:
    token = ctypes.create_string_buffer(b"\0" * SIZE + MARK, SIZE + len(MARK))
    library.token_of.restype = ctypes.c_bool
    is_plain = library.token_of(value, token)
    assert token.raw[SIZE:] == MARK, "beyond the token's room"
    return token.value.decode() if is_plain else None


def read(text: str) -> tuple[Request, tuple[str, ...]] | str | None:
    """The request and the other gres, or the refusal's code."""
    try:
        parsed = parse(text)
    except RequestError as error:
        return error.code
    return (parsed.request, parsed.others) if parsed else None


def check(library: ctypes.CDLL, text: str) -> bool:
    """Whether it has a token; that means the same, and is no list."""
    token = token_of(library, text.encode("utf-8", "surrogateescape"))
    prefixed = token_of(library, ("gres:" + text.replace(",", ",gres:")).encode("utf-8", "surrogateescape"))
    if token is None:
        return False
    assert re.fullmatch(r"vgpu:[A-Za-z0-9_.%~;-]+", token)
    assert read(token) == read(text), (text, token)
    assert prefixed == token or text.startswith("gres"), "Slurm puts the prefix before each item but where it is"
    return True


def test_what_people_write_has_a_token(library: ctypes.CDLL) -> None:
    for text, token in (
        ("vgpu:mem=8G,cores=50", "vgpu:mem~8G;cores~50"),
        ("gres:vgpu:mem=8G,gres:cores=50", "vgpu:mem~8G;cores~50"),
        ("gres/vgpu:h200:mem=25%,gres/cores=50", "vgpu:h200;mem~25%;cores~50"),
        ("vgpu:2:mem=8G,mode=mps,slo=10ms", "vgpu:2;mem~8G;mode~mps;slo~10ms"),
        ("vgpu:h200,mem=8G", "vgpu:h200;mem~8G"),
    ):
        assert token_of(library, text.encode()) == token


@pytest.mark.parametrize(
    "text",
    [
        *("", "vgpu", "vgpu:", "vgpu:2", "vgpu:small", "gpu:1,vgpu:mem=8G", "vgpu:mem=8G,gpu:1", "vgpu:mem=8G,nic=2:1"),
        *(
            "vgpu:mem=8G,",
            "vgpu:mem=8G,,cores=5",
            "vgpu::mem=8G",
            "vgpu:=8G",
            "vgpu:mem=",
            "vgpu:mem=8G,cores",
            "vgpux:mem=8G",
        ),
        *(
            "vgpu:mem=8G;cores=5",
            "vgpu:mem~8G",
            "vgpu:mem=8G cores=5",
            "vgpu_mem:9",
            "vgpu:type=h200|a100",
            "vgpu:mem=8\xe9G",
        ),
        *("vgpu:mem=" + "8" * 300, "vgpu:" + ",".join(["mem=8G"] * 40)),
    ],
)
def test_everything_else_is_left_to_lua(text: str, library: ctypes.CDLL) -> None:
    assert token_of(library, text.encode()) is None


def test_the_vectors_of_the_grammar(library: ctypes.CDLL) -> None:
    found = [text for text, *_ in read_vectors("requests.tsv", 3) if check(library, text)]
    assert len(found) > 30
    assert all(text.startswith(("vgpu:", "gres")) for text in found)


@settings(max_examples=500)
@given(ITEMS)
@example((["mem=8G", "cores=50"], list(",,,,,")))
def test_any_list_that_has_a_token_means_the_same(library: ctypes.CDLL, items: tuple[list[str], list[str]]) -> None:
    pieces, between = items
    text = "vgpu:" + "".join(piece + separator for piece, separator in zip(pieces, between, strict=False))
    check(library, text)
    check(library, text[:-1])
    assert c.GRES_CLASS == "vgpu"
