# SPDX-License-Identifier: Apache-2.0
"""Reads which SPANK plugins Slurm loads on this node: finds and reads plugstack.conf as slurmstepd does.

The prolog of every vgpu job uses this, so it imports little and searches slurm.conf instead of parsing it. As in Slurm
22.05, 24.11 and 26.05 (plugstack.c, spank.c, parse_config.c), the path is PlugStackConfig of slurm.conf, else
plugstack.conf beside slurm.conf; `include` takes a glob pattern, relative to the file that has it; a missing file is
read as an empty one. In plugstack.conf blanks, tabs and line feeds separate words; a carriage return is part of a word.
"""

from __future__ import annotations

import os
import stat

from hami_hpc.core.values import NamedTuple
from hami_hpc.errors import NodeError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

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
    """Returns the path of plugstack.conf for this slurm.conf. Raises NodeError when slurm.conf cannot be read."""
    conf_dir = os.path.dirname(slurm_conf)
    settings = _settings(slurm_conf, conf_dir, {}, 0)  # the last setting counts, as in Slurm
    return settings.get("plugstackconfig") or f"{conf_dir}/plugstack.conf"


def _settings(path: str, conf_dir: str, settings: dict[str, str], depth: int) -> dict[str, str]:
    """Adds slurm.conf's PlugStackConfig and ClusterName, which includes can contain as %c, to `settings`."""
    text = read_text(path)
    if text is None:
        raise NodeError(f"{path} does not exist")
    for line in _lines_with(text, (*KEYS, "include")):
        words = line.split()
        if words[0].lower() != "include":
            for key in KEYS:
                settings[key] = _setting(line, key) or settings.get(key, "")
        elif len(words) > 1:
            check_depth(path, depth)
            name = included_path(words[1], path, conf_dir, settings.get("clustername", ""))
            _settings(name, conf_dir, settings, depth + 1)
    return settings


def check_depth(path: str, depth: int) -> None:
    """Raises NodeError for includes that are nested too deeply, such as those of a file that includes itself."""
    if depth >= MAX_DEPTH:
        raise NodeError(f"{path} is included {depth} files deep: does one of them include itself? Slurm would fail")


def _setting(line: str, key: str) -> str:
    """Returns the value of `key` in a line of slurm.conf; empty when the line does not set it."""
    at = line.lower().find(key)
    rest = line[at + len(key) :].lstrip() if at >= 0 else ""
    if not rest.startswith("="):
        return ""
    rest = rest[1:].lstrip()
    return rest[1:].partition('"')[0] if rest.startswith('"') else rest.split()[0] if rest else ""


def _lines_with(text: str, words: tuple[str, ...]) -> Iterator[str]:
    """Yields the lines that contain one of the words, without comments and outer blanks. Searches the whole text for
    the words, which is fast for one such line in 5,000."""
    lowered = text.lower()
    if len(lowered) != len(text):
        lowered = text  # lower() changed the length of some letters: find only words in lower case
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
            line = line[:-1]  # a backslash continues the line
        if line.strip():
            yield line.strip()


def _from(text: str, start: int) -> Iterator[str]:
    """Yields the lines of a text, beginning with the line that starts at `start`."""
    while start >= 0:
        end = text.find("\n", start)
        yield text[start : end if end >= 0 else None]
        start = end + 1 or -1


def included_path(name: str, path: str, conf_dir: str, cluster: str = "") -> str:
    """Returns the path of an include in slurm.conf or gres.conf, in which %c is ClusterName in lower case.

    Before Slurm 23.11, names are relative to the file with the include; since then, to slurm.conf's directory. Raises
    NodeError for %c without a ClusterName before it.
    """
    if "%c" in name:
        if not cluster:
            raise NodeError(f"{path} includes {name} with no ClusterName before it: Slurm would not start")
        name = name.replace("%c", cluster.lower())
    if name.startswith("/"):
        return name
    beside_includer = f"{os.path.dirname(path)}/{name}"
    return beside_includer if os.path.exists(beside_includer) else f"{conf_dir}/{name}"


def read_text(path: str) -> str | None:
    """Returns the file's text, with bytes that are not UTF-8 replaced; None when the file does not exist.

    Raises NodeError when it cannot be read, is a directory, pipe or socket, or is longer than MAX_BYTES.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise NodeError(f"{path} cannot be read ({getattr(error, 'strerror', error)})") from error
    try:
        file_type = stat.S_IFMT(os.fstat(fd).st_mode)
        if file_type not in (stat.S_IFREG, stat.S_IFCHR):  # Slurm reads a link to /dev/null as an empty file
            raise NodeError(f"{path} is not a regular file")
        with open(fd, "rb", closefd=False) as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise NodeError(f"{path} cannot be read ({error.strerror})") from error
    finally:
        os.close(fd)
    if len(data) > MAX_BYTES:
        raise NodeError(f"{path} is longer than {MAX_BYTES >> 20} MiB: is it a configuration file of Slurm?")
    return data.decode("utf-8", "replace")


def read_lines(path: str, depth: int = 0) -> Iterator[Line]:
    """Yields the plugins of a plugstack.conf and its includes in Slurm's order. Raises NodeError as read_text does."""
    for number, words in _words_of_lines(path):
        if words[0] == "include":
            check_depth(path, depth)
            for name in _matches(words[1], path):
                yield from read_lines(name, depth + 1)
        elif words[0] in (REQUIRED, "optional"):  # Slurm ignores a line with another word
            yield Line(words[0], words[1], tuple(words[2:]), f"{path}:{number}")


def _words_of_lines(path: str) -> Iterator[tuple[int, list[str]]]:
    """Yields (number, words) of each line of a plugstack.conf that has at least two words."""
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
    """Returns the matches of a pattern with one `*`, without importing glob, which takes half of this check's time."""
    begin, end = name.split("*")
    try:
        names = os.listdir(folder)
    except OSError:
        return []
    return sorted(
        f"{folder}/{file}"
        for file in names
        if file.startswith(begin) and file.endswith(end) and len(file) >= len(name) - 1 and (begin or file[0] != ".")
    )


def our_line(path: str) -> Line | None:
    """Returns the first line of `path` that names hami_hpc's SPANK plugin: Slurm uses only a plugin's first line."""
    for line in read_lines(path):
        if line.plugin.rpartition("/")[2] == SPANK_PLUGIN:
            return line
    return None


def reads(path: str, file: str) -> bool:
    """Returns whether `path`, or a file that it includes, includes `file`, which does not have to exist yet."""
    import fnmatch

    folder, name = os.path.split(file)
    for pattern in _patterns(path, 0):
        pattern_folder, _, pattern_name = pattern.rpartition("/")
        if os.path.realpath(pattern_folder) == os.path.realpath(folder) and fnmatch.fnmatchcase(name, pattern_name):
            return True
    return False


def _patterns(path: str, depth: int) -> Iterator[str]:
    for _number, words in _words_of_lines(path):
        if words[0] == "include":
            check_depth(path, depth)
            yield words[1] if words[1].startswith("/") else f"{os.path.dirname(path)}/{words[1]}"
            for name in _matches(words[1], path):
                yield from _patterns(name, depth + 1)
