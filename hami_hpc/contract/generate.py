# SPDX-License-Identifier: Apache-2.0
"""Writes the contract's C header, Lua table, Python constants and reference page from contract.toml.

usage: python -m hami_hpc.contract.generate [--check]   (--check writes nothing and exits 1 on a difference)
"""

from __future__ import annotations

import re
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
SOURCE = Path(__file__).with_name("contract.toml")
NOTE = "Generated from hami_hpc/contract/contract.toml by `make generate`. Do not edit."
LAYOUTS = ("limits", "usage", "usage_step", "usage_slot", "history", "history_minute")


TYPE = re.compile(r"(u32|u64|char)(?:\[(\d+)\])?")
BYTES = {"u32": 4, "u64": 8, "char": 1}


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a record; `offset` and `size` (of all its elements) in bytes."""

    name: str
    ctype: str
    size: int
    offset: int
    doc: str


def fields_of(layout: dict[str, Any]) -> list[Field]:
    """Lays out `layout["fields"]` with natural alignment. Raises ValueError if they exceed `layout["size"]`."""
    fields: list[Field] = []
    offset = 0
    for name, ctype, doc in layout["fields"]:
        match = TYPE.fullmatch(ctype)
        if not match:
            raise ValueError(f"{name}: type {ctype} is not known")
        align = BYTES[match[1]]
        size = align * int(match[2] or 1)
        offset = (offset + align - 1) // align * align
        fields.append(Field(name, ctype, size, offset, doc))
        offset += size
    if offset > layout["size"]:
        raise ValueError(f"fields take {offset} bytes, the record has {layout['size']}")
    return fields


def c_string(text: str) -> str:
    """Returns a text as C string literal."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def magic_value(text: str) -> int:
    """Returns eight ASCII characters as little-endian number."""
    return int.from_bytes(text.encode("ascii"), "little")


def c_struct(name: str, layout: dict[str, Any]) -> list[str]:
    """Returns the C struct of a layout, with assertions of its offsets and size."""
    lines = [f"/* {layout['doc']} */", f"struct hami_{name} {{"]
    offset = 0
    pads = 0
    for f in fields_of(layout):
        if f.offset > offset:
            lines.append(f"\tuint8_t pad{pads}[{f.offset - offset}];")
            pads += 1
        if f.ctype.startswith("char["):
            lines.append(f"\tchar {f.name}[{f.size}]; /* {f.doc} */")
        else:
            base, _, count = f.ctype.partition("[")
            lines.append(f"\tuint{base[1:]}_t {f.name}{'[' + count if count else ''}; /* {f.doc} */")
        offset = f.offset + f.size
    if offset < layout["size"]:
        lines.append(f"\tuint8_t pad{pads}[{layout['size'] - offset}];")
    lines.append("};")
    lines += [
        f'_Static_assert(offsetof(struct hami_{name}, {f.name}) == {f.offset}, "{f.name}");' for f in fields_of(layout)
    ]
    lines.append(f'_Static_assert(sizeof(struct hami_{name}) == {layout["size"]}, "size");')
    return [*lines, ""]


C_FILES = (  # those that C reads or writes
    "job_limits",
    "usage",
    "refused",
    "whole",
    "run_dir",
    "self",
    "self_limits",
    "container_preload",
    "container_mounts",
    "mps",
    "mps_clients",
    "mig",
    "first_step",
    "sluid",
    "mig_static",
)


def make_c(c: dict[str, Any]) -> str:
    """Returns the C header."""
    lines = [
        "/* SPDX-License-Identifier: Apache-2.0 */",
        f"/* {NOTE} */",
        "#ifndef HAMI_CONTRACT_H",
        "#define HAMI_CONTRACT_H",
        "#include <stddef.h>",
        "#include <stdint.h>",
        "",
        f"#define HAMI_ABI_VERSION {c['abi']['version']}u",
    ]
    lines += [f"#define HAMI_ENV_{k.removeprefix('HAMI_HPC_')} {c_string(k)}" for k in c["env"]]
    lines += [f"#define HAMI_GRES_{k.upper()} {c_string(v)}" for k, v in c["gres"].items()]
    tables = {
        "POLICY": c["policies"],
        "MECHANISM": c["mechanisms"],
        "SWAPPED": c["swap_states"],
        "MODE": c["request"]["modes"],
    }
    for prefix, table in tables.items():
        lines.append(f"enum {{ {', '.join(f'HAMI_{prefix}_{k.upper()} = {v}' for k, v in table.items())} }};")
        lines.append(
            f"#define HAMI_{prefix}_NAMES {{{', '.join(c_string(k) for k in table)}}} /* indexed by the enum above */"
        )
    lines += [
        f"#define HAMI_CLASS_{k.upper()} {c['classes'][k]}u"
        for k in ("name_max", "priority_max", "slice_us_min", "slice_us_max")
    ]
    for key in C_FILES:
        lines.append(f"#define HAMI_FILE_{key.upper()} {c_string(c['files'][key])}")
    for key, name in c["files"].items():
        if "{" in name:
            pattern = c_string(name.replace("{step_id}", "%u").replace("{slice}", "%u"))
            lines.append(f"#define HAMI_FILE_{key.upper()}_FORMAT {pattern}")
    for name in LAYOUTS:
        layout = c["layout"][name]
        if "magic" in layout:
            lines.append(f"#define HAMI_{name.upper()}_MAGIC 0x{magic_value(layout['magic']):016x}ull")
        if "count" in layout:
            lines.append(f"#define HAMI_{name.upper()}_COUNT {layout['count']}u")
    lines += [f"#define HAMI_{k.upper()} {v}ull" for k, v in c["layout"]["constants"].items()]
    lines += ["", *[line for name in LAYOUTS for line in c_struct(name, c["layout"][name])]]
    lines += [
        "/* The usage file as a whole. */",
        "struct hami_usage_file {",
        "\tstruct hami_usage head;",
        "\tstruct hami_usage_step steps[HAMI_USAGE_STEP_COUNT];",
        "\tstruct hami_usage_slot slots[HAMI_USAGE_SLOT_COUNT];",
        "};",
        "",
        "#endif",
        "",
    ]
    return "\n".join(lines)


