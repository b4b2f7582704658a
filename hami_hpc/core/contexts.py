# SPDX-License-Identifier: Apache-2.0
"""`suppress`, `closing` and `contextmanager` for the modules that prolog and epilog import. Pure.

They work as contextlib's, and type checkers see contextlib's. Importing that module, with functools, collections and
types, takes 2 ms of each stage (docs/adr/075).
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from contextlib import closing as closing
    from contextlib import contextmanager as contextmanager
    from contextlib import suppress as suppress
else:

    class suppress:  # noqa: N801  contextlib's name
        """Ends the block quietly at one of these exceptions."""

        def __init__(self, *kinds):
            self._kinds = kinds

        def __enter__(self):
            return None

        def __exit__(self, kind, error, traceback):
            return kind is not None and issubclass(kind, self._kinds)

    class closing:  # noqa: N801  contextlib's name
        """Closes an object at the end of the block."""

        def __init__(self, thing):
            self._thing = thing

        def __enter__(self):
            return self._thing

        def __exit__(self, kind, error, traceback):
            self._thing.close()

    class _Context:
        """One run of a generator that yields once, in place of the block."""

        def __init__(self, generator):
            self._generator = generator

        def __enter__(self):
            for value in self._generator:
                return value
            raise RuntimeError("generator didn't yield")

        def __exit__(self, kind, error, traceback):
            if kind is None:
                for _ in self._generator:
                    self._generator.close()
                    raise RuntimeError("generator didn't stop")
                return False
            try:
                self._generator.throw(error)
            except StopIteration as stop:
                return stop is not error  # the generator caught the block's exception, and ended
            except BaseException as raised:
                # Python turns a StopIteration that leaves a generator into a RuntimeError caused by it.
                is_turned = isinstance(error, StopIteration) and isinstance(raised, RuntimeError)
                if raised is not error and not (is_turned and raised.__cause__ is error):
                    raise
                error.__traceback__ = traceback
                return False
            self._generator.close()
            raise RuntimeError("generator didn't stop after throw()")

    def contextmanager(function):
        """Makes a context manager of a function whose generator yields once."""

        def make(*values, **named):
            return _Context(function(*values, **named))

        make.__name__, make.__qualname__, make.__doc__ = function.__name__, function.__qualname__, function.__doc__
        make.__module__, make.__wrapped__ = function.__module__, function
        return make
