# SPDX-License-Identifier: Apache-2.0
"""Takes a mode out of this node's features when its backend fails repeatedly, and puts it back (docs/adr/056).

Imported by a prolog only where a backend failed or a mode is out, and by epilog, agent, reconcile and `hami-hpc mode`.
Each step can be killed and repeated: the file says what is out, and `settle` makes Slurm's features agree with it.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence

from hami_hpc.core.contexts import contextmanager, suppress
from hami_hpc.core.grant import Grant
from hami_hpc.core.mode_outage import TEXT_MAX, Failure, Outage, feature_of, features, is_over, public, recent
from hami_hpc.errors import HamiError, JobError, NodeError
from hami_hpc.isolation.table import backend_of, names_mode
from hami_hpc.node import admin_log, boot, drain, events, job_dirs, locks, mode_outages
from hami_hpc.node.config import Settings
from hami_hpc.node.ledger import Ledger
from hami_hpc.slurm import node_features, placeholders
from hami_hpc.stages import common, detached, send_back

LOCK = "modes-out.lock"
LOOK_AGAIN_S = 15.0  # after the first question no further one begins later
PAUSE_S = 1.0
LOCK_S = 30.0  # others ask slurmctld meanwhile: LOOK_AGAIN_S, a pause, and twice 5 s at most
FAILED, OUT = "E_BACKEND", "E_MODE_OUT"
MODULE = "hami_hpc.stages.mode_service"


class BackendError(JobError):
    """The backend of the job's mode failed by the node's fault, `cause`; so did `count` jobs within the window."""

    code = FAILED

    def __init__(self, message: str, mode: str, count: int, cause: str) -> None:
        super().__init__(message)
        self.mode, self.count, self.cause = mode, count, cause


class NoFeatureError(NodeError):
    """The node has no feature of the mode, so that Slurm cannot keep its jobs away."""


class ModeOutError(JobError):
    """The job's mode is out of the node's features."""

    code = OUT


class Slurm:
    """How the node's features are reached: its name, scontrol, and the environment for it."""

    def __init__(self, node: str, scontrol: str | None, env: Mapping[str, str]) -> None:
        self.node, self.scontrol, self.env = node, scontrol, env


def check(settings: Settings, mode: str, job_id: int, constraints: str) -> None:
    """Raises ModeOutError when the job's mode is out, and NodeError for a job that Slurm cannot keep off this node. A
    file that cannot be read blocks no job."""
    try:
        outages = mode_outages.read(settings.state_dir)
    except NodeError as error:
        common.report("prolog", str(error))
        return
    for outage in outages:
        if outage.mode != mode or is_over(outage, int(time.time()), boot.boot_id()):
            continue
        text = f"job {job_id} is of mode={mode}, which is out of service on this node until {_clock(outage)}"
        if not names_mode(mode, constraints):
            raise NodeError(f"{text}, and its features name no mode, so that Slurm sends it here: {outage.reason}")
        raise ModeOutError(f"{text}. A batch job is requeued if it may be; submit any other again")


def failure(settings: Settings, ledger: Ledger, grants: tuple[Grant, ...], error: Exception) -> BackendError:
    """Counts a failed backend, takes back what it made for the job, and returns the job's error.

    Raises NodeError where the failure cannot be counted: the node is drained then.
    """
    grant = grants[0]
    directory = job_dirs.job_dir(settings.run_dir, grant.job_id)
    with suppress(Exception):  # reconcile finds what is left: nothing has this grant any more
        backend_of(grant.mode).release(settings, directory, grants, common.now_unix_ns())
    text = common.error_text(error)[:TEXT_MAX]
    now, boot_id = int(time.time()), boot.boot_id()
    new = Failure(grant.mode, now, boot_id, grant.job_id, text)
    try:
        with _locked(settings):
            old = recent(mode_outages.read_failures(settings.state_dir), now, settings.mode_window_s, boot_id)
            mode_outages.write_failures(settings.state_dir, (*old, new))
    except (NodeError, OSError) as problem:
        raise NodeError(f"{text} (and that it failed cannot be counted: {problem})") from error
    ledger.remove(grant)
    count = 1 + sum(each.mode == grant.mode for each in old)
    words = (
        f"mode={grant.mode} failed on this node for job {grant.job_id} ({count} of {settings.mode_failures}): {text}"
    )
    events.write(settings.state_dir, "prolog", "mode_failed", job_id=grant.job_id, mode=grant.mode, text=words)
    advice = "A batch job is requeued if it may be; submit any other again"
    return BackendError(f"{words}. {advice}", grant.mode, count, text)


