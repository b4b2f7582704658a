# SPDX-License-Identifier: Apache-2.0
"""`sqlite3` as prolog and epilog import it: the C module by itself where it holds all that they use.

Everything here is the very same in the package sqlite3, which imports datetime for converters that nobody here needs:
2 to 3 ms of each prolog (docs/adr/021).
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    import sqlite3 as sqlite3
else:
    try:
        import _sqlite3 as sqlite3
    except ImportError:  # the module's name is CPython's own matter
        sqlite3 = None
    errors = "CORRUPT NOTADB ERROR TOOBIG MISMATCH BUSY FULL READONLY IOERR CANTOPEN"
    used = ["connect", "Connection", "Error", "ProgrammingError", *(f"SQLITE_{name}" for name in errors.split())]
    if not all(hasattr(sqlite3, name) for name in used):
        import sqlite3
