# SPDX-License-Identifier: Apache-2.0
"""A Lua process that runs the filters' grammar and units for many requests (tests/unit/lua/runner.lua)."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from types import TracebackType
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
MODULES: Final = ROOT / "slurm-plugins/lua"
VECTORS: Final = ROOT / "tests/vectors"
RUNNER: Final = Path(__file__).with_name("lua") / "runner.lua"
INTERPRETERS: Final = ("lua5.1", "lua5.4")  # the oldest and the newest release that Slurm is linked with


def require(interpreter: str) -> str:
    """Returns the interpreter's path."""
    path = shutil.which(interpreter)
    assert path is not None, f"{interpreter} is not installed: run make setup-test"
    return path


class LuaProcess:
    """A running runner.lua; use as a context manager."""

    def __init__(self, interpreter: str) -> None:
        self.interpreter = interpreter
        self._process = subprocess.Popen(
            [require(interpreter), str(RUNNER), str(MODULES)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )

    def ask(self, command: str, *fields: str) -> list[str]:
        """Sends one command and returns the fields of the answer. Undecodable bytes can be passed as surrogates."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        encoded = [field.encode("utf-8", "surrogateescape").hex() for field in fields]
        self._process.stdin.write("\t".join([command, *encoded]).encode("ascii") + b"\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline().decode("latin-1")
        assert answer.endswith("\n"), f"{self.interpreter} ended at {command} {fields!r}"
        return answer[:-1].split("\t")

    def kill(self) -> None:
        """Ends the process, whatever it does."""
        self._process.kill()
        self._process.communicate()

    def __enter__(self) -> LuaProcess:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._process.communicate(timeout=10)
        assert kind is not None or self._process.returncode == 0


def read_vectors(name: str, columns: int) -> list[tuple[str, ...]]:
    r"""Reads the rows of a vector file: tab-separated, # comments; \xNN is a byte, `{N*c}` N times the character c."""
    rows = []
    for line in (VECTORS / name).read_text(encoding="ascii").splitlines():
        if line and not line.startswith("#"):
            fields = [field.strip() for field in line.split("\t") if field.strip()]
            assert len(fields) == columns, f"{name}: {len(fields)} columns instead of {columns} in: {line}"
            rows.append(tuple(expand(field) for field in fields))
    return rows


def expand(field: str) -> str:
    r"""Replaces \xNN and {N*c}. Bytes that are not UTF-8 become surrogates, as in sys.argv."""
    repeated = re.sub(r"\{(\d+)\*(.)\}", lambda match: match[2] * int(match[1]), field)
    raw = re.sub(r"\\x([0-9a-f]{2})", lambda match: chr(int(match[1], 16)), repeated).encode("latin-1")
    return raw.decode("utf-8", "surrogateescape")
