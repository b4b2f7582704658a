# SPDX-License-Identifier: Apache-2.0
"""Named tuples without typing: each gives what typing's gives."""

from __future__ import annotations

import pickle
from typing import Any, NamedTuple

import pytest

from hami_hpc.core import values


class Ours(values.NamedTuple):
    first: int
    second: str
    third: float = 0.5


class Typings(NamedTuple):
    first: int
    second: str
    third: float = 0.5


CALLS: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
    ((1, "a", 2.0), {}),
    ((1, "a"), {}),
    ((1,), {"second": "b"}),
    ((), {"second": "b", "first": 2, "third": 3.0}),
    ((), {}),
    ((1,), {}),
    ((1, "a", 2.0, 3), {}),
    ((1, "a"), {"first": 2}),
    ((1, "a"), {"fourth": 2}),
    ((1, "a", 2.0), {"third": 2.0}),
    ((), {"third": 2.0}),
]


@pytest.mark.parametrize(("given", "named"), CALLS)
def test_a_named_tuple_is_made_as_typings(given: tuple[Any, ...], named: dict[str, Any]) -> None:
    try:
        model = Typings(*given, **named)
    except TypeError:
        with pytest.raises(TypeError, match="Ours"):
            Ours(*given, **named)
        return
    ours = Ours(*given, **named)
    assert tuple(ours) == tuple(model)
    assert repr(ours) == repr(model).replace("Typings", "Ours")
    assert (ours.first, ours.second, ours.third) == (model.first, model.second, model.third)


def test_a_named_tuple_behaves_as_typings() -> None:
    ours, model = Ours(1, "a"), Typings(1, "a")
    assert Ours._fields == Typings._fields
    assert ours._asdict() == model._asdict()
    assert tuple(ours._replace(second="b")) == tuple(model._replace(second="b"))
    assert type(ours._replace(second="b")) is Ours
    assert hash(ours) == hash(model)
    assert ours == (1, "a", 0.5)
    assert pickle.loads(pickle.dumps(ours)) == ours
    with pytest.raises(TypeError, match="fourth"):
        ours._replace(fourth=1)  # type: ignore[call-arg]
    with pytest.raises(AttributeError):
        ours.first = 2  # type: ignore[misc]
