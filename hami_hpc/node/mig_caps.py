# SPDX-License-Identifier: Apache-2.0
"""The devices that give access to a MIG instance: /dev/nvidia-caps/nvidia-capN of its GPU instance and of its compute
instance. Whoever may open both may use the instance, so they belong to the job's user, and nobody else can read them.

The driver has a file `access` for each, which says its minor number and whether nvidia-modprobe, a setuid program,
makes the device for anybody who asks, readable by all (DeviceFileModify, by default yes). `give` turns that off for the
instance at once; only with NVreg_ModifyDeviceFiles=0 is there no moment before (docs/security.md). The minor numbers
come back with the next instance of the same id, so `revoke` removes the devices.
"""

from __future__ import annotations

import os
import stat

from hami_hpc.core.contexts import suppress
from hami_hpc.errors import NodeError

# Below `root`, which is driver_root of the settings.
CAPABILITIES = "/proc/driver/nvidia/capabilities"
DEVICES = "/dev/nvidia-caps"
MAJORS = "/proc/devices"
PARAMETERS = "/proc/driver/nvidia/params"
MODE = 0o400
STATIC_MODE = 0o444  # of an instance of a static layout: Slurm's device cgroups decide who opens it
COMPUTE_IDS = 8  # ids of compute instances in a GPU instance
READ_MAX = 1 << 16


def give(root: str, gpu_minor: int, gi_id: int, ci_id: int | None, uid: int, mode: int = MODE) -> None:
    """Makes the device of a GPU instance, or with `ci_id` of a compute instance of it, readable by `uid` alone, or by
    all with STATIC_MODE. Raises NodeError.
    """
    access = _access(root, gpu_minor, gi_id, ci_id)
    try:
        _stop_modprobe(access)
        name = f"nvidia-cap{_field(access, 'DeviceFileMinor')}"
        folder = _below(root, DEVICES)
        os.makedirs(folder, 0o755, exist_ok=True)
        path, temporary = f"{folder}/{name}", f"{folder}/.{name}"  # of one GPU, whose lock the caller holds
        with suppress(FileNotFoundError):
            os.unlink(temporary)
        _make_device(root, temporary, int(name.removeprefix("nvidia-cap")))
        try:
            if mode != MODE:
                os.chmod(temporary, mode)
            os.chown(temporary, uid, 0, follow_symlinks=False)
            os.rename(temporary, path)
        except OSError:
            os.unlink(temporary)
            raise
    except OSError as error:
        raise NodeError(
            f"the device of MIG instance {gi_id} of GPU {gpu_minor} cannot be given to uid {uid} ({error}): see "
            f"ls -l {_below(root, DEVICES)} and {access}"
        ) from error


def place_alias(root: str, path: str, gpu_minor: int, gi_id: int) -> None:
    """Makes at `path` a second device with the numbers of the one of a GPU instance's first compute instance. Nobody
    may open it: Slurm reads the numbers. Replaces what is there. Raises NodeError."""
    access = _first_compute(root, gpu_minor, gi_id)
    temporary = f"{os.path.dirname(path)}/.{os.path.basename(path)}"
    try:
        os.makedirs(os.path.dirname(path), 0o755, exist_ok=True)
        with suppress(FileNotFoundError):
            os.unlink(temporary)
        _make_device(root, temporary, _field(access, "DeviceFileMinor"))
        os.chmod(temporary, 0)
        os.rename(temporary, path)
    except OSError as error:
        raise NodeError(f"{path} cannot be made ({error}): see ls -l there and {access}") from error


def _first_compute(root: str, gpu_minor: int, gi_id: int) -> str:
    """Returns the driver's file of a GPU instance's first compute instance. Raises NodeError."""
    for ci_id in range(COMPUTE_IDS):
        access = _access(root, gpu_minor, gi_id, ci_id)
        if os.path.exists(access):
            return access
    raise NodeError(f"{_access(root, gpu_minor, gi_id, 0)} is not there: see nvidia-smi mig -lci")


