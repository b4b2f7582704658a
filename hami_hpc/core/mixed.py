# SPDX-License-Identifier: Apache-2.0
"""Nodes whose GPUs are of several models. Slurm cannot be told there which GPU a slice is to come from. Pure.

Slurm sorts the types of a node's Gres= by name and numbers its devices by file name, and shards carry no type: so
gpu:h200:1 may be given an A100, and a slice that was counted for one model may come from another. render and doctor
refuse such a node. Where one is in service all the same, a job that got the wrong GPU is refused, and no node drained.
"""

from __future__ import annotations

from collections.abc import Iterable

from hami_hpc.contract import constants as c
from hami_hpc.core.grant import Grant
from hami_hpc.core.inventory import Gpu
from hami_hpc.errors import JobError

ADVICE = (
    "Slurm cannot be told which model a slice comes from. Give every node GPUs of one model, or keep hami_hpc's lines "
    "off this node (gres.conf, Gres=, Feature=) and offer its GPUs whole"
)


def models_of(gpus: Iterable[Gpu]) -> tuple[str, ...]:
    """The models of a node's GPUs, sorted."""
    return tuple(sorted({gpu.model for gpu in gpus}))


def check_model(grant: Grant, gpus: Iterable[Gpu], constraints: str, memory_scaling: float) -> None:
    """JobError when the grant's GPU is of another model than its job asked for, or too small because models are mixed.

    `constraints` are the job's features as its credential has them: job_submit adds one for each vgpu:MODEL. On a node
    with one model a slice larger than its GPU is a fault of the settings, which is found elsewhere.
    """
    models = models_of(gpus)
    asked = _models_in(constraints)
    if asked and grant.model not in asked:
        raise JobError(
            f"job {grant.job_id} asked for {' or '.join(sorted(asked))} and was given GPU {grant.gpu_minor} "
            f"({grant.model}). {_cause(models)}"
        )
    if len(models) > 1 and grant.mem_mib > int(grant.gpu_total_mib * memory_scaling):
        raise JobError(
            f"job {grant.job_id} has {grant.mem_mib} MiB and was given GPU {grant.gpu_minor} ({grant.model}, "
            f"{grant.gpu_total_mib} MiB). {_cause(models)}"
        )


def _models_in(constraints: str) -> set[str]:
    """The models of `vgpu_share&vgpu_type_h200`."""
    prefix = c.FEATURE_TYPE.format(type="")
    words = "".join(ch if ch.isalnum() or ch in "_-" else " " for ch in constraints).split()
    return {word.removeprefix(prefix) for word in words if word.startswith(prefix)}


def _cause(models: tuple[str, ...]) -> str:
    if len(models) > 1:
        return f"This node has GPUs of {len(models)} models ({', '.join(models)}). {ADVICE}"
    return "The node's Feature= in slurm.conf names a model that it does not have: run hami-hpc render there"
