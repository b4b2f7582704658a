# SPDX-License-Identifier: Apache-2.0
"""Imports hami_hpc's own modules, for prolog and epilog, in fewer steps than importlib: where a module lies follows
from its name, so no directory is listed and no other kind of file is looked for (docs/adr/075).

What is run is what importlib would run: the compiled file beside the source, if it was made by this Python of a source
with that time and size. Any other module, and any other compiled file, is left to importlib.
"""

from __future__ import annotations

import os
import sys
from marshal import loads

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.abc import Loader as LoaderOfImportlib
    from importlib.machinery import ModuleSpec
    from importlib.util import MAGIC_NUMBER
    from types import ModuleType
else:
    LoaderOfImportlib = object
    from _frozen_importlib import ModuleSpec
    from _frozen_importlib_external import MAGIC_NUMBER

PACKAGE = "hami_hpc"
OPEN = os.O_RDONLY | os.O_CLOEXEC
BY_TIME = MAGIC_NUMBER + bytes(4)  # of a compiled file that is valid by its source's time and size
HEADER = 16


def install(root: str) -> None:
    """Imports by this from now on. `root`: the directory of the package hami_hpc."""
    sys.meta_path.insert(0, Finder(os.path.dirname(root)))


class Finder:
    """Of sys.meta_path: finds the modules of the package below one directory."""

    def __init__(self, above: str) -> None:
        self._above = above
        self._suffix = f".{sys.implementation.cache_tag}.pyc"

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        """Returns what a module is loaded from; None leaves it to importlib."""
        if not name.startswith(f"{PACKAGE}."):
            return None
        where = f"{self._above}/{name.replace('.', '/')}"
        folder, _, last = where.rpartition("/")
        return self._spec(name, folder, last, False) or self._spec(name, where, "__init__", True)

    def _spec(self, name: str, folder: str, file: str, is_package: bool) -> ModuleSpec | None:
        source, compiled = f"{folder}/{file}.py", f"{folder}/__pycache__/{file}{self._suffix}"
        try:
            fd = os.open(compiled, OPEN)
        except OSError:
            return None
        try:
            data = os.read(fd, os.fstat(fd).st_size)
            status = os.stat(source)
        except OSError:
            return None
        finally:
            os.close(fd)
        made_of = b"".join((int(n) & 0xFFFFFFFF).to_bytes(4, "little") for n in (status.st_mtime, status.st_size))
        if data[:HEADER] != BY_TIME + made_of:
            return None
        spec = ModuleSpec(name, Loader(data), origin=source, is_package=is_package)
        spec.cached, spec.has_location = compiled, True
        if spec.submodule_search_locations is not None:
            spec.submodule_search_locations.append(folder)
        return spec


class Loader(LoaderOfImportlib):
    """Runs a compiled file that has been read."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def create_module(self, spec: ModuleSpec) -> None:
        """Leaves it to importlib."""

    def exec_module(self, module: ModuleType) -> None:
        exec(loads(memoryview(self._data)[HEADER:]), module.__dict__)
