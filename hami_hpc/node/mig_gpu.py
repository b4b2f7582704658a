# SPDX-License-Identifier: Apache-2.0
"""One GPU that is divided by MIG: makes and ends instances of ours, in steps that may stop anywhere.

    note `begun`, instance, its id, devices, note `live`      make
    note `ending`, its devices, instance, note removed        end

Whoever holds the GPU's lock first ends what another process left `begun` or `ending`. The lock is one of the GPU and
not the ledger's: the driver takes its time for an instance, and no other job should wait for that.
"""

from __future__ import annotations

from hami_hpc.core.contexts import contextmanager, suppress
from hami_hpc.core.grant import Grant
from hami_hpc.core.mig_layout import Instance, Profile
from hami_hpc.errors import NodeError
from hami_hpc.node import boot, mig, mig_caps, mig_notes
from hami_hpc.node import nvml as nvml_door
from hami_hpc.node.mig_notes import BEGUN, ENDING, LIVE, Note

TYPE_CHECKING = False  # the prolog imports this, and not typing: docs/adr/021
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import ModuleType

    from hami_hpc.node.config import Settings


class MigGpu:
    """A GPU whose lock this process holds. All functions raise NodeError."""

    def __init__(self, settings: Settings, uuid: str, nvml: ModuleType, handle: object) -> None:
        self.run_dir, self.driver_root = settings.run_dir, settings.driver_root
        self.uuid, self.nvml, self.handle = uuid, nvml, handle

    def notes(self) -> tuple[Note, ...]:
        return mig_notes.read(self.run_dir, self.uuid)

    def instances(self) -> tuple[Instance, ...]:
        """Returns the GPU's instances, whoever made them; none while MIG is off. Raises NodeError also where NVML says
        that the GPU has no MIG: an answer that may be of the moment must not make instances look gone."""
        return mig.instances(self.nvml, self.handle) if self._is_on() else ()

    def _is_on(self) -> bool:
        state = mig.mode(self.nvml, self.handle)
        if state is None:
            raise NodeError(
                f"NVML says that GPU {self.uuid} has no MIG, so its instances cannot be listed: see nvidia-smi and "
                "dmesg (Xid). If the driver was replaced while the node ran, restart the node"
            )
        return state[0]

    def settle(self) -> None:
        """Ends what an interrupted process left half made or half ended. An instance that a process still uses stays,
        with its note: its user can keep such a process, and no other job shall fail by that."""
        mig_notes.sweep(self.run_dir, self.uuid)
        for note in self.notes():
            if note.state != LIVE:
                with suppress(mig.InUseError):
                    self.end(note)

    def find(self, note: Note) -> Instance | None:
        """Returns the instance of a note, None where it is gone. Raises NodeError where NVML leaves that open: its
        note would be removed, and the instance be nobody's."""
        if note.boot_id != boot.boot_id():
            return None
        if not self._is_on():
            return None
        present: tuple[Instance, ...] = ()
        for _look in range(2):  # a profile that NVML left out of its list once
            present = mig.instances(self.nvml, self.handle)
            found = next((one for one in present if note.matches(one)), None)
            if found is not None:
                return found
        noted = note.instance
        has_no_uuid = any(one[:4] == noted[:4] and not one.uuid for one in present)
        if has_no_uuid or all(one.profile_id != noted.profile_id for one in mig.profiles(self.nvml, self.handle)):
            raise NodeError(
                f"NVML does not say whether MIG instance {noted.uuid or f'of profile {noted.profile_id}'} of job "
                f"{note.job_id} is there: compare nvidia-smi mig -lgi with hami-hpc mig list, and see dmesg (Xid)"
            )
        return None

    def make(self, grant: Grant, minor: int, profile: Profile, start: int) -> Note:
        """Makes an instance for a job and gives it to the job's user. Leaves nothing behind when it fails."""
        ids = (grant.job_id, grant.created_unix_ns, grant.uid)
        return self._make(ids, mig_caps.MODE, minor, profile, start)

    def make_static(self, minor: int, profile: Profile, start: int) -> Note:
        """Makes an instance of the site's static layout, noted by its start. Leaves nothing behind when it fails."""
        return self._make((mig_notes.STATIC, start, 0), mig_caps.STATIC_MODE, minor, profile, start)

    def _make(self, ids: tuple[int, int, int], mode: int, minor: int, profile: Profile, start: int) -> Note:
        before = tuple(one.gi_id for one in self.instances())
        place = Instance(-1, profile.profile_id, start, profile.size, "")
        note = Note(BEGUN, *ids, minor, boot.boot_id(), place, before)
        mig_notes.write(self.run_dir, self.uuid, note)
        try:

            def made(gi_id: int, ci_id: int | None) -> None:
                nonlocal note
                if note.instance.gi_id != gi_id:
                    note = note._replace(instance=place._replace(gi_id=gi_id))
                    mig_notes.change(self.run_dir, self.uuid, note)
                mig_caps.give(self.driver_root, minor, gi_id, ci_id, note.uid, mode)

            instance = mig.create(self.nvml, self.handle, profile, start, made)
            live = note._replace(state=LIVE, instance=instance, before=())
            mig_notes.change(self.run_dir, self.uuid, live)
        except Exception as error:
            with suppress(NodeError):  # else the note stays, and whoever has the lock next ends it
                if isinstance(error, mig.NoRoomError) and note.instance.gi_id < 0:  # what is there now is another's
                    mig_notes.remove(self.run_dir, self.uuid, note)
                else:
                    self.end(note)
            raise
        return live

    def end(self, note: Note, wait_s: float | None = None) -> None:
        """Takes an instance of ours from its user and destroys it, then removes its note. Raises InUseError where a
        process uses it for longer than `wait_s` (IN_USE_WAIT_S), at once where an earlier call has waited for it."""
        present = self.find(note)
        if present is not None:
            wait_s = mig.IN_USE_WAIT_S if wait_s is None else wait_s
            wait_s = wait_s if note.state == LIVE else 0.0
            note = note._replace(state=ENDING, instance=present, before=())
            mig_notes.change(self.run_dir, self.uuid, note)
            mode = mig_caps.STATIC_MODE if note.is_static else mig_caps.MODE
            mig_caps.revoke(self.driver_root, note.gpu_minor, present.gi_id, note.uid, mode)
            mig.destroy(self.nvml, self.handle, present, wait_s)
        mig_notes.remove(self.run_dir, self.uuid, note)


@contextmanager
def locked(
    settings: Settings, uuid: str, settle: bool = True, open_nvml: Callable[[], ModuleType] | None = None
) -> Iterator[MigGpu]:
    """Opens NVML and holds the GPU's lock, with nothing half made left unless `settle` is False. Raises NodeError."""
    with mig_notes.locked(settings.run_dir, uuid):
        nvml = (open_nvml or nvml_door.open_nvml)()
        try:
            try:
                handle = nvml.nvmlDeviceGetHandleByUUID(uuid)
            except nvml.NVMLError as error:
                raise NodeError(f"NVML does not show GPU {uuid} ({error}): see nvidia-smi and dmesg (Xid)") from error
            gpu = MigGpu(settings, uuid, nvml, handle)
            if settle:
                gpu.settle()
            yield gpu
        finally:
            with suppress(nvml.NVMLError):
                nvml.nvmlShutdown()
