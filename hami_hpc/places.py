# SPDX-License-Identifier: Apache-2.0
"""Paths of hami_hpc's own files that commands use: in the installation, else in the checkout that they run from."""

from __future__ import annotations

from pathlib import Path

from hami_hpc import installed

ROOT = Path(__file__).resolve().parents[1]


def _place(installed_at: str, in_checkout: str) -> Path:
    return Path(installed_at) if installed_at else ROOT / in_checkout


TEMPLATES = _place(installed.TEMPLATE_DIR, "gres-conf")
STAGES = _place(installed.STAGE_DIR, "prolog")
MEASURE = _place(
    f"{installed.LIB_DIR}/hami-hpc-measure" if installed.STAGE_DIR else "", "build/native/hami-hpc-measure"
)
LUA = _place(installed.LUA_DIR, "slurm-plugins/lua")
# The hooks of container runtimes, each in a folder of its runtime's name, and the program that those of OCI call.
HOOKS = Path(installed.TEMPLATE_DIR).parent if installed.TEMPLATE_DIR else ROOT / "containers"
OCI_MOUNTS = _place(f"{installed.STAGE_DIR}/oci-mounts" if installed.STAGE_DIR else "", "containers/oci_mounts.py")
