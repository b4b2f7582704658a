# SPDX-License-Identifier: Apache-2.0
"""Which SPANK plugins Slurm loads on this node: plugstack.conf, found and read as slurmstepd does.

The prolog of every vgpu job uses this, so it imports little and searches slurm.conf instead of parsing it. As in Slurm
22.05, 24.11 and 26.05 (plugstack.c, spank.c, parse_config.c): PlugStackConfig of slurm.conf, else plugstack.conf beside
slurm.conf; `include` takes a glob pattern, relative to the file that has it; a missing file is an empty one.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

from hami_hpc.core.values import NamedTuple
from hami_hpc.errors import NodeError

SPANK_PLUGIN = "spank_hami_hpc.so"
REQUIRED = "required"
MAX_BYTES = 8 << 20
MAX_DEPTH = 16
MAGIC = frozenset("*?[")


class Line(NamedTuple):
    """One plugin's line. `kind` is required or optional; `where` is FILE:NUMBER."""

    kind: str
    plugin: str
    arguments: tuple[str, ...]
    where: str


def plugstack_path(slurm_conf: str) -> str:
    """Where Slurm with this slurm.conf looks for plugstack.conf. NodeError when slurm.conf cannot be read."""
    conf_dir = os.path.dirname(slurm_conf)
    settings = list(_plugstack_settings(slurm_conf, conf_dir, 0))
    return settings[-1] if settings else f"{conf_dir}/plugstack.conf"  # the latest, as Slurm does


def _plugstack_settings(path: str, conf_dir: str, depth: int) -> Iterator[str]:
    text = read_text(path)
    if text is None:
        raise NodeError(f"{path} is not there")
    for line in _lines_with(text, ("plugstackconfig", "include")):
        words = line.split()
        if words[0].lower() != "include":
            setting = _setting(line, "plugstackconfig")
            if setting:
                yield setting
        elif len(words) > 1 and depth < MAX_DEPTH:
            yield from _plugstack_settings(included_path(words[1], path, conf_dir), conf_dir, depth + 1)


def _setting(line: str, key: str) -> str:
    """The value of `key` in a line of slurm.conf; empty when it is not there."""
    at = line.lower().find(key)
    rest = line[at + len(key) :].lstrip() if at >= 0 else ""
    if not rest.startswith("="):
        return ""
    rest = rest[1:].lstrip()
    return rest[1:].partition('"')[0] if rest.startswith('"') else rest.split()[0] if rest else ""


def _lines_with(text: str, words: tuple[str, ...]) -> Iterator[str]:
    """The lines that hold one of the words, without comments and outer blanks: the one in 5,000 is found quickly."""
    lowered = text.lower()
    if len(lowered) != len(text):
        lowered = text  # some letters change their length: only lines in the usual spelling are found
    starts = set()
    for word in words:
        at = lowered.find(word)
        while at >= 0:
            starts.add(lowered.rfind("\n", 0, at) + 1)
            at = lowered.find(word, at + 1)
    for start in sorted(starts):
        end = text.find("\n", start)
        line = text[start : end if end >= 0 else None].partition("#")[0].strip()
        if line:
            yield line


def included_path(name: str, path: str, conf_dir: str) -> str:
    """The file of an include in slurm.conf or gres.conf.

    Relative names are relative to the file with the include before Slurm 23.11, to slurm.conf's directory since.
    """
    if name.startswith("/"):
        return name
    beside = f"{os.path.dirname(path)}/{name}"
    return beside if os.path.exists(beside) else f"{conf_dir}/{name}"


def read_text(path: str) -> str | None:
    """The file's text; None when there is no such file. NodeError when it cannot be read."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise NodeError(f"{path} cannot be read ({error.strerror})") from error
    try:
        with open(fd, "rb") as file:
            return file.read(MAX_BYTES).decode("utf-8", "replace")
    except OSError as error:
        raise NodeError(f"{path} cannot be read ({error.strerror})") from error


def read_lines(path: str, depth: int = 0) -> Iterator[Line]:
    """The plugins that a plugstack.conf names, includes followed, in Slurm's order. NodeError as read_text."""
    for number, text in enumerate((read_text(path) or "").split("\n"), 1):
        words = text.partition("#")[0].split()
        if len(words) < 2:
            continue
        if words[0] == "include":
            if depth < MAX_DEPTH:
                for name in _matches(words[1], path):
                    yield from read_lines(name, depth + 1)
        elif words[0] in (REQUIRED, "optional"):  # Slurm ignores a line with another word
            yield Line(words[0], words[1], tuple(words[2:]), f"{path}:{number}")


def _matches(pattern: str, path: str) -> list[str]:
    full = pattern if pattern.startswith("/") else f"{os.path.dirname(path)}/{pattern}"
    folder, _, name = full.rpartition("/")
    if MAGIC.isdisjoint(full):
        return [full]
    if MAGIC.isdisjoint(folder) and name.count("*") == 1 and "?" not in name and "[" not in name:
        return _one_star(folder, name)
    import glob

    return sorted(glob.glob(full))


def _one_star(folder: str, name: str) -> list[str]:
    """`*.conf` without the modules that patterns in general need: half of this check's time."""
    begin, end = name.split("*")
    try:
        names = os.listdir(folder)
    except OSError:
        return []
    return sorted(
        f"{folder}/{one}"
        for one in names
        if one.startswith(begin) and one.endswith(end) and len(one) >= len(name) - 1 and (begin or one[0] != ".")
    )


def our_line(path: str) -> Line | None:
    """The first line of `path` that names hami_hpc's SPANK plugin: Slurm loads a plugin once, by its first line."""
    for line in read_lines(path):
        if line.plugin.rpartition("/")[2] == SPANK_PLUGIN:
            return line
    return None


def reads(path: str, file: str) -> bool:
    """Whether an include of `path`, followed, names `file`, which need not be there yet."""
    import fnmatch

    folder, name = os.path.split(file)
    for pattern in _patterns(path, 0):
        at, _, form = pattern.rpartition("/")
        if os.path.realpath(at) == os.path.realpath(folder) and fnmatch.fnmatchcase(name, form):
            return True
    return False


def _patterns(path: str, depth: int) -> Iterator[str]:
    for text in (read_text(path) or "").split("\n"):
        words = text.partition("#")[0].split()
        if len(words) > 1 and words[0] == "include" and depth < MAX_DEPTH:
            yield words[1] if words[1].startswith("/") else f"{os.path.dirname(path)}/{words[1]}"
            for name in _matches(words[1], path):
                yield from _patterns(name, depth + 1)