def lua_value(value: Any, indent: int = 0) -> str:
    """Returns plain data as Lua expression."""
    pad = "  " * (indent + 1)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, str):
        return c_string(value)
    if isinstance(value, list):
        return "{ " + ", ".join(lua_value(v, indent + 1) for v in value) + " }"
    rows = [f'{pad}["{k}"] = {lua_value(v, indent + 1)},' for k, v in value.items()]
    return "{\n" + "\n".join(rows) + "\n" + "  " * indent + "}"


def make_lua(c: dict[str, Any]) -> str:
    """Returns the Lua table."""
    wanted = {
        k: c[k] for k in ("abi", "request", "site", "gres", "classes", "policies", "places", "features", "errors")
    }
    wanted["key_order"] = list(c["request"]["keys"])
    wanted["env"] = {k: v["doc"] for k, v in c["env"].items()}
    return f"-- SPDX-License-Identifier: Apache-2.0\n-- {NOTE}\nreturn {lua_value(wanted)}\n"


def make_python(c: dict[str, Any]) -> str:
    """Returns the module of Python constants."""
    lines = ["# SPDX-License-Identifier: Apache-2.0", f"# {NOTE}", '"""The contract\'s constants."""', ""]
    lines += ["from __future__ import annotations", ""]
    lines += ["TYPE_CHECKING = False  # prolog and epilog import this: docs/adr/021", "if TYPE_CHECKING:"]
    lines += ["    from typing import Final", "", f"ABI_VERSION: Final = {c['abi']['version']}"]
    r = c["request"]
    lines += [f"REQUEST_NAME: Final = {r['name']!r}", f"REQUEST_EXAMPLE: Final = {r['example']!r}"]
    lines += [f"REQUEST_MAX_LENGTH: Final = {r['max_length']}"]
    lines += [f"{k.upper()}: Final = {r[k]!r}" for k in ("mode_auto", "cores_proportional", "isolation_hard")]
    lines += [f"{k.upper()}: Final = {v}" for k, v in r["limits"].items()]
    for name, sub in (("KEY_FORM", "form"), ("KEY_EXAMPLE", "example")):
        lines.append(f"{name}: Final[dict[str, str]] = {{")
        lines += [f"    {k!r}: {v[sub]!r}," for k, v in r["keys"].items()]
        lines.append("}")
    tables = {
        "MODES": r["modes"],
        "POLICIES": c["policies"],
        "MECHANISMS": c["mechanisms"],
        "SWAP_STATES": c["swap_states"],
    }
    for name, table in tables.items():
        lines.append(f"{name}: Final[dict[str, int]] = {table!r}")
    values = {k: tuple(v) if isinstance(v, list) else v for k, v in c["classes"].items()}
    lines += [f"CLASS_{k.upper()}: Final = {v!r}" for k, v in values.items()]
    lines += [f"DEFAULT_{k.removeprefix('default_').upper()}: Final = {v!r}" for k, v in c["site"]["defaults"].items()]
    lines += [f"{k.upper()}: Final = {v!r}" for k, v in c["site"]["oversold"].items()]
    lines += [f"GRES_{k.upper()}: Final = {v!r}" for k, v in c["gres"].items()]
    lines.append(f"PLACES: Final = {c['places']['names']!r}")
    lines += [f"FEATURE_{k.upper()}: Final = {v!r}" for k, v in c["features"].items()]
    lines += [f"ENV_{k.removeprefix('HAMI_HPC_')}: Final = {k!r}" for k in c["env"]]
    lines += [f"FILE_{k.upper()}: Final = {v!r}" for k, v in c["files"].items()]
    lines += [f"{k.upper()}: Final = {v}" for k, v in c["layout"]["constants"].items()]
    for name in LAYOUTS:
        layout = c["layout"][name]
        up = name.upper()
        lines += ["", f"# {layout['doc']}", f"{up}_SIZE: Final = {layout['size']}"]
        if "magic" in layout:
            lines.append(f"{up}_MAGIC: Final = 0x{magic_value(layout['magic']):016X}")
        if "count" in layout:
            lines.append(f"{up}_COUNT: Final = {layout['count']}")
        lines.append(
            "# field: (offset, bytes, kind): 'u' unsigned, little-endian; 'a' several u64; 's' text, NUL-padded"
        )
        lines.append(f"{up}_FIELDS: Final[dict[str, tuple[int, int, str]]] = {{")
        for f in fields_of(layout):
            kind = "s" if f.ctype.startswith("char[") else "a" if "[" in f.ctype else "u"
            lines.append(f"    {f.name!r}: ({f.offset}, {f.size}, {kind!r}),")
        lines.append("}")
    spool = c["spool"]
    lines += ["", f"# {spool['doc']}", f"SPOOL_VERSION: Final = {spool['version']}"]
    lines += ["# field: its type, int or text", "SPOOL_FIELDS: Final[dict[str, str]] = {"]
    lines += [f"    {name!r}: {field['type']!r}," for name, field in spool["fields"].items()]
    defaults = {name: field["default"] for name, field in spool["fields"].items() if "default" in field}
    lines += ["}", f"SPOOL_DEFAULTS: Final[dict[str, int | str]] = {defaults!r}"]
    lines += ["", f"ERROR_PREFIX: Final = {c['errors']['prefix']!r}", f"GIVEN_MAX: Final = {c['errors']['given_max']}"]
    lines.append("ERRORS: Final[dict[str, str]] = {")
    lines += [f"    {k!r}: {v!r}," for k, v in c["errors"]["codes"].items()]
    return "\n".join([*lines, "}", ""])


