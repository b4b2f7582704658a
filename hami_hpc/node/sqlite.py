# SPDX-License-Identifier: Apache-2.0
"""The `sqlite3` that prolog and epilog import: CPython's C module alone, if it has every name that they use.

The package sqlite3 has the same objects, but imports datetime for converters that hami_hpc does not use: 2 to 3 ms of
each prolog (docs/adr/021). The C module in turn imports functools, and with it collections and types, for `lru_cache`
alone, which it calls for each connection. The class that lru_cache makes is of C, so while the C module is imported, an
object with that function stands in for functools: 1.6 ms (docs/adr/075). In a Python with which that was not tried, and
where something has imported functools already, nothing stands in.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False
TRIED_BEFORE = (3, 14)
if TYPE_CHECKING:
    import sqlite3 as sqlite3
else:
    try:
        from _functools import _lru_cache_wrapper
    except ImportError:
        _lru_cache_wrapper = None

    class _Functools:
        @staticmethod
        def lru_cache(maxsize):
            return lambda function: _lru_cache_wrapper(function, maxsize, False, tuple)

    def _import_c_module():
        """Returns the C module; None where there is none. CPython does not document its name and may change it."""
        stands_in = _lru_cache_wrapper is not None and sys.version_info < TRIED_BEFORE
        if stands_in and sys.modules.setdefault("functools", _Functools) is not _Functools:
            stands_in = False
        try:
            import _sqlite3

            return _sqlite3
        except ImportError:
            return None
        finally:
            if stands_in:
                del sys.modules["functools"]

    sqlite3 = _import_c_module()
    errors = "CORRUPT NOTADB ERROR TOOBIG MISMATCH BUSY FULL READONLY IOERR CANTOPEN"
    used = ["connect", "Connection", "Error", "ProgrammingError", *(f"SQLITE_{name}" for name in errors.split())]
    if not all(hasattr(sqlite3, name) for name in used):
        import sqlite3
