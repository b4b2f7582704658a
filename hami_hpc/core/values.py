# SPDX-License-Identifier: Apache-2.0
"""Named tuples for the modules that prolog and epilog import. Pure.

`NamedTuple` works as typing's, and type checkers see typing's. At run time it is a small class of its own, because
importing typing takes as long as an empty Python start, and typing compiles code for each class (docs/adr/021).
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NamedTuple as NamedTuple
else:
    try:
        from _collections import _tuplegetter as getter  # that of collections.namedtuple, without the rest of it
    except ImportError:
        from operator import itemgetter

        def getter(index, _doc):
            return property(itemgetter(index))

    class NamedTuple(tuple):
        """Base of immutable records: a subclass names its fields by annotations, with defaults for the last ones."""

        def __init_subclass__(cls) -> None:
            cls._fields = tuple(cls.__annotations__)
            cls._names = frozenset(cls._fields)
            cls._defaults = {name: cls.__dict__[name] for name in cls._fields if name in cls.__dict__}
            for index, name in enumerate(cls._fields):
                setattr(cls, name, getter(index, None))

        def __new__(cls, *values, **named):
            """Raises TypeError when a field is missing, unknown or given twice."""
            if not values and named.keys() == cls._names:
                values = map(named.__getitem__, cls._fields)
            elif named or len(values) != len(cls._fields):
                given = cls._defaults | dict(zip(cls._fields, values)) | named  # noqa: B905  the lengths may differ
                wrong = given.keys() ^ set(cls._fields) or named.keys() & set(cls._fields[: len(values)])
                if wrong or len(values) > len(cls._fields):
                    raise TypeError(f"{cls.__name__}: fields missing, unknown or given twice: {sorted(wrong)}")
                values = map(given.__getitem__, cls._fields)
            return tuple.__new__(cls, values)

        def __getnewargs__(self):
            return tuple(self)

        def __repr__(self) -> str:
            fields = ", ".join(f"{name}={value!r}" for name, value in self._asdict().items())
            return f"{type(self).__name__}({fields})"

        def _asdict(self):
            return dict(zip(self._fields, self, strict=True))

        def _replace(self, **named):
            """Returns a copy with other values. Raises TypeError for an unknown field."""
            values = [named.pop(name, value) for name, value in zip(self._fields, self, strict=True)]
            if named:
                raise TypeError(f"{type(self).__name__}: fields unknown: {sorted(named)}")
            return tuple.__new__(type(self), values)
