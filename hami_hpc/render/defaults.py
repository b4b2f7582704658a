# SPDX-License-Identifier: Apache-2.0
"""Checks that the defaults and presets of the settings are requests that the site can grant. Pure."""

from __future__ import annotations

from dataclasses import replace

from hami_hpc.contract import constants as c
from hami_hpc.core.gpu_choice import Where
from hami_hpc.core.request import Request
from hami_hpc.core.site import Site
from hami_hpc.core.units import resolve
from hami_hpc.errors import NodeError, RequestError


def check_defaults(site: Site) -> None:
    """Resolves a bare `vgpu` for each partition and model, and each preset, so that a wrong one fails here and not at a
    submit."""
    for partition, models in site.partitions.items():
        for model in models:
            resolve(Request(gpu_type=model), site, Where((partition,)))
    for name, preset in site.presets.items():
        faults = [_fault_of(replace(preset, policy=None, slo=None), site, partition) for partition in site.partitions]
        if faults and all(faults):
            raise NodeError(f"preset {name} fits no partition: {faults[0]}")


def _fault_of(request: Request, site: Site, partition: str) -> str:
    """Returns why a request is refused in a partition, "" where it is not. Its class may still refuse its policy."""
    try:
        resolve(request, site, Where((partition,)))
    except RequestError as error:
        return str(error).removeprefix(c.ERROR_PREFIX)
    return ""
