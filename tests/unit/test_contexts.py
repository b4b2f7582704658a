# SPDX-License-Identifier: Apache-2.0
"""Context managers without contextlib: each does what contextlib's does."""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import pytest

from hami_hpc.core import contexts

BOTH: list[Any] = [contextlib, contexts]
Block = Callable[[], None]


def _raise(error: BaseException) -> None:
    raise error


BLOCKS: dict[str, Block] = {
    "ends": lambda: None,
    "ValueError": lambda: _raise(ValueError("block")),
    "KeyError": lambda: _raise(KeyError("block")),
    "KeyboardInterrupt": lambda: _raise(KeyboardInterrupt()),
    "StopIteration": lambda: _raise(StopIteration("block")),
    "RuntimeError": lambda: _raise(RuntimeError("block")),
    "GeneratorExit": lambda: _raise(GeneratorExit("block")),
}


def _passes(log: list[str]) -> Iterator[int]:
    log.append("begin")
    yield 7
    log.append("end")


def _finally(log: list[str]) -> Iterator[int]:
    try:
        yield 7
    finally:
        log.append("finally")


def _catches(log: list[str]) -> Iterator[int]:
    try:
        yield 7
    except (ValueError, StopIteration) as error:
        log.append(repr(error))


def _turns(log: list[str]) -> Iterator[int]:
    try:
        yield 7
    except Exception as error:
        raise OSError("turned") from error


def _raises_again(log: list[str]) -> Iterator[int]:
    try:
        yield 7
    except Exception as error:
        log.append("again")
        raise error


def _fails_at_end(log: list[str]) -> Iterator[int]:
    yield 7
    raise LookupError("end")


def _yields_twice(log: list[str]) -> Iterator[int]:
    try:
        yield 7
    except ValueError:
        log.append("caught")
    yield 8


def _never_yields(log: list[str]) -> Iterator[int]:
    yield from ()


def outcome(module: ModuleType, generator: Callable[[list[str]], Iterator[int]], block: Block) -> tuple[Any, ...]:
    """What a block within a context does to its caller."""
    log: list[str] = []
    try:
        with module.contextmanager(generator)(log) as value:
            log.append(f"value {value}")
            block()
    except BaseException as error:
        return log, type(error), str(error), type(error.__cause__)
    return log, None


@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.parametrize(
    "generator",
    [_passes, _finally, _catches, _turns, _raises_again, _fails_at_end, _yields_twice, _never_yields],
    ids=lambda function: function.__name__,
)
def test_a_context_of_a_generator_is_contextlibs(generator: Callable[[list[str]], Iterator[int]], block: str) -> None:
    theirs, ours = (outcome(module, generator, BLOCKS[block]) for module in BOTH)
    assert ours == theirs


def test_an_exception_keeps_the_lines_where_it_was_raised() -> None:
    """And has no line of a context manager's after them: the last is what error_text() shows an administrator."""

    def last_line(module: Any) -> str | None:
        with pytest.raises(ValueError, match="block") as caught, module.contextmanager(_raises_again)([]):
            BLOCKS["ValueError"]()
        return traceback.extract_tb(caught.value.__traceback__)[-1].line

    theirs, ours = map(last_line, BOTH)
    assert ours == theirs == "raise error"


def test_a_context_is_made_anew_by_each_call_and_has_the_functions_name() -> None:
    @contexts.contextmanager
    def numbered(number: int, *, text: str) -> Iterator[str]:
        """Says which."""
        yield f"{text} {number}"

    for number in (1, 2):
        with numbered(number, text="no.") as value:
            assert value == f"no. {number}"
    assert (numbered.__name__, numbered.__doc__) == ("numbered", "Says which.")


@pytest.mark.parametrize("kinds", [(), (ValueError,), (OSError, LookupError), (BaseException,)])
@pytest.mark.parametrize("block", BLOCKS)
def test_what_is_suppressed_is_what_contextlib_suppresses(kinds: tuple[type[BaseException], ...], block: str) -> None:
    def result(module: Any) -> type[BaseException] | None:
        try:
            with module.suppress(*kinds):
                BLOCKS[block]()
        except BaseException as error:
            return type(error)
        return None

    theirs, ours = map(result, BOTH)
    assert ours is theirs


@pytest.mark.parametrize("block", ["ends", "ValueError"])
def test_a_thing_is_closed_at_the_end_of_the_block(block: str) -> None:
    class Thing:
        closed = 0

        def close(self) -> None:
            self.closed += 1

    thing = Thing()
    with contextlib.suppress(ValueError), contexts.closing(thing) as same:
        assert same is thing
        assert thing.closed == 0
        BLOCKS[block]()
    assert thing.closed == 1
