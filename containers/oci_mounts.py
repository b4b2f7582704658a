#!/usr/bin/python3 -I
# SPDX-License-Identifier: Apache-2.0
"""Makes an OCI container show what limits its vGPU job (docs/containers.md).

    oci-mounts BUNDLE    changes BUNDLE/config.json, before crun or runc starts it: in RunTimeRun of Slurm's oci.conf
    oci-mounts           reads config.json and writes the changed one: a precreate hook of Podman

Runs in the task, as the user. SPANK writes the binds to container.mounts in the job's directory, as lines of fstab(5)
(slurm-plugins/spank/container.h). Without that file the task is not limited, and nothing is changed. Exits
with 1 where the container would not be limited; the caller must not start it then.
"""

from __future__ import annotations

import json
import os
import sys
from contextlib import suppress
from pathlib import Path

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

LIST = Path("/run/hami-hpc/self/container.mounts")
MAKES = "x-create="  # enroot's: OCI runtimes make mount points without being told


class Refused(Exception):  # noqa: N818  an answer, not a fault
    """Why the container cannot be limited, and what to do: one line."""


def read_list(path: Path) -> list[dict[str, Any]]:
    """Returns the binds as OCI mounts; none where the task is not limited. Raises Refused for a line that is none."""
    mounts = []
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return []
    for line in lines:
        words = line.split()
        if len(words) != 6 or not words[0].startswith("/") or not words[1].startswith("/"):
            raise Refused(f"{path} has the line {line!r}, which is no bind. Submit the job again")
        options = [word for word in words[3].split(",") if not word.startswith(MAKES)]
        mounts.append({"destination": words[1], "type": "none", "source": words[0], "options": options})
    return mounts


def add(text: str, where: str, mounts: list[dict[str, Any]]) -> str:
    """Returns a config.json with these mounts after all others, so that they cover what others put there."""
    try:
        config = json.loads(text)
    except ValueError as error:
        raise Refused(f"{where} is not JSON: {error}") from error
    old = config.get("mounts") if isinstance(config, dict) else ""
    old = [] if old is None else old
    if not isinstance(old, list):
        raise Refused(f"{where} is not that of an OCI bundle: it must be an object, and its mounts a list")
    config["mounts"] = [mount for mount in old if mount not in mounts] + mounts
    return json.dumps(config, indent=1)


def change_bundle(bundle: Path, mounts: list[dict[str, Any]]) -> None:
    """Replaces the bundle's config.json by a rename."""
    path = bundle / "config.json"
    temporary = bundle / f"config.json.{os.getpid()}"
    try:
        text = add(path.read_text(encoding="utf-8"), str(path), mounts)
        with suppress(FileNotFoundError):
            temporary.unlink()  # of a killed one with this pid
        with temporary.open("x", encoding="utf-8") as file:
            file.write(text)
        temporary.chmod(path.stat().st_mode & 0o777)
        temporary.replace(path)
    except OSError as error:
        with suppress(OSError):
            temporary.unlink()
        raise Refused(
            f"{path} cannot be read and replaced ({error.strerror}), so the container would not be limited. Give the "
            "directory of an OCI bundle that you can write"
        ) from error


def main(arguments: list[str]) -> int:
    if len(arguments) > 1 or (arguments and arguments[0].startswith("-")):
        print("usage: oci-mounts [BUNDLE]", file=sys.stderr)
        return 2
    try:
        mounts = read_list(LIST)
        if not arguments:
            text = sys.stdin.read()
            sys.stdout.write(add(text, "standard input", mounts) if mounts else text)
        elif mounts:
            change_bundle(Path(arguments[0]), mounts)
    except Refused as refused:
        print(f"hami_hpc: {refused}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
