# SPDX-License-Identifier: Apache-2.0
"""Checks whether the container runtimes of this node let the limits into containers (docs/containers.md)."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from hami_hpc import places
from hami_hpc.contract import constants as c
from hami_hpc.core.finding import Finding, Level, finding
from hami_hpc.doctor.facts import Facts
from hami_hpc.errors import NodeError

ROOT = Path("/")  # of this node; a test has another
PRELOAD = f"{c.FILE_SELF}/{c.FILE_CONTAINER_PRELOAD}"
HOOK = "50-hami-hpc.sh"
PAGE = "docs/containers.md"


def check_containers(facts: Facts) -> Iterator[Finding]:
    """Yields a finding for each runtime that is installed here; none where preload = "env", which has no containers."""
    if facts.settings.preload != "ldso":
        return
    for name in ("apptainer", "singularity"):
        yield from _apptainer(ROOT / f"etc/{name}/{name}.conf", facts.settings.interposer)
    yield from _enroot(ROOT / "etc/enroot/hooks.d")
    yield from _podman()
    with suppress(NodeError):  # other checks say why Slurm's files are not known
        yield from _slurm(Path(facts.conf_dir) / "oci.conf")


def _text(path: Path) -> str:
    """Returns a file's text; "" where there is none that can be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _apptainer(conf: Path, interposer: str) -> Iterator[Finding]:
    """The binds come by a variable, which `user bind control = no` makes it ignore."""
    text = _text(conf)
    if not text:
        return
    values = re.findall(r"^\s*user bind control\s*=\s*(\w+)", text, re.MULTILINE)
    binds = re.findall(r"^\s*bind path\s*=\s*(\S+)", text, re.MULTILINE)
    wanted = (c.FILE_SELF, f"{PRELOAD}:/etc/ld.so.preload", interposer)
    is_bound = set(wanted) <= set(binds)
    ignores = values[-1:] == ["no"] and not is_bound
    detail = f"{conf}: user bind control = no, so containers of vGPU jobs are not limited"
    advice = f"add to {conf}: {', '.join(f'bind path = {path}' for path in wanted)} ({PAGE})"
    limited = (
        f"containers are limited by {conf}, whatever a job sets" if is_bound else "containers are limited by SPANK"
    )
    yield finding(conf.stem, not ignores, detail if ignores else limited, advice, Level.WARN)


def _enroot(hooks: Path) -> Iterator[Finding]:
    if not hooks.is_dir():
        return
    has_hook = any(os.access(path, os.X_OK) and c.FILE_CONTAINER_MOUNTS in _text(path) for path in hooks.glob("*.sh"))
    detail = f"containers are {'limited by a hook' if has_hook else 'not limited, for want of a hook'} in {hooks}"
    yield finding("enroot", has_hook, detail, f"ln -s {places.HOOKS}/enroot/{HOOK} {hooks}/ ({PAGE})", Level.WARN)


def _slurm(conf: Path) -> Iterator[Finding]:
    text = re.sub(r"^\s*#.*", "", _text(conf), flags=re.MULTILINE)
    if not re.search(r"^\s*RunTime(Run|Create)\s*=", text, re.MULTILINE | re.IGNORECASE):
        return
    is_changed = "oci-mounts" in text
    detail = f"{conf}: steps with --container are {'limited' if is_changed else 'not limited, for want of oci-mounts'}"
    advice = f"let RunTimeRun begin with {places.OCI_MOUNTS} %b && ({PAGE})"
    yield finding("oci.conf", is_changed, detail, advice, Level.WARN)


def _podman() -> Iterator[Finding]:
    if not (ROOT / "usr/bin/podman").exists():
        return
    folder = ROOT / "etc/containers"
    texts = [_text(path) for path in (folder / "containers.conf", *sorted(folder.glob("containers.conf.d/*.conf")))]
    has_hook = any(re.search(r"^\s*hooks_dir\s*=.*hami-hpc", text, re.MULTILINE) for text in texts)
    detail = f"containers are {'limited by a hook' if has_hook else 'not limited, for want of hooks_dir'} in {folder}"
    advice = f'[engine] hooks_dir = ["{places.HOOKS}/podman"] in {folder}/containers.conf ({PAGE})'
    yield finding("podman", has_hook, detail, advice, Level.WARN)


CHECKS = (("containers", check_containers),)
