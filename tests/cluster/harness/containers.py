# SPDX-License-Identifier: Apache-2.0
"""Containers on a private cluster: an image of each user's own, an OCI bundle, and Slurm's oci.conf with runc.

Apptainer and enroot are not in Debian 12. What hami_hpc gives them, a variable and a hook's lines, is carried out here
by mount(8) in a user namespace, as their documentation says; docs/containers.md has what was tried with the real ones.
"""

from __future__ import annotations

import json
import os
import pwd
import shutil
from collections.abc import Mapping
from pathlib import Path

from . import rootfs
from .config import driver_environment, simulated_kernel, write
from .layout import CHECKOUT, Layout

BUNDLE, HOOK, OCI_MOUNTS = "bundle", "50-hami-hpc.sh", "oci-mounts"
IMAGE = f"{BUNDLE}/rootfs"
# What Apptainer makes of its variable, and enroot of a hook's lines: binds, in this order, then the image as root.
_ENTER = """
bind() {
	if [ -d "$1" ]; then mkdir -p "$I$2"; elif [ ! -e "$I$2" ]; then mkdir -p "$I${2%/*}"; : >"$I$2"; fi
	mount --rbind "$1" "$I$2"
}
bind /proc /proc; bind /dev /dev; bind $PUBLIC $PUBLIC
"""
_LEAVE = 'PATH=$PATH:/usr/sbin exec chroot "$I" /bin/sh -c "$1"\n'
SCRIPTS = {
    "in_apptainer": f"""{_ENTER}
old=$IFS; IFS=,; set -f
for spec in $APPTAINER_BIND $APPTAINER_BINDPATH; do
	from=${{spec%%:*}}; to=${{spec#*:}}; to=${{to%%:*}}; bind "$from" "$to"
done
IFS=$old; set +f
{_LEAVE}""",
    "in_enroot": f"""{_ENTER}
export ENROOT_MOUNTS=$HOME/fstab; : >"$ENROOT_MOUNTS"; $BIN/{HOOK}
while read -r from to _; do bind "$from" "$to"; done <"$ENROOT_MOUNTS"
{_LEAVE}""",
}


def install(layout: Layout, *users: str) -> None:
    """Gives each user an image and a bundle in their home, and slurmd an oci.conf with runc."""
    for name, source in ((HOOK, "enroot/50-hami-hpc.sh"), (OCI_MOUNTS, "oci_mounts.py")):
        write(layout.bin / name, (CHECKOUT / "containers" / source).read_bytes(), 0o755)
    for name, text in SCRIPTS.items():
        inner = f"#!/bin/sh\nset -e\nPUBLIC={layout.public} BIN={layout.bin} I=$HOME/{IMAGE}\n{text}"
        write(layout.bin / f"{name}.inner", inner, 0o755)
        outer = f'#!/bin/sh\nexec unshare --user --map-root-user --mount {layout.bin}/{name}.inner "$1"\n'
        write(layout.bin / name, outer, 0o755)
    for user in users:
        _make_bundle(layout, user)
    runc = f"runc --rootless=true --root={layout.home}/%u/runc"
    name = "%n.%u.%j.%s.%t"
    write(
        layout.etc / "oci.conf",
        f'RunTimeQuery="{runc} state {name}"\nRunTimeKill="{runc} kill -a {name}"\n'
        f'RunTimeDelete="{runc} delete --force {name}"\n'
        f'RunTimeRun="{layout.bin}/{OCI_MOUNTS} %b && exec {runc} run --bundle %b {name}"\n',
    )


def remove(layout: Layout) -> None:
    for path in (*layout.home.glob(f"*/{BUNDLE}"), *layout.home.glob("*/runc")):
        shutil.rmtree(path)
    for name in (HOOK, OCI_MOUNTS, *SCRIPTS, *(f"{name}.inner" for name in SCRIPTS)):
        (layout.bin / name).unlink()
    (layout.etc / "oci.conf").unlink()


def _make_bundle(layout: Layout, user: str) -> None:
    entry = pwd.getpwnam(user)
    bundle = layout.home / user / BUNDLE
    rootfs.make(bundle / "rootfs")
    (bundle / "config.json").write_text(json.dumps(config_of(layout, entry.pw_uid, entry.pw_gid)))
    for path in (bundle, *bundle.rglob("*")):
        os.chown(path, entry.pw_uid, entry.pw_gid, follow_symlinks=False)


def environment(layout: Layout) -> dict[str, str]:
    """Returns what programs in a container need for the simulated driver: a real one is bound by the runtime."""
    return {"PATH": f"{layout.bin}:/usr/bin:/bin", **driver_environment(layout)}


def config_of(layout: Layout, uid: int, gid: int) -> Mapping[str, object]:
    """Returns an OCI config.json: a user namespace in which the user is root, and the cluster's public directory."""
    shown = {path: Path(path) for path in ("/proc", "/dev", str(layout.public))}
    ids = ((uid, "uidMappings"), (gid, "gidMappings"))
    return {
        "ociVersion": "1.0.0",
        "process": {
            "user": {"uid": 0, "gid": 0},
            "args": ["/bin/sh"],
            "env": [f"{name}={value}" for name, value in environment(layout).items()],
            "cwd": "/",
        },
        "root": {"path": "rootfs"},
        "mounts": [
            {"destination": name, "type": "none", "source": str(path), "options": ["rbind"]}
            for name, path in shown.items()
        ],
        "linux": {
            "namespaces": [{"type": "user"}, {"type": "mount"}],
            **{name: [{"containerID": 0, "hostID": number, "size": 1}] for number, name in ids},
        },
    }


def with_kernel(layout: Layout, command: str) -> str:
    """Returns a command that runs with the simulated kernel, which a real node preloads nowhere."""
    return f"LD_PRELOAD={layout.interposer}:{simulated_kernel(layout)} {command}"