def refused(settings: Settings, environment: Mapping[str, str], job_id: int, error: JobError) -> bool:
    """Does what is left for a job that `check` or `failure` refused: takes the mode out where it failed often enough,
    and requeues the job. Returns whether it was requeued. Raises NodeError when the mode cannot be taken out."""
    if isinstance(error, BackendError) and error.count >= settings.mode_failures:
        take_out(settings, _slurm_of_stage(environment), error.mode, error.cause)
    elif error.code == OUT:  # Slurm has the feature again, after a restart of slurmctld
        start_settling(settings, environment)
    return send_back.requeue(environment, job_id, str(error))


def take_out(settings: Settings, slurm: Slurm, mode: str, cause: str) -> None:
    """Writes the mode into the file, and removes its feature from the node. Raises NodeError when slurmctld does not do
    that, or does not tell: the mode stays in the file, as it may be done later, unless the node has no such feature."""
    now = int(time.time())
    minutes = settings.mode_window_s // 60
    outage = Outage(mode, now, now + settings.mode_out_s, boot.boot_id(), _plain(public(cause)))
    text = (
        f"mode={mode} is out of this node's features until {_clock(outage)}, as it failed {settings.mode_failures} "
        f"times in {minutes} minutes; jobs of other modes go on. Last: {outage.reason}. Next: hami-hpc doctor; when it "
        f"is well: hami-hpc mode resume {mode}"
    )
    with _locked(settings):
        before = mode_outages.read(settings.state_dir)
        others = [other for other in before if other.mode != mode]
        mode_outages.write(settings.state_dir, (*others, outage))
        try:
            _remove_features(slurm, [*(other.mode for other in others), mode], must_have=mode)
        except NodeError as error:
            if isinstance(error, NoFeatureError):
                mode_outages.write(settings.state_dir, before)
            raise NodeError(f"mode={mode} cannot be taken out of this node's features ({error}). {cause}") from error
        _forget_failures(settings, mode)
    admin_log.to_syslog(admin_log.ERROR, text)
    events.write(settings.state_dir, "prolog", "mode_out", mode=mode, text=text)


def settle(settings: Settings, slurm: Slurm, source: str, ended: Iterable[str] = ()) -> tuple[str, ...]:
    """Makes the node's features agree with the file: puts back the modes whose time is over and those of `ended`,
    removes those that are out. Returns a line for each mode that came back. Raises NodeError."""
    with _locked(settings):
        outages = mode_outages.read(settings.state_dir)
        now, boot_id = int(time.time()), boot.boot_id()
        back = [each for each in outages if each.mode in tuple(ended) or is_over(each, now, boot_id)]
        left = [each for each in outages if each not in back]
        _set_features(slurm, [each.mode for each in left], [each.mode for each in back])
        if back:
            mode_outages.write(settings.state_dir, left)
            for each in back:
                _forget_failures(settings, each.mode)
    lines = tuple(map(_back, back))
    for each, line in zip(back, lines, strict=True):
        admin_log.to_syslog(admin_log.WARNING, line)
        events.write(settings.state_dir, source, "mode_back", mode=each.mode, text=line)
    return lines


def due(settings: Settings) -> tuple[str, ...]:
    """Returns what `settle` would say, without doing it. Raises NodeError."""
    now, boot_id = int(time.time()), boot.boot_id()
    return tuple(_back(each) for each in mode_outages.read(settings.state_dir) if is_over(each, now, boot_id))


