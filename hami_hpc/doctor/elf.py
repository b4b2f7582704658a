# SPDX-License-Identifier: Apache-2.0
"""Reads a number out of a shared library without loading it, and without binutils, which a node need not have."""

from __future__ import annotations

import struct
from pathlib import Path

from hami_hpc.errors import NodeError

# The formats of elf(5), ELF64, little-endian.
HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
SECTION = struct.Struct("<IIQQQQIIQQ")
SYMBOL = struct.Struct("<IBBHQQ")
MAGIC = b"\x7fELF\x02\x01"  # 64 bits, little-endian
DYNAMIC_SYMBOLS = 11  # SHT_DYNSYM
GLOBAL_OBJECT = 0x11  # STB_GLOBAL, STT_OBJECT


def number_of(path: Path, names: tuple[str, ...]) -> int:
    """Returns the unsigned 32-bit value of the first exported object that has one of the names.

    Raises NodeError when the file cannot be read, is no such library, or has no such object.
    """
    try:
        data = path.read_bytes()
        found = _number_of(data, {name.encode() for name in names})
    except OSError as error:
        raise NodeError(f"{path} cannot be read ({error.strerror})") from error
    except (struct.error, IndexError, OverflowError, ValueError) as error:
        raise NodeError(f"{path} cannot be read as an ELF file: it is damaged, or not whole") from error
    if found is None:
        raise NodeError(f"{path} has no {names[0]}; it is not a Slurm plugin")
    return found


def _number_of(data: bytes, names: set[bytes]) -> int | None:
    header = HEADER.unpack_from(data)
    if not header[0].startswith(MAGIC):
        raise ValueError("not ELF64")
    start, size, count = header[6], header[11], header[12]
    sections = [SECTION.unpack_from(data, start + size * index) for index in range(count)]
    for _, kind, _, _, offset, length, link, *_ in sections:
        if kind != DYNAMIC_SYMBOLS:
            continue
        strings = sections[link][4]
        for place in range(offset, offset + length, SYMBOL.size):
            name, info, _, index, value, bytes_long = SYMBOL.unpack_from(data, place)
            text = data[strings + name : data.index(b"\0", strings + name)]
            if text in names and info == GLOBAL_OBJECT and bytes_long == 4:
                _, _, _, address, begin, *_ = sections[index]
                return int(struct.unpack_from("<I", data, begin + value - address)[0])
    return None
