# SPDX-License-Identifier: Apache-2.0
"""Nodes with GPUs of several models, on which Slurm cannot choose the model that a slice comes from. Pure.

Slurm sorts the types of a node's Gres= by name, numbers its devices by file name, and gives shards no type. So a job
with gpu:h200:1 may get an A100, and a slice counted for one model may come from another. render and doctor refuse such
a node. If one is in service anyway, a job that got the wrong GPU is refused and the node is not drained.
"""

from __future__ import annotations

from hami_hpc.contract import constants as c
from hami_hpc.core.grant import Grant
from hami_hpc.core.inventory import Gpu
from hami_hpc.core.sizes import largest_mib
from hami_hpc.errors import JobError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

ADVICE = (
    "Slurm cannot be told which model a slice comes from. Give every node GPUs of one model, or keep hami_hpc's lines "
    "off this node (gres.conf, Gres=, Feature=) and offer its GPUs whole"
)


def models_of(gpus: Iterable[Gpu]) -> tuple[str, ...]:
    """Returns the models of a node's GPUs, sorted."""
    return tuple(sorted({gpu.model for gpu in gpus}))


def check_model(grant: Grant, gpus: Iterable[Gpu], constraints: str, memory_scaling: float) -> None:
    """Raises JobError when the grant's GPU is of a model that its job did not ask for, or too small on a mixed node.

    `constraints` are the job's features as in its credential: job_submit adds one for vgpu:MODEL, and a choice of them
    for type=. On a node with
    one model, a slice larger than its GPU is an error in the settings; grant.check_fits reports that.
    """
    models = models_of(gpus)
    requested = next((models for models in _required(constraints) if grant.model not in models), None)
    if requested:
        raise JobError(
            f"job {grant.job_id} asked for {' or '.join(sorted(requested))} and was given GPU {grant.gpu_minor} "
            f"({grant.model}). {_cause(models)}"
        )
    if len(models) > 1 and grant.mem_mib > largest_mib(grant.gpu_total_mib, memory_scaling):
        raise JobError(
            f"job {grant.job_id} has {grant.mem_mib} MiB and was given GPU {grant.gpu_minor} ({grant.model}, "
            f"{grant.gpu_total_mib} MiB). {_cause(models)}"
        )


def _required(constraints: str) -> list[set[str]]:
    """Returns the sets of models of which a job with these features has to get one each: [{"h200", "a100"}] for
    `vgpu_share&(vgpu_type_h200|vgpu_type_a100)`. A model that is an alternative to another feature is not required."""
    prefix, depth, terms, has_or = c.FEATURE_TYPE.format(type=""), 0, [""], False
    for ch in constraints:
        depth += (ch in "([") - (ch in ")]")
        has_or = has_or or (ch == "|" and depth == 0)
        if ch in "&," and depth == 0:
            terms.append("")
        else:
            terms[-1] += ch
    if has_or and len(terms) > 1:
        return []  # read from left to right: `a&b|c` requires none of them. job_submit's own features are never there
    required = []
    for term in terms:
        words = [word.partition("*")[0] for word in term.strip("()[]").split("|")]
        models = [word.removeprefix(prefix) for word in words if word.startswith(prefix)]
        if len(models) == len(words) and all(ch.isalnum() or ch in "_-" for model in models for ch in model):
            required.append(set(models))
    return required


def _cause(models: tuple[str, ...]) -> str:
    if len(models) > 1:
        return f"This node has GPUs of {len(models)} models ({', '.join(models)}). {ADVICE}"
    return "The node's Feature= in slurm.conf names a model that it does not have: run hami-hpc render there"
