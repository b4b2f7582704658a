# SPDX-License-Identifier: Apache-2.0
"""The request grammar in Python, against the vectors and its own properties."""

from __future__ import annotations

import re
from dataclasses import fields

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lua_process import read_vectors

from hami_hpc.contract import constants as contract
from hami_hpc.core.request import Parsed, Request, canonical, parse
from hami_hpc.core.request_keys import KEYS, MemMib, MemPercent, is_mig_name
from hami_hpc.errors import RequestError

REQUESTS = st.builds(
    Request,
    gpu_type=st.none()
    | st.from_regex(r"[a-z][A-Za-z0-9_-]{2,7}", fullmatch=True).filter(
        lambda name: name not in {*contract.CLASS_NAMES, *contract.KEY_FORM}
    ),
    mem=st.none()
    | st.builds(MemMib, st.integers(1, contract.MEM_MIB_MAX))
    | st.builds(MemPercent, st.integers(1, 100)),
    cores=st.none() | st.integers(1, 100),
    mode=st.none() | st.sampled_from(sorted(contract.MODES)),
    policy=st.none() | st.sampled_from(sorted(contract.POLICIES)),
)


KEY_VECTORS = [(key, value) for key, text in contract.KEY_EXAMPLE.items() for value in re.findall(r"=([^ ,]+)", text)]


@pytest.mark.parametrize("name", [*contract.CLASS_NAMES, "interactive"])
def test_nobody_asks_for_the_units_of_a_class_of_the_site(name: str) -> None:
    for text in (f"vgpu:{name}:1", f"gres:vgpu:{name}", f"vgpu:{name};mem~8G", f"vgpu:{name}:mem=8G"):
        with pytest.raises(RequestError) as caught:
            parse(text, {"interactive": ()})
        assert caught.value.code == "E_RAW_UNITS"
    parsed = parse("vgpu:interactive:1")
    assert parsed is not None
    assert parsed.request.gpu_type == "interactive", "where no class has the name it is a type of GPU"


def test_each_key_of_the_contract_has_its_parser_and_its_field() -> None:
    assert tuple(contract.KEY_FORM) == tuple(KEYS)
    assert {field.name for field in fields(Request)} == {"gpu_type", *KEYS}


@pytest.mark.parametrize(("key", "value"), KEY_VECTORS)
def test_an_example_of_a_key_is_read_into_the_field_of_that_key_alone(key: str, value: str) -> None:
    parsed = parse(f"vgpu:{key}={value}")
    assert parsed is not None
    assert [name for name in KEYS if getattr(parsed.request, name) is not None] == [key]


def test_a_key_without_a_parser_is_refused_and_not_read_as_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(contract.KEY_FORM, "tier", "gold or silver")
    assert code_of("vgpu:tier=share") == "E_KEY_UNKNOWN"


def code_of(text: str) -> str:
    with pytest.raises(RequestError) as caught:
        parse(text)
    return caught.value.code


@pytest.mark.parametrize(("text", "expected", "others"), read_vectors("requests.tsv", 3))
def test_parses_each_vector_as_written(text: str, expected: str, others: str) -> None:
    if expected.startswith("E_"):
        assert code_of(text) == expected
        return
    parsed = parse(text)
    if expected == "none":
        assert parsed is None
        return
    assert isinstance(parsed, Parsed)
    assert canonical(parsed.request) == expected
    assert ",".join(parsed.others) == ("" if others == "-" else others)


def test_vectors_hold_every_error_that_the_grammar_can_raise() -> None:
    raised: set[str] = set()
    for function in (parse, is_mig_name):
        source = (function.__code__.co_filename).removesuffix("c")
        with open(source, encoding="utf-8") as file:  # noqa: PTH123 - a code object's file name
            raised |= set(re.findall(r"\"(E_[A-Z_]+)\"", file.read()))
    assert raised == {row[1] for row in read_vectors("requests.tsv", 3) if row[1].startswith("E_")}


@given(REQUESTS)
def test_the_canonical_form_parses_to_the_same_request(request: Request) -> None:
    parsed = parse(canonical(request))
    assert parsed is not None
    assert parsed.request == request
    assert parsed.others == ()


def refusal_of(text: str) -> RequestError | None:
    try:
        parse(text)
    except RequestError as error:
        return error
    return None


@given(st.text(max_size=60).map(lambda text: "vgpu" + text))
def test_any_text_after_vgpu_parses_or_is_refused_in_one_printable_line(text: str) -> None:
    error = refusal_of(text)
    if error is not None:
        assert error.code in contract.ERRORS
        assert error.message.startswith(contract.ERROR_PREFIX)
        assert error.message.isprintable()
        assert error.message.isascii()


def test_a_message_names_what_was_given_what_is_allowed_and_an_example() -> None:
    with pytest.raises(RequestError) as caught:
        parse("vgpu:mem=8,cores=50")
    assert caught.value.message == (
        "hami_hpc: mem=8 has no unit; allowed is a whole number with M, G or T, or a percentage. "
        "Example: --gres=vgpu:mem=8G,cores=50"
    )


@pytest.mark.parametrize(
    ("text", "example"),
    [("slo=5", "mem=8G,cores=50,slo=10ms"), ("mode=x", "mem=8G,cores=50,mode=share"), ("cores=x", "mem=8G,cores=50")],
)
def test_the_example_of_a_message_has_the_key_that_was_wrong(text: str, example: str) -> None:
    with pytest.raises(RequestError) as caught:
        parse(f"vgpu:{text}")
    assert caught.value.message.endswith(f"Example: --gres=vgpu:{example}")


def test_a_message_shortens_what_was_given_and_hides_what_does_not_print() -> None:
    with pytest.raises(RequestError) as caught:
        parse("vgpu:mem=" + "x" * 100)
    assert "mem=" + "x" * 37 + "... is not understood" in caught.value.message
    with pytest.raises(RequestError) as caught:
        parse("vgpu:\u00e9\x1b[31m")
    assert "'vgpu:???[31m'" in caught.value.message


def test_braces_of_the_user_are_not_read_as_placeholders() -> None:
    with pytest.raises(RequestError) as caught:
        parse("vgpu:{allowed}=1")
    assert caught.value.message.startswith("hami_hpc: unknown key '{allowed}' in '{allowed}=1'; the keys of vgpu ")


def test_a_profiles_name_has_at_most_so_many_characters() -> None:
    longest = "1g.18gb+".ljust(contract.MIG_NAME_MAX, "a")
    assert is_mig_name(longest)
    assert not is_mig_name(f"{longest}a")
    assert not is_mig_name("1g.18gb+A")
