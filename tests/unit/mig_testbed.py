# SPDX-License-Identifier: Apache-2.0
"""A node whose H200 (simulated) is divided by MIG, with an instance there that is not ours.

What uses NVML runs in a child process, because the simulated library knows one machine for its process's life.
"""

from __future__ import annotations

import ctypes
import os
import pickle
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import pynvml
import pytest
import sim_testbed
from click.testing import CliRunner
from forked import fork, killing
from mig_models import profiles_of
from node_testbed import Node, job_environment
from sim_testbed import SIM, Machine

from hami_hpc.cli import main
from hami_hpc.contract import constants as c
from hami_hpc.core.inventory import make_inventory
from hami_hpc.core.mig_layout import Instance
from hami_hpc.core.mig_text import settings_lines
from hami_hpc.node import mig
from hami_hpc.node import nvml as nvml_door
from hami_hpc.stages import common
from hami_hpc.stages.reconcile import Result, reconcile

T = TypeVar("T")
KILLED = "killed"
SMALL, HALF = 16384, 71424  # MiB of 1g.18gb and 3g.71gb


def mig_environment(job_id: int, mem_mib: int = SMALL, cores: int = 14, **more: str) -> dict[str, str]:
    given = {c.ENV_CORES: str(cores), "SLURM_JOB_CONSTRAINTS": "vgpu_mig"}
    return job_environment(job_id, mem_mib, **given) | more


