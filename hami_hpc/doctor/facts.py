# SPDX-License-Identifier: Apache-2.0
"""The data that all checks read: the settings, Slurm's configuration, and the files beside slurm.conf."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from hami_hpc.core.finding import Finding
from hami_hpc.errors import NodeError
from hami_hpc.node.config import Settings
from hami_hpc.slurm import commands
from hami_hpc.slurm.files import find_slurm_conf

SLURMDBD = "accounting_storage/slurmdbd"


@dataclass
class Facts:
    """The data that checks read. Slurm is asked once; properties raise NodeError when it does not answer."""

    settings: Settings
    node_given: str | None = None
    environment: Mapping[str, str] = field(default_factory=lambda: os.environ)

    @cached_property
    def _slurm_answer(self) -> dict[str, str] | NodeError:
        slurm_conf = self.environment.get("SLURM_CONF")
        if slurm_conf and not Path(slurm_conf).is_file():
            return NodeError(f"$SLURM_CONF names {slurm_conf}, which does not exist; set it to slurm.conf, or unset it")
        try:
            return commands.configuration()
        except NodeError as error:
            return error

    @property
    def slurm(self) -> dict[str, str]:
        """Returns the keys and values of `scontrol show config`."""
        if isinstance(self._slurm_answer, NodeError):
            raise self._slurm_answer
        return self._slurm_answer

    @property
    def has_slurmdbd(self) -> bool:
        """Returns whether Slurm stores what jobs used; only then it has QoS, and TRES for gres."""
        return self.slurm.get("AccountingStorageType", SLURMDBD).lower() == SLURMDBD

    @cached_property
    def node(self) -> str:
        """Returns this node's name in Slurm."""
        return self.node_given or commands.node_name()

    @cached_property
    def slurm_conf(self) -> str:
        """Returns the path of slurm.conf on this machine."""
        try:
            return find_slurm_conf(self.environment)
        except NodeError:
            path = self.slurm.get("SLURM_CONF", "")
            if not Path(path).exists():
                raise
            return path

    @property
    def conf_dir(self) -> str:
        return str(Path(self.slurm_conf).parent)

    def slurm_values(self, key: str) -> list[str]:
        """Returns the values of a key that can occur several times: from Slurm 24.05 on as Prolog[0], Prolog[1]."""
        values = [value for name, value in self.slurm.items() if name == key or name.startswith(f"{key}[")]
        return [value for value in values if value not in ("", "(null)")]


Check = Callable[[Facts], Iterator[Finding]]