def is_alias(root: str, path: str, gpu_minor: int, gi_id: int) -> bool:
    """Returns whether `path` is such a device of this GPU instance. Raises NodeError."""
    try:
        status = os.lstat(path)
    except OSError:
        return False
    minor = _field(_first_compute(root, gpu_minor, gi_id), "DeviceFileMinor")
    return stat.S_ISCHR(status.st_mode) and status.st_rdev == os.makedev(_major(root), minor)


def _make_device(root: str, path: str, minor: int) -> None:
    """Makes a device of the driver's capabilities that only its owner, root, can read. Raises OSError, NodeError."""
    old = os.umask(0o077)
    try:
        os.mknod(path, stat.S_IFCHR | MODE, os.makedev(_major(root), minor))
    finally:
        os.umask(old)


def _major(root: str) -> int:
    for line in _read(_below(root, MAJORS)).splitlines():
        words = line.split()
        if len(words) == 2 and words[1] == "nvidia-caps":
            return int(words[0])
    raise NodeError(
        f"{_below(root, MAJORS)} has no nvidia-caps: the driver's module was loaded with nv_cap_enable_devfs=0"
    )


def revoke(root: str, gpu_minor: int, gi_id: int, uid: int, mode: int = MODE) -> None:
    """Removes the devices of a GPU instance and its compute instances that `give` made for `uid`. The instance must
    still be there. Raises NodeError."""
    folder = _below(root, DEVICES)
    for ci_id in (None, *range(COMPUTE_IDS)):
        access = _access(root, gpu_minor, gi_id, ci_id)
        if not os.path.exists(access):
            continue
        try:
            name = f"nvidia-cap{_field(access, 'DeviceFileMinor')}"
            path = f"{folder}/{name}"
            with suppress(FileNotFoundError):
                os.unlink(f"{folder}/.{name}")
            with suppress(FileNotFoundError):
                status = os.lstat(path)
                # A user may have changed the mode. Root's with another mode are the driver's own.
                if status.st_uid == uid and (uid != 0 or stat.S_IMODE(status.st_mode) == mode):
                    os.unlink(path)
        except OSError as error:
            raise NodeError(f"the device of {access} cannot be removed ({error}): see ls -l {folder}") from error


def modprobe_may_open(root: str) -> bool:
    """Returns whether nvidia-modprobe makes devices of new instances readable by all before `give` can stop it."""
    for line in _read(_below(root, PARAMETERS)).splitlines():
        if line.split(":")[0] == "ModifyDeviceFiles":
            return line.split(":")[1].strip() != "0"
    return True


def _below(root: str, path: str) -> str:
    return root.rstrip("/") + path


def _access(root: str, gpu_minor: int, gi_id: int, ci_id: int | None) -> str:
    inner = "" if ci_id is None else f"/ci{ci_id}"
    return f"{_below(root, CAPABILITIES)}/gpu{gpu_minor}/mig/gi{gi_id}{inner}/access"


def _stop_modprobe(access: str) -> None:
    # Without O_TRUNC and at the end: a file of the simulation keeps its other lines. The driver looks at the text only.
    fd = os.open(access, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
    try:
        os.write(fd, b"DeviceFileModify: 0\n")
    finally:
        os.close(fd)


def _field(access: str, name: str) -> int:
    values = [line.partition(":")[2] for line in _read(access).splitlines() if line.startswith(f"{name}:")]
    if not values or not values[-1].strip().isdigit():
        raise NodeError(f"{access} has no {name}: the driver is of another kind than hami_hpc knows")
    return int(values[-1])


def _read(path: str) -> str:
    """Returns the text of a file of the driver's; "" when there is none."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return ""
    try:
        return os.read(fd, READ_MAX).decode("ascii", "replace")
    finally:
        os.close(fd)