@dataclass(frozen=True)
class MigNode:
    node: Node
    machine: Machine

    def edit(self, old: str, new: str) -> None:
        """Replaces a text in the settings."""
        text = self.node.config.read_text()
        assert old in text
        self.node.config.write_text(text.replace(old, new))

    @classmethod
    def make(cls, folder: Path, monkeypatch: pytest.MonkeyPatch) -> MigNode:
        machine = sim_testbed.make(folder / "machine")
        (machine.directory / "proc").mkdir()
        (machine.directory / "proc/devices").write_text("Character devices:\n  1 mem\n238 nvidia-caps\n")
        monkeypatch.setattr("hami_hpc.node.drain.find_scontrol", lambda: None)
        node = Node.make(folder / "node", with_gpus=False)
        with node.config.open("a") as config:
            config.write('[vgpu]\nmodes = ["mig", "share"]\nmode_failures = 0\n')
            config.write("\n".join(["[gpu_models.h200.mig_profiles]", *settings_lines(profiles_of("h200")), ""]))
        text = node.config.read_text().replace("[paths]", f'[paths]\ndriver_root = "{machine.directory}"')
        node.config.write_text(text)
        bed = cls(node, machine)
        bed.switch_on()
        bed.enter_gpus()
        return bed

    def run(self, body: Callable[[], T], faults: str = "", at_line: int = 0, traced: Callable[..., bool] = bool) -> T:
        """Returns what `body` returns in a child that uses this machine's NVML, or raises what it raised. With
        `at_line` the child is killed at that line of the traced code; KILLED is returned then."""
        receive, send = os.pipe()
        child = fork()
        if child == 0:
            os.close(receive)
            self._be_the_child(body, faults, at_line, traced, send)
        os.close(send)
        with os.fdopen(receive, "rb") as answer:
            data = answer.read()
        _, status = os.waitpid(child, 0)
        if status == signal.SIGKILL and at_line:
            return KILLED  # type: ignore[return-value]
        assert status == 0, f"the child ended with status {status}"
        value, error = pickle.loads(data)
        if error is not None:
            raise error
        return value  # type: ignore[no-any-return]

    def _be_the_child(self, body: Callable[[], object], faults: str, at_line: int, traced: Any, send: int) -> None:
        status = 1
        try:
            os.environ.update(HAMI_SIM=str(self.machine.directory), HAMI_SIM_FAULTS=faults)
            ctypes.CDLL(str(SIM / "libnvidia-ml.so.1"), mode=ctypes.RTLD_GLOBAL)
            pair: tuple[object, BaseException | None]
            try:
                sys.settrace(killing(at_line, traced) if at_line else None)
                pair = (body(), None)
            except Exception as error:
                error.__cause__ = error.__context__ = None
                pair = (None, error)
            finally:
                sys.settrace(None)
            with os.fdopen(send, "wb") as answer:
                pickle.dump(pair, answer)
            status = 0
        finally:
            os._exit(status)

    def command(self, *words: str, faults: str = "") -> tuple[int, str]:
        """Runs hami-hpc with these words on this node. Returns its exit status and output."""
        environment = {"HAMI_HPC_CONFIG": str(self.node.config), "HAMI_HPC_NODE": "node1"}

        def body() -> tuple[int, str]:
            result = CliRunner().invoke(main, words, env=environment)
            return result.exit_code, result.output

        return self.run(body, faults)

    def switch_on(self, index: int = 0) -> None:
        def body() -> None:
            nvml = nvml_door.open_nvml()
            assert mig.set_mode(nvml, nvml.nvmlDeviceGetHandleByIndex(index), True) == ""

        self.run(body)

    def enter_gpus(self) -> None:
        """Enters the H200 in the ledger, as a prolog does once a boot."""
        settings = self.node.settings
        devices = self.run(nvml_door.read_devices)
        ledger = common.open_ledger(settings)
        ledger.set_inventory(make_inventory(devices, settings.gpu_models))
        ledger.close()

    def make_foreign(self, profile_id: int = 19, start: int = 6) -> Instance:
        """Makes an instance as an administrator does, by hand."""

        def body() -> Instance:
            nvml = nvml_door.open_nvml()
            handle = nvml.nvmlDeviceGetHandleByIndex(0)
            profile = next(one for one in mig.profiles(nvml, handle) if one.profile_id == profile_id)
            return mig.create(nvml, handle, profile, start)

        return self.run(body)

    def instances(self) -> tuple[Instance, ...]:
        def body() -> tuple[Instance, ...]:
            nvml = nvml_door.open_nvml()
            return mig.instances(nvml, nvml.nvmlDeviceGetHandleByIndex(0))

        return self.run(body)

    def devices(self) -> dict[str, tuple[int, int]]:
        """Returns owner and mode of each device of the driver's capabilities."""
        folder = self.machine.directory / "dev/nvidia-caps"
        return {path.name: (path.stat().st_uid, path.stat().st_mode & 0o777) for path in sorted(folder.iterdir())}

    def notes(self) -> list[str]:
        return sorted(str(path.name) for path in (self.node.root / "run/mig").glob("GPU-*/*"))

    def prolog(self, job_id: int, faults: str = "", **request: Any) -> int:
        from hami_hpc.stages.prolog import main

        return self.run(lambda: main(self.node.arguments, mig_environment(job_id, **request)), faults)

    def epilog(self, job_id: int, faults: str = "") -> int:
        from hami_hpc.stages.epilog import main

        return self.run(lambda: main(self.node.arguments, mig_environment(job_id)), faults)

    def reconcile(self, *running: int, faults: str = "", dry_run: bool = False) -> tuple[Result, ...]:
        settings = self.node.settings
        return self.run(lambda: reconcile(settings, lambda: frozenset(running), dry_run=dry_run), faults)

    def restart(self) -> None:
        """As if the node had restarted, with another boot id."""
        self.machine.state("--restart")

    def note_of_job(self, job_id: int) -> str:
        return (self.node.jobs / str(job_id) / c.FILE_MIG).read_text()


def is_of(*functions: str) -> Callable[..., bool]:
    """Returns whether code is of one of these functions of the modules that deal with MIG."""
    modules = (
        "isolation/mig.py",
        "isolation/mig_instances.py",
        "node/mig.py",
        "node/mig_gpu.py",
        "node/mig_notes.py",
        "node/mig_caps.py",
    )
    return lambda code: code.co_name in functions and code.co_filename.endswith(modules)


assert pynvml.NVML_SUCCESS == 0  # imported here, once, and not in each child