def resume(settings: Settings, slurm: Slurm, mode: str) -> str:
    """Puts a mode back before its time. Returns a line about it. Raises NodeError for one that is not out."""
    known = [each.mode for each in mode_outages.read(settings.state_dir)]
    if mode not in known:
        raise NodeError(f"mode={mode} is not out of service on this node; out are: {', '.join(known) or 'none'}")
    lines = settle(settings, slurm, "mode", (mode,))
    return next((line for line in lines if line.startswith(f"mode={mode} ")), f"mode={mode} is in service")


def after_job(settings: Settings, environment: Mapping[str, str]) -> None:
    """Puts modes back whose time is over, in a process of its own. For epilogs: never fails, asks Slurm nothing."""
    with suppress(HamiError):
        outages = mode_outages.read(settings.state_dir)
        if any(is_over(each, int(time.time()), boot.boot_id()) for each in outages):
            start_settling(settings, environment)


def start_settling(settings: Settings, environment: Mapping[str, str]) -> None:
    detached.start(MODULE, settings, environment, 0.0)


def slurm_of_command(node: str) -> Slurm:
    """For commands and the agent, which have Slurm's commands in PATH."""
    return Slurm(node, "scontrol", placeholders.environment(os.environ))


def _slurm_of_stage(environment: Mapping[str, str]) -> Slurm:
    node = environment.get("SLURMD_NODENAME", "")
    return Slurm(node, drain.find_scontrol(), placeholders.environment(environment))


def _remove_features(slurm: Slurm, out: Sequence[str], must_have: str) -> None:
    """Removes features as `_set_features` does. Where slurmctld fails or does not answer in time, asks again: what it
    has then decides, since it may have done a command that did not wait for the answer. Raises NodeError likewise."""
    end = time.monotonic() + LOOK_AGAIN_S
    while True:
        try:
            return _set_features(slurm, out, [], must_have)
        except NodeError as error:
            if isinstance(error, NoFeatureError) or slurm.scontrol is None or time.monotonic() >= end:
                raise
        time.sleep(PAUSE_S)


def _set_features(slurm: Slurm, out: Sequence[str], back: Sequence[str], must_have: str = "") -> None:
    """Sets the node's active features where they differ. Raises NodeError, also where the node has no feature of the
    mode `must_have`: Slurm cannot keep its jobs away."""
    if slurm.scontrol is None:
        raise NodeError("scontrol was not found beside slurmd or in /usr/bin")
    available, active = node_features.read(slurm.node, slurm.scontrol, slurm.env)
    if must_have and feature_of(must_have) not in available:
        raise NoFeatureError(
            f"slurmctld knows no feature {feature_of(must_have)} of node {slurm.node}: hami-hpc render"
        )
    wanted = features(available, active, out, back)
    if sorted(wanted) != sorted(active):
        node_features.set_active(slurm.node, wanted, slurm.scontrol, slurm.env)


def _forget_failures(settings: Settings, mode: str) -> None:
    with suppress(NodeError):  # they count for the window at most
        failures = mode_outages.read_failures(settings.state_dir)
        if any(each.mode == mode for each in failures):
            mode_outages.write_failures(settings.state_dir, [each for each in failures if each.mode != mode])


@contextmanager
def _locked(settings: Settings) -> Iterator[None]:
    path = f"{settings.run_dir}/{LOCK}"
    try:
        lock = locks.acquire(path, True, LOCK_S)
    except OSError as error:
        raise NodeError(f"{path} cannot be opened: {error.strerror}") from error
    try:
        yield
    finally:
        os.close(lock)


def _back(outage: Outage) -> str:
    return f"mode={outage.mode} is in this node's features again. It was out: {outage.reason}"


def _plain(text: str) -> str:
    return drain.plain(" ".join(text.split()))


def _clock(outage: Outage) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(outage.until_unix_s))


def main(arguments: Sequence[str], environment: Mapping[str, str] = os.environ) -> int:
    """Settles this node, for `start_settling`. A failure is reported: the next epilog, agent or reconcile goes on."""
    try:
        settle(common.load(arguments), _slurm_of_stage(environment), "prolog")
    except HamiError as error:
        common.report("mode", f"{error}. Run hami-hpc reconcile")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
