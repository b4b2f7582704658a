# SPDX-License-Identifier: Apache-2.0
"""The `sqlite3` that prolog and epilog import: CPython's C module alone, if it has every name that they use.

The package sqlite3 has the same objects, but imports datetime for converters that hami_hpc does not use: 2 to 3 ms of
each prolog (docs/adr/021).
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    import sqlite3 as sqlite3
else:
    try:
        import _sqlite3 as sqlite3
    except ImportError:  # CPython does not document the module's name and may change it
        sqlite3 = None
    errors = "CORRUPT NOTADB ERROR TOOBIG MISMATCH BUSY FULL READONLY IOERR CANTOPEN"
    used = ["connect", "Connection", "Error", "ProgrammingError", *(f"SQLITE_{name}" for name in errors.split())]
    if not all(hasattr(sqlite3, name) for name in used):
        import sqlite3
