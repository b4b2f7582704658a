# SPDX-License-Identifier: Apache-2.0
"""`hami-hpc baseline`: records this node's own figures, and checks later that they are no worse."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path

import click

from hami_hpc import places
from hami_hpc.cli import colours
from hami_hpc.cli.exit_codes import ExitCode
from hami_hpc.cli.options import Failure, command, config_option, format_option, settings_of
from hami_hpc.core.baseline import (
    FIGURES,
    DamagedRecordsError,
    Record,
    best_of,
    complaint,
    median_of,
    text_of,
    worse_figures,
)
from hami_hpc.core.inventory import Device
from hami_hpc.core.tables import table
from hami_hpc.errors import HamiError, NodeError
from hami_hpc.node import baseline_file, job_dirs, nvml
from hami_hpc.node.config import Settings
from hami_hpc.node.locks import HeldError
from hami_hpc.node.measure import FULL_S, Driver, Place, UsedError, measure_gpu, numbers_of
from hami_hpc.node.tenants import measuring
from hami_hpc.stages import common

ROUNDS = 3  # of a record
CPUS_A_GPU = 4  # that GPUs are measured at once by: programs that wait for a processor measure that
CHECK_S, CHECK_QUICK_S = 2 * FULL_S, 2.9  # of a GPU at most
WAIT_FOR_DRIVER_S = 30  # for NVML, besides what the measurements take
QUIET_LOCK = "another hami-hpc baseline runs on this node: nothing was measured"


@dataclass(frozen=True, slots=True)
class Answer:
    """What is said of one GPU. `skipped`: why it was not measured. `problem`: what failed, or which figures are worse.

    `no_record`: why there is nothing to compare with.
    """

    device: Device
    figures: dict[str, float] = field(default_factory=dict)
    record: Record | None = None
    skipped: str = ""
    problem: str = ""
    no_record: str = ""

    @property
    def name(self) -> str:
        return f"GPU {self.device.minor} ({self.device.uuid})"


def _grants(settings: Settings) -> dict[str, int]:
    """Returns a job of each GPU that a grant uses, by UUID. The ledger is read and closed, not held."""
    ledger = common.read_ledger(settings)
    try:
        return {grant.gpu_uuid: grant.job_id for grant in ledger.grants()}
    finally:
        ledger.close()


def _guarded(driver: Driver, device: Device, granted: dict[str, int], measure: Callable[[], Answer]) -> Answer:
    """Returns what `measure` says of a GPU that can be measured; why not, for any other."""
    if device.uuid in granted:
        return Answer(device, skipped=f"job {granted[device.uuid]} holds a part of it")
    if driver.is_mig(device.uuid):
        return Answer(device, skipped="it is divided by MIG")
    try:
        return measure()
    except UsedError as error:
        return Answer(device, skipped=str(error))
    except HamiError as error:
        return Answer(device, problem=str(error))


def record_one(driver: Driver, device: Device, place: Place) -> Answer:
    return Answer(device, figures=median_of([measure_gpu(driver, device, place, False) for _ in range(ROUNDS)]))


def check_one(driver: Driver, device: Device, place: Place, recorded: Record | None, quick: bool) -> Answer:
    """Measures a GPU; where a figure is worse a second time, if there is time, since anything may have disturbed it."""
    if recorded is None or recorded.driver != driver.version():
        had = f" (it was recorded with driver {recorded.driver})" if recorded else ""
        return Answer(device, no_record=f"no figures are recorded for it with driver {driver.version()}{had}")
    begun = time.monotonic()
    measured = [measure_gpu(driver, device, place, quick)]
    took_s = time.monotonic() - begun
    worse = worse_figures(recorded.figures, measured[0])
    if worse and 2.1 * took_s < (CHECK_QUICK_S if quick else CHECK_S):
        measured.append(measure_gpu(driver, device, place, quick))
    best = best_of(measured)
    worse = worse_figures(recorded.figures, best)
    problem = "; ".join(complaint(figure, recorded.figures[figure.key], best[figure.key]) for figure in worse)
    return Answer(device, figures=best, record=recorded, problem=problem)


def _place(settings: Settings, folder: str, devices: Sequence[Device]) -> Place:
    program = str(places.MEASURE)
    return Place(settings.run_dir, folder, settings.interposer, program, os.environ, numbers=numbers_of(devices))


def record(settings: Settings) -> list[Answer]:
    """Measures the unused GPUs one after the other and writes their figures. Raises NodeError."""
    answers = []
    with measuring(settings.run_dir) as folder, Driver() as driver:
        devices = nvml.read_devices()
        place, granted = _place(settings, folder, devices), _grants(settings)
        try:
            records = baseline_file.read_baseline(settings.state_dir)
        except DamagedRecordsError:
            records = {}  # it is replaced
        for device in devices:
            answer = _guarded(driver, device, granted, lambda one=device: record_one(driver, one, place))  # type: ignore[misc]
            if answer.figures:
                records[device.uuid] = Record(driver.version(), int(time.time()), answer.figures)
            answers.append(answer)
        if any(answer.figures for answer in answers):
            baseline_file.write_baseline(settings.state_dir, records)
    return answers


def check(settings: Settings, quick: bool) -> list[Answer]:
    """Measures the unused GPUs again: one after the other, or several at once with `quick`. Raises NodeError."""
    damage = ""
    try:
        records = baseline_file.read_baseline(settings.state_dir)
    except DamagedRecordsError as error:
        records, damage = {}, f"{baseline_file.path_of(settings.state_dir)} is damaged: {error}"
    with measuring(settings.run_dir) as folder, Driver() as driver:
        devices = nvml.read_devices()
        place, granted = _place(settings, folder, devices), _grants(settings)

        def one(device: Device) -> Answer:
            if damage:
                return Answer(device, no_record=damage)
            found = records.get(device.uuid)
            return _guarded(driver, device, granted, lambda: check_one(driver, device, place, found, quick))

        at_once = max(1, (os.cpu_count() or 1) // CPUS_A_GPU) if quick else 1
        with ThreadPoolExecutor(max_workers=at_once) as pool:
            return list(pool.map(one, devices))


def _watch(quick: bool) -> threading.Timer:
    """Returns a started timer that ends this process with status 1: a call of NVML may never come back."""

    def end() -> None:
        text = f"Error: the driver did not answer within {limit_s:.0f} s: see dmesg (Xid)\n"
        os.write(2, text.encode())
        os._exit(ExitCode.FAILED)

    gpus = 1 if quick else max(1, len(list(Path("/proc/driver/nvidia/gpus").glob("*"))))
    limit_s = WAIT_FOR_DRIVER_S + gpus * (CHECK_QUICK_S if quick else ROUNDS * FULL_S)
    timer = threading.Timer(limit_s, end)
    timer.daemon = True
    timer.start()
    return timer


def _show(answers: list[Answer], is_check: bool) -> None:
    for number, answer in enumerate(answers):
        click.echo(("\n" if number else "") + colours.coloured(answer.name, bold=True))
        why = answer.skipped or answer.no_record or ("" if answer.figures else answer.problem)
        if why:
            click.echo(f"  not measured: {why}")
            continue
        if answer.record:
            date = time.strftime("%Y-%m-%d %H:%M", time.localtime(answer.record.recorded_unix_s))
            click.echo(f"  recorded {date} with driver {answer.record.driver}")
        rows = []
        for figure in FIGURES:
            if figure.key in answer.figures:
                now = text_of(figure, answer.figures[figure.key])
                before = answer.record.figures.get(figure.key) if answer.record else None
                rows.append((f"  {figure.title}", now, "" if before is None else text_of(figure, before)))
        head = ("  FIGURE", "NOW", "RECORDED" if is_check else "")
        click.echo(colours.table_head(table(head, rows, right=(1, 2))))


def _json(answers: list[Answer]) -> list[dict[str, object]]:
    return [
        {
            "uuid": answer.device.uuid,
            "minor": answer.device.minor,
            "figures": answer.figures,
            "recorded": asdict(answer.record) if answer.record else None,
            "skipped": answer.skipped or None,
            "no_record": answer.no_record or None,
            "problem": answer.problem or None,
        }
        for answer in answers
    ]


@command(
    "baseline",
    done="record: the figures of all GPUs are recorded. check: no figure is worse, of the GPUs that nobody uses",
    found="record: a GPU was in use. check: no figures are recorded for a GPU and its driver",
)
@click.argument("action", type=click.Choice(("record", "check")))
@click.option("--quick", is_flag=True, help="Of check: three figures in under 3 s.")
@format_option("text", "json", help_text="Text: for people; json: for machines.")
@config_option
def baseline(action: str, quick: bool, form: str, config: Path | None) -> None:
    """Record this node's own figures, or check that they are no worse.

    Small tenants under the interposer measure each GPU that no process and no grant uses, and stop when somebody comes.
    A check fails (status 1) where a rate is below 80 % of the recorded one, a time above 125 %, or a cap's error 2
    points larger.
    """
    if quick and action == "record":
        raise click.UsageError("--quick is for check: record measures every figure")
    settings = settings_of(config)
    if os.geteuid() != 0:
        raise NodeError(f"only root can {action} a baseline: run this as root on the node")
    job_dirs.prepare(settings.run_dir)
    watchdog = _watch(quick)
    try:
        answers = record(settings) if action == "record" else check(settings, quick)
    except HeldError:
        if action == "record":
            raise Failure(QUIET_LOCK) from None
        click.echo(QUIET_LOCK, err=True)
        return
    finally:
        watchdog.cancel()
    if form == "json":
        click.echo(json.dumps(_json(answers), indent=2))
    else:
        _show(answers, action == "check")
    problems = [f"{answer.name}: {answer.problem}" for answer in answers if answer.problem]
    if not answers:
        problems.append("the driver shows no GPU: check with nvidia-smi")
    if problems:
        raise Failure("; ".join(problems))
    is_open = any(answer.no_record or (action == "record" and answer.skipped) for answer in answers)
    raise click.exceptions.Exit(ExitCode.FOUND if is_open else ExitCode.DONE)
