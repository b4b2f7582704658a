# SPDX-License-Identifier: Apache-2.0
"""Which SPANK plugins Slurm loads on this node: plugstack.conf, found and read as slurmstepd does.

The prolog of every vgpu job uses this, so it imports little and searches slurm.conf instead of parsing it. As in Slurm
22.05, 24.11 and 26.05 (plugstack.c, spank.c, parse_config.c): PlugStackConfig of slurm.conf, else plugstack.conf beside
slurm.conf; `include` takes a glob pattern, relative to the file that has it; a missing file is an empty one. Blanks,
tabs and line feeds separate words there, and a carriage return is part of one.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator

from hami_hpc.core.values import NamedTuple
from hami_hpc.errors import NodeError

SPANK_PLUGIN = "spank_hami_hpc.so"
REQUIRED = "required"
MAX_BYTES = 8 << 20
MAX_DEPTH = 16
KEYS = ("plugstackconfig", "clustername")
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
    settings = _settings(slurm_conf, conf_dir, {}, 0)  # the latest counts, as in Slurm
    return settings.get("plugstackconfig") or f"{conf_dir}/plugstack.conf"


def _settings(path: str, conf_dir: str, found: dict[str, str], depth: int) -> dict[str, str]:
    """Adds to `found` what slurm.conf says of PlugStackConfig and of ClusterName, which includes may name."""
    text = read_text(path)
    if text is None:
        raise NodeError(f"{path} is not there")
    for line in _lines_with(text, (*KEYS, "include")):
        words = line.split()
        if words[0].lower() != "include":
            for key in KEYS:
                found[key] = _setting(line, key) or found.get(key, "")
        elif len(words) > 1:
            check_depth(path, depth)
            name = included_path(words[1], path, conf_dir, found.get("clustername", ""))
            _settings(name, conf_dir, found, depth + 1)
    return found


def check_depth(path: str, depth: int) -> None:
    """NodeError for includes that nest too deep, as those of a file that includes itself do."""
    if depth >= MAX_DEPTH:
        raise NodeError(f"{path} is included {depth} files deep: does one of them include itself? Slurm would fail")


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
        line = ""
        for part in _from(text, start):
            line += part.partition("#")[0].rstrip()
            if (len(line) - len(line.rstrip("\\"))) % 2 == 0:
                break
            line = line[:-1]  # it goes on in the next
        if line.strip():
            yield line.strip()


def _from(text: str, start: int) -> Iterator[str]:
    """The lines of a text from a line's start on."""
    while start >= 0:
        end = text.find("\n", start)
        yield text[start : end if end >= 0 else None]
        start = end + 1 or -1


def included_path(name: str, path: str, conf_dir: str, cluster: str = "") -> str:
    """The file of an include in slurm.conf or gres.conf, in which %c is ClusterName in lower case.

    Relative names are relative to the file with the include before Slurm 23.11, to slurm.conf's directory since.
    NodeError for %c where no ClusterName has come before.
    """
    if "%c" in name:
        if not cluster:
            raise NodeError(f"{path} includes {name} with no ClusterName before it: Slurm would not start")
        name = name.replace("%c", cluster.lower())
    if name.startswith("/"):
        return name
    beside = f"{os.path.dirname(path)}/{name}"
    return beside if os.path.exists(beside) else f"{conf_dir}/{name}"


def read_text(path: str) -> str | None:
    """The file's text, bytes that are no UTF-8 replaced; None when there is no such file.

    NodeError when it cannot be read, is a directory, pipe or socket, or is longer than MAX_BYTES.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise NodeError(f"{path} cannot be read ({getattr(error, 'strerror', error)})") from error
    try:
        form = stat.S_IFMT(os.fstat(fd).st_mode)
        if form not in (stat.S_IFREG, stat.S_IFCHR):  # a link to /dev/null is an empty file to Slurm
            raise NodeError(f"{path} is not a regular file")
        with open(fd, "rb", closefd=False) as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise NodeError(f"{path} cannot be read ({error.strerror})") from error
    finally:
        os.close(fd)
    if len(data) > MAX_BYTES:
        raise NodeError(f"{path} is longer than {MAX_BYTES >> 20} MiB: is it a configuration file of Slurm's?")
    return data.decode("utf-8", "replace")


def read_lines(path: str, depth: int = 0) -> Iterator[Line]:
    """The plugins that a plugstack.conf names, includes followed, in Slurm's order. NodeError as read_text."""
    for number, words in _words_of_lines(path):
        if words[0] == "include":
            check_depth(path, depth)
            for name in _matches(words[1], path):
                yield from read_lines(name, depth + 1)
        elif words[0] in (REQUIRED, "optional"):  # Slurm ignores a line with another word
            yield Line(words[0], words[1], tuple(words[2:]), f"{path}:{number}")


def _words_of_lines(path: str) -> Iterator[tuple[int, list[str]]]:
    """(number, words) of each line of a plugstack.conf with at least two words."""
    for number, text in enumerate((read_text(path) or "").split("\n"), 1):
        words = [word for word in text.partition("#")[0].replace("\t", " ").split(" ") if word]
        if len(words) > 1:
            yield number, words


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
    for _number, words in _words_of_lines(path):
        if words[0] == "include":
            check_depth(path, depth)
            yield words[1] if words[1].startswith("/") else f"{os.path.dirname(path)}/{words[1]}"
            for name in _matches(words[1], path):
                yield from _patterns(name, depth + 1)
