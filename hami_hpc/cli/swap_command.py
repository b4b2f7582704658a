# SPDX-License-Identifier: Apache-2.0
"""`hami-hpc swap`: moves a running job's device memory to the host and back."""

from __future__ import annotations

import os
from pathlib import Path

import click

from hami_hpc.cli.options import Failure, JobNumber, Seconds, command, config_option, settings_of


@command("swap")
@click.argument("direction", type=click.Choice(["out", "in"]))
@click.argument("job", type=JobNumber(1))
@click.option(
    "--wait",
    metavar="SECONDS",
    type=Seconds(0, 3600),
    default=60,
    show_default=True,
    help="How long to wait until all of it is moved.",
)
@config_option
def swap(direction: str, job: int, wait: float, config: Path | None) -> None:
    """Move the device memory of a running job's programs to the host, or back to the GPU.

    As root, on the job's node. The programs notice nothing but the time: what they ask of the GPU waits until their
    memory is back. Jobs of classes with swap = true in the settings can be moved, with mode=share on one GPU. A program
    that cannot be moved (it shares device memory with another, or its work does not end) is named, and its job stays.

    Example: hami-hpc swap out 4711
    """
    if os.geteuid() != 0:
        raise Failure("only root can move a job's memory: run this as root on the job's node")
    from hami_hpc.stages import swap as stage  # of nodes

    click.echo(stage.swap(settings_of(config), job, out=direction == "out", wait_s=wait))