def make_reference(c: dict[str, Any]) -> str:
    """Returns the reference page."""
    r = c["request"]
    lines = [f"<!-- {NOTE} -->", "# Reference", "", "## The request", "", f"`{r['example']}`", ""]
    lines += ["| key | value | example | meaning |", "|---|---|---|---|"]
    for key, entry in r["keys"].items():
        texts = (entry["form"], f"`{entry['example']}`", entry["doc"])
        lines.append("| ".join([f"| `{key}` ", *(text.replace("|", "\\|") + " " for text in texts)]) + "|")
    classes = c["classes"]
    lines += ["", "## Classes of service", ""]
    lines += [
        f"The site's `[classes.NAME]` ([qos.md](qos.md)); {', '.join(f'`{name}`' for name in classes['names'])} exist "
        f"without being written. A name has lower-case letters, digits and `_`, begins with a letter, is at most "
        f"{classes['name_max']} bytes long, and is none of {', '.join(f'`{word}`' for word in classes['reserved'])}, "
        "of the keys of a request and of the site's GPU models."
    ]
    lines += ["", "## Environment", "", "| variable | meaning |", "|---|---|"]
    lines += [f"| `{k}` | {v['doc']} |" for k, v in c["env"].items()]
    lines += ["", "## What Slurm schedules", "", "| part | gres |", "|---|---|"]
    lines += [f"| {k} | `gres/{v}` |" for k, v in c["gres"].items()]
    lines += ["", "## Error messages", "", "| code | text |", "|---|---|"]
    lines += [f"| `{k}` | {v} |" for k, v in c["errors"]["codes"].items()]
    lines += ["", "## Usage records", "", "`<state_dir>/usage/JOB.json`: one JSON object. " + c["spool"]["doc"], ""]
    lines += ["| field | type | meaning |", "|---|---|---|"]
    lines += [f"| `{name}` | {field['type']} | {field['doc']} |" for name, field in c["spool"]["fields"].items()]
    lines += ["", "## Records shared with the job's processes", ""]
    for name in LAYOUTS:
        layout = c["layout"][name]
        lines += [f"### {name} ({layout['size']} bytes)", "", layout["doc"], "", "| offset | field | type | meaning |"]
        lines.append("|---|---|---|---|")
        lines += [f"| {f.offset} | `{f.name}` | {f.ctype} | {f.doc} |" for f in fields_of(layout)]
        lines.append("")
    return "\n".join(lines).rstrip() + "\n"


def outputs() -> dict[Path, str]:
    """Returns the text of each generated file."""
    contract = tomllib.loads(SOURCE.read_text(encoding="utf-8"))
    return {
        ROOT / "native/include/hami_contract.h": make_c(contract),
        ROOT / "slurm-plugins/lua/hami_hpc_contract.lua": make_lua(contract),
        ROOT / "hami_hpc/contract/constants.py": make_python(contract),
        ROOT / "docs/reference.md": make_reference(contract),
    }


def main(argv: list[str]) -> int:
    """Writes or checks the generated files. Returns the exit status."""
    check = "--check" in argv
    stale = []
    for path, text in outputs().items():
        if path.exists() and path.read_text(encoding="utf-8") == text:
            continue
        stale.append(path)
        if not check:
            path.write_text(text, encoding="utf-8")
    for path in stale:
        print(f"{'stale' if check else 'wrote'} {path.relative_to(ROOT)}")
    if check and stale:
        print("run `make generate` and commit the result")
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
