# SPDX-License-Identifier: Apache-2.0
"""Reconcile's part for mode=mps: daemons without jobs are stopped, jobs without a daemon get one."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import partial

from hami_hpc.contract import constants as c
from hami_hpc.core.grant import Grant
from hami_hpc.errors import NodeError
from hami_hpc.isolation.mps import member_of
from hami_hpc.node import job_dirs, mps, mps_daemon
from hami_hpc.node.config import Settings
from hami_hpc.node.ledger import Ledger
from hami_hpc.node.mps_daemon import Place
from hami_hpc.stages import common

MODE = "mps"


def live(ledger: Ledger) -> tuple[Grant, ...]:
    """Returns the ledger's grants with mode=mps."""
    return tuple(grant for grant in ledger.grants() if grant.mode == MODE)


def held(settings: Settings, ledger: Ledger) -> dict[str, Grant]:
    """Returns the grants with mode=mps by Member.name: the ledger's, and those that only a directory has, whose row is
    lost and could not be restored. A daemon is not stopped under such a job."""
    grants = (*common.placed_grants(settings.run_dir), *live(ledger))
    return {member_of(grant).name: grant for grant in grants if grant.mode == MODE}


def repair(settings: Settings, ledger: Ledger, dry_run: bool) -> Iterator[tuple[str, str | None]]:
    """Makes daemons and ledger agree. Yields what is done, or would be, and why it failed, if it did.

    Nothing outside of the run directory's mps is touched: daemons of others are the doctor's to report.
    """
    seen: set[str] = set()
    for place in (*mps.places(settings.run_dir), *mps.lost(settings.mps_control, settings.run_dir)):
        members = {member.name for member in mps.members(place)}  # before the ledger: a prolog enters its grant first
        grants = {name: grant for name, grant in held(settings, ledger).items() if _can_be_of(grant, place)}
        seen |= members & grants.keys()
        if not members & grants.keys():
            text = f"MPS daemon of {place.pipe}: no job needs it; it is stopped and its files are removed"
            yield text, None if dry_run else _try(partial(_drop, settings, ledger, place))
            continue
        if gone := members - grants.keys():
            listed = ", ".join(sorted(name.partition("-")[0] for name in gone))
            text = f"MPS daemon of {place.pipe}: job {listed} is no longer on this node; its limits follow the others"
            yield text, None if dry_run else _try(partial(_drop, settings, ledger, place))
        if not mps_daemon.answers(settings.mps_control, place):
            first = next(grants[name] for name in sorted(members & grants.keys()))
            text = f"MPS daemon of {place.pipe}: it does not answer and is replaced"
            yield text, None if dry_run else _try(partial(_repair, settings, first, place))
        elif mps_daemon.is_static(place) and _differs(settings, place):
            first = next(grants[name] for name in sorted(members & grants.keys()))
            text = f"MPS daemon of {place.pipe}: its SM partitions are not those of its jobs; they are made to agree"
            yield text, None if dry_run else _try(partial(_repair, settings, first, place))
    for grant in live(ledger):
        if member_of(grant).name not in seen and _is_in_use(settings, grant):
            text = f"job {grant.job_id}: its MPS daemon was lost and is started"
            yield text, None if dry_run else _try(partial(_start, settings, grant))


def _can_be_of(grant: Grant, place: Place) -> bool:
    return grant.gpu_minor == place.gpu_minor and place.user in (str(grant.uid), mps_daemon.ALL_USERS)


def _drop(settings: Settings, ledger: Ledger, place: Place) -> None:
    mps.keep_only(settings.mps_control, place, lambda: frozenset(held(settings, ledger)))


def _differs(settings: Settings, place: Place) -> bool:
    from hami_hpc.node import mps_partitions

    try:
        return mps_partitions.differ(settings.mps_control, place, mps.members(place))
    except NodeError:  # it has ended since: the next reconcile replaces it
        return False


def _repair(settings: Settings, grant: Grant, place: Place) -> None:
    mps.repair(settings.mps_control, place, grant.gpu_uuid, settings.mps_static)


def _is_in_use(settings: Settings, grant: Grant) -> bool:
    """Returns whether the job's prolog has made its directory and no epilog has released it."""
    return os.path.lexists(f"{job_dirs.job_dir(settings.run_dir, grant.job_id)}/{c.FILE_MPS}")


def _start(settings: Settings, grant: Grant) -> None:
    """Starts the daemon of a job that runs. An epilog that came meanwhile may have left it before: then it ends."""
    place = mps.place_of(settings.run_dir, grant.gpu_minor, grant.uid, settings.mps_multi_user)
    mps.hold(settings.mps_control, place, grant.gpu_uuid, member_of(grant), settings.mps_static)
    if not _is_in_use(settings, grant):
        mps.leave(settings.mps_control, place, member_of(grant))


def _try(action: Callable[[], None]) -> str | None:
    try:
        action()
    except NodeError as error:
        return str(error)
    return None
