# SPDX-License-Identifier: Apache-2.0
"""The import of hami_hpc's own modules in a stage: it runs what importlib would run, or leaves it to importlib."""

from __future__ import annotations

import importlib.util
import os
import py_compile
import subprocess
import sys
from pathlib import Path

import pytest
from node_testbed import ROOT, Node, job_environment

PACKAGE = {
    "__init__.py": "",
    "quick_import.py": (ROOT / "hami_hpc/quick_import.py").read_text(),
    "room/__init__.py": "NAME = 'room'\n",
    "room/one.py": "from hami_hpc.room import NAME\nVALUE = 1\n",
    "room/broken.py": "def f():\n    raise ValueError('here')\n",
}
# Prints VALUE, what loaded the module, and what importlib says of it.
LOOK = """
import sys; sys.path.append(sys.argv[1])
import hami_hpc
from hami_hpc import quick_import
quick_import.install(hami_hpc.__path__[0])
from hami_hpc.room import one
import hami_hpc.room
spec = one.__spec__
print(one.VALUE, type(one.__loader__).__name__, one.__file__, one.__cached__, one.__package__, one.__name__,
      hami_hpc.room.__path__, hami_hpc.room.one is one, hami_hpc.room.NAME, sep="|")
"""


@pytest.fixture
def above(tmp_path: Path) -> Path:
    """A package hami_hpc of a few modules, compiled."""
    for name, text in PACKAGE.items():
        path = tmp_path / "hami_hpc" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        py_compile.compile(str(path), doraise=True)
    return tmp_path


def look(above: Path, code: str = LOOK) -> list[str]:
    """What a Python without site-packages sees of it, that writes no compiled files."""
    command = [sys.executable, "-B", "-I", "-S", "-c", code, str(above)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip().split("|")


def compiled(above: Path) -> Path:
    return Path(importlib.util.cache_from_source(str(above / "hami_hpc/room/one.py")))


def test_a_module_has_the_attributes_that_importlib_gives_it(above: Path) -> None:
    ours = look(above)
    theirs = look(above, LOOK.replace("quick_import.install(hami_hpc.__path__[0])\n", ""))
    assert (ours[1], theirs[1]) == ("Loader", "SourceFileLoader")
    assert [*ours[:1], *ours[2:]] == [*theirs[:1], *theirs[2:]]
    assert ours[0] == "1"


def _changed_in_size(above: Path) -> None:
    (above / "hami_hpc/room/one.py").write_text("VALUE = 'changed'\n")


def _changed_in_time(above: Path) -> None:
    source = above / "hami_hpc/room/one.py"
    source.write_text(source.read_text().replace("1", "2"))
    os.utime(source, (1, 1))


def _not_compiled(above: Path) -> None:
    compiled(above).unlink()


def _of_another_python(above: Path) -> None:
    data = compiled(above).read_bytes()
    compiled(above).write_bytes(b"\0\0\r\n" + data[4:])


def _cut_within_the_header(above: Path) -> None:
    compiled(above).write_bytes(compiled(above).read_bytes()[:9])


def _empty(above: Path) -> None:
    compiled(above).write_bytes(b"")


def _by_hash(above: Path) -> None:
    mode = py_compile.PycInvalidationMode.CHECKED_HASH
    py_compile.compile(str(above / "hami_hpc/room/one.py"), doraise=True, invalidation_mode=mode)


def _a_directory(above: Path) -> None:
    compiled(above).unlink()
    compiled(above).mkdir()


@pytest.mark.parametrize(
    ("change", "value"),
    [
        (_changed_in_size, "changed"),
        (_changed_in_time, "2"),
        (_not_compiled, "1"),
        (_of_another_python, "1"),
        (_cut_within_the_header, "1"),
        (_empty, "1"),
        (_by_hash, "1"),
        (_a_directory, "1"),
    ],
)
def test_any_other_compiled_file_is_left_to_importlib(above: Path, change: object, value: str) -> None:
    assert callable(change)
    change(above)
    found = look(above)
    assert (found[0], found[1]) == (value, "SourceFileLoader")


def test_a_module_that_is_not_there_is_not_found_as_ever(above: Path) -> None:
    code = LOOK.replace("from hami_hpc.room import one", "import hami_hpc.room.none as one")
    command = [sys.executable, "-B", "-I", "-S", "-c", code, str(above)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "ModuleNotFoundError: No module named 'hami_hpc.room.none'" in done.stderr


def test_an_exception_names_file_and_line(above: Path) -> None:
    code = LOOK.replace("import one", "import broken") + "broken.f()\n"
    code = code.replace("print(", "if 0: print(").replace("spec = one.__spec__", "")
    command = [sys.executable, "-B", "-I", "-S", "-c", code, str(above)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert f'File "{above}/hami_hpc/room/broken.py", line 2, in f\n    raise ValueError' in done.stderr


@pytest.mark.parametrize("lacks", ["", "sys.modules['hami_hpc.quick_import'] = None"])
def test_a_stage_imports_all_of_its_own_modules_by_it_or_none(tmp_path: Path, lacks: str) -> None:
    """All as long as they are compiled: the first stage of a new interpreter or a changed checkout compiles them. None
    in a Python that lacks what it takes of importlib."""
    node = Node.make(tmp_path / "node")
    code = (
        f"import runpy, sys, os\n{lacks}\n"
        "sys.argv = [sys.argv[1], 'prolog', *sys.argv[2:]]\n"
        "def end(status):\n"
        "    modules = {n: m for n, m in sys.modules.items() if n.startswith('hami_hpc.') and m}\n"
        "    loaders = {n: type(m.__loader__).__module__ for n, m in modules.items()}\n"
        "    ours = [n for n in loaders if loaders[n] == 'hami_hpc.quick_import']\n"
        "    print(status, len(ours), *(loaders.keys() - ours if ours else ())); sys.stdout.flush(); real(status)\n"
        "real, os._exit = os._exit, end\n"
        "runpy.run_path(sys.argv[0], run_name='__main__')"
    )
    command = [sys.executable, "-I", "-S", "-c", code, str(ROOT / "prolog/stage.py"), *node.arguments]
    for _ in range(2):
        done = subprocess.run(command, env=job_environment(7), capture_output=True, text=True, check=True)
    status, count, *others = done.stdout.split()
    assert (status, others) == ("0", [] if lacks else ["hami_hpc.quick_import"])
    assert (int(count) > 30) == (not lacks)
    assert node.names() == ["7"]
    node.epilog(7)
