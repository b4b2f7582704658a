# SPDX-License-Identifier: Apache-2.0
"""`hami-hpc advise`: MIG, MPS, sharing or a whole GPU for a described workload, with reasons and measured figures."""

from __future__ import annotations

import json
from pathlib import Path

import click

from hami_hpc.cli import colours
from hami_hpc.cli.options import command, config_option, format_option, settings_of
from hami_hpc.core.advice import Advice, Hardware, Kernels, Trust, Workload
from hami_hpc.core.advice import advise as ways_for
from hami_hpc.core.inventory import make_inventory
from hami_hpc.core.request import parse
from hami_hpc.core.request_keys import MemMib
from hami_hpc.errors import NodeError, shorten
from hami_hpc.node import nvml
from hami_hpc.node.config import Settings
from hami_hpc.node.mig_settings import profiles_of

PAGES = "docs/benchmarks"
SIGNS = {True: "+", False: "-", None: " "}


def hardware_of(settings: Settings, model: str | None) -> Hardware:
    """Returns the model that is named, or that of this node's GPUs. Raises NodeError where neither is known."""
    if model is None:
        model = _model_here(settings)
    if model not in settings.gpu_models:
        known = ", ".join(settings.gpu_models) or "none"
        raise NodeError(f"--gpu {model} is no GPU model of {settings.path}. Its models: {known}")
    profiles = profiles_of(settings, model) if settings.mig_profiles.get(model) else ()
    total_mib = settings.gpu_models[model]
    return Hardware(model, total_mib, settings.gpu_size(model).slice_mib, tuple(settings.modes), profiles)


def _model_here(settings: Settings) -> str:
    try:
        models = {gpu.model for gpu in make_inventory(nvml.read_devices(), settings.gpu_models)}
    except NodeError as error:
        raise NodeError(f"{error}. On a node without a GPU, name a model of the settings: --gpu MODEL") from error
    if len(models) != 1:
        raise NodeError(f"this node has GPUs of {len(models)} models: name one with --gpu")
    model = models.pop()
    if not model:
        raise NodeError(f"{settings.path} has no [gpu_models.*] for this node's GPU: see hami-hpc doctor, or use --gpu")
    return model


def _workload(mem: str, cores: int, total_mib: int, rest: dict[str, object]) -> Workload:
    """Returns the workload, its memory read as in a request: 8G, 25%. Raises RequestError."""
    if not mem or not mem.replace(".", "").replace("%", "").isalnum():
        raise click.UsageError(f"--mem takes one amount of memory, such as 8G or 25%, not {shorten(mem)}")
    parsed = parse(f"vgpu:mem={mem},cores={cores}")
    size = parsed.request.mem if parsed else None
    mib = size.mib if isinstance(size, MemMib) else total_mib * size.percent // 100 if size else 0
    return Workload(mem_mib=mib, cores=cores, **rest)  # type: ignore[arg-type]


def rows(found: tuple[Advice, ...], count: int) -> list[dict[str, object]]:
    """Returns the ways for machines, the advised one first."""
    return [
        {
            "way": one.way,
            "is_advised": rank == 0,
            "fits": one.fits,
            "is_offered": one.is_offered,
            "per_gpu": one.per_gpu,
            "gpus_needed": -(-count // one.per_gpu) if one.fits else None,
            "request": one.request,
            "reasons": [
                {
                    "topic": reason.topic,
                    "text": reason.text,
                    "is_for": reason.is_for,
                    "figure": reason.figure.text if reason.figure else None,
                    "source": f"{PAGES}/{reason.figure.page}" if reason.figure else None,
                }
                for reason in one.reasons
            ],
        }
        for rank, one in enumerate(found)
    ]


def show(found: tuple[Advice, ...], count: int) -> None:
    for rank, one in enumerate(found):
        needed = (
            f"{one.per_gpu} on a GPU, {-(-count // one.per_gpu)} GPU(s) for {count}" if one.fits else "does not fit"
        )
        head = f"{'ADVISED' if rank == 0 else 'or' if one.fits else 'not'}: {one.way}, {needed}"
        click.echo(colours.coloured(head, "green", bold=True) if rank == 0 else head)
        if one.request:
            click.echo(f"    {one.request}")
        for reason in one.reasons:
            click.echo(f"  {SIGNS[reason.is_for]} {reason.topic}: {reason.text}")
            if reason.figure:
                click.echo(f"      {reason.figure.text} [{PAGES}/{reason.figure.page}]")
        click.echo()


@command("advise")
@click.option("--mem", required=True, help="Memory of one program, as in a request: 8G, 25%.")
@click.option("--cores", required=True, type=click.IntRange(1, 100), help="Share of a GPU of one program, percent.")
@click.option("--count", default=1, show_default=True, type=click.IntRange(1, 100_000), help="Programs at a time.")
@click.option("--latency", is_flag=True, help="It answers requests: how long each takes is what counts.")
@click.option(
    "--trust",
    type=click.Choice([one.value for one in Trust]),
    default=Trust.GROUP.value,
    show_default=True,
    help="Whose programs may be beside it. own: the same user's; group: users who wish each other no harm; none: users "
    "who may attack, stop or measure each other's work.",
)
@click.option(
    "--kernels",
    type=click.Choice([one.value for one in Kernels]),
    default=Kernels.BUSY.value,
    show_default=True,
    help="busy: always has work; short: launches short pieces and waits; small: leaves multiprocessors idle.",
)
@click.option("--gpu", "model", help="GPU model of the settings; by default that of this node's GPUs.")
@format_option("table", "json")
@config_option
def advise(
    mem: str,
    cores: int,
    count: int,
    latency: bool,
    trust: str,
    kernels: str,
    model: str | None,
    form: str,
    config: Path | None,
) -> None:
    """Say whether MIG, MPS, sharing or a whole GPU suits a workload, and why.

    Reasons that speak for a way begin with +, those against it with -. Figures are those of the project's benchmarks,
    with the page that has them: on other GPUs they will be others.
    """
    hardware = hardware_of(settings_of(config), model)
    rest: dict[str, object] = {"count": count, "latency": latency, "trust": Trust(trust), "kernels": Kernels(kernels)}
    try:
        found = ways_for(_workload(mem, cores, hardware.total_mib, rest), hardware)
    except ValueError as error:
        raise NodeError(f"--mem {mem} does not fit: {error}. Use several GPUs, or a model with more memory") from error
    if form == "json":
        click.echo(json.dumps(rows(found, count), indent=2))
    else:
        show(found, count)
