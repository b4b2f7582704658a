# SPDX-License-Identifier: Apache-2.0
"""MPS on a real GPU, by hami_hpc's own daemons: shares, limits, faults and times, as a table for docs/benchmarks.

Usage: python3 tests/gpu/mps.py [SECTIONS ...], as root on a GPU node that nobody else uses, with build/native (make
native), nvidia-cuda-mps-control in PATH, and in $HAMI_BENCH_WORK tests/gpu/work.cu compiled as bench_time.py says.
Daemons are made below a new directory in /run and ended at the end, whatever happens. No setting of the GPU is changed.
"""

from __future__ import annotations

import os
import signal
import statistics
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from mps_jobs import (
    USER,
    Job,
    answer,
    bench,
    client,
    daemon_pid,
    end,
    head,
    plain,
    prepare,
    row,
    say,
    script,
    share,
    sms_of,
    start,
    wait_for_client,
    work,
)
from tenants import KERNELS, LC_A, LC_B

from hami_hpc.contract import constants as c
from hami_hpc.core.delays import INT64_MAX
from hami_hpc.core.records import USAGE_FILE_SIZE, parse_usage
from hami_hpc.node import job_dirs, mps, mps_daemon, mps_processes
from hami_hpc.node.mps_daemon import Place

# PyTorch's programs of bench_time.py; the training has begun after so many seconds, and outlasts the other.
INFER, TRAIN, TRAIN_BEGINS_S = ("infer.py", "4"), ("train.py", "14"), 6


def times() -> None:
    head("Time to start and stop, ms (median of 5; most)", "what", "median", "most")
    took: dict[str, list[float]] = {"first job: daemon started": [], "second job: asked and adjusted": []}
    took |= {"first of two leaves": [], "last leaves: daemon stopped": [], "last leaves, a server had run": []}

    def timed(name: str, call: Callable[[], object]) -> None:
        begin = time.monotonic()
        call()
        took[name].append(1000 * (time.monotonic() - begin))

    for with_server in (False, True) * 5:
        one, two = Job(50), Job(25)
        timed("first job: daemon started", one.__enter__)
        timed("second job: asked and adjusted", two.__enter__)
        if with_server:
            sms_of(one)
        timed("first of two leaves", two.__exit__)
        timed("last leaves, a server had run" if with_server else "last leaves: daemon stopped", one.__exit__)
    for name, values in took.items():
        row(name, statistics.median(values), max(values))
    for name in ("without MPS", "MPS, first client", "MPS, second client"):
        if name == "without MPS":
            numbers = answer(start(client("sms"), plain()))
        elif name == "MPS, first client":
            keep = Job(50)
            keep.__enter__()
            numbers = answer(keep.start(*client("sms")))
        else:
            numbers = answer(keep.start(*client("sms")))
            keep.__exit__()
        row(f"cuInit and a context, {name}", numbers.get("init_ms", say(numbers)), "")


def shares() -> None:
    head("Kernels of 1 ms, percent of the chip", "clients", "first", "second", "SMs of each")
    with Job(75) as one, Job(25) as two:
        sms = sms_of(one), sms_of(two)
        for name, alone, count in (("75 alone", one, sms[0]), ("25 alone", two, sms[1])):
            row(name, share(answer(alone.start(*work(KERNELS))), count), "", int(count))
        _together("75 beside 25, one user", one, two, sms)
    with Job(75) as one, Job(25, uid=USER) as two:
        _together("75 beside 25, two users, two daemons", one, two, (sms_of(one), sms_of(two)))
    with Job(50) as one, Job(50, uid=USER) as two:
        _together("50 beside 50, two users, two daemons", one, two, (sms_of(one), sms_of(two)))
    with Job(75, multi_user=True) as one, Job(25, uid=USER, multi_user=True) as two:
        _together("75 beside 25, two users, one multi-user server", one, two, (sms_of(one), sms_of(two)))


def _together(name: str, one: Job, two: Job, sms: tuple[float, float]) -> None:
    begin = f"begin={time.time() + 3:.3f}"
    pair = one.start(*work(KERNELS, begin)), two.start(*work(KERNELS, begin))
    row(name, share(answer(pair[0]), sms[0]), share(answer(pair[1]), sms[1]), f"{sms[0]:.0f}, {sms[1]:.0f}")


def limits() -> None:
    head("What a client can have, as uid 65534: daemon 50 % and 8192 MiB", "the client's own environment", "it had")
    own = {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "100", "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=64G"}
    with Job(50, 8192, uid=USER) as job:
        tries = {
            "as the step sets it": job.environment(),
            "25 %, 2048 MiB": job.environment(
                CUDA_MPS_ACTIVE_THREAD_PERCENTAGE="25", CUDA_MPS_PINNED_DEVICE_MEM_LIMIT="0=2048M"
            ),
            "100 %, 64 GiB": job.environment(**own),
            "neither set": {k: v for k, v in job.environment().items() if k not in own},
            "no pipe directory: no MPS": {k: v for k, v in job.environment().items() if "MPS" not in k},
        }
        for name, environment in tries.items():
            numbers = answer(start(client("take", "16384"), environment, USER))
            row(name, say(numbers, "sms", "taken_mib", "total_mib", "free_mib"))
        for command in (
            "set_default_active_thread_percentage 100",
            "set_default_device_pinned_mem_limit 0 64G",
            "set_default_client_priority 0",
            "start_server -uid 0",
            "quit",
        ):
            asked = subprocess.run(
                [bench.program],
                input=f"{command}\n",
                env=job.environment(),
                capture_output=True,
                text=True,
                timeout=10,
                user=USER,
                group=USER,
                extra_groups=[],
                check=False,
            )
            row(f"the user asks: {command}", f"status {asked.returncode}: {' '.join(asked.stdout.split()) or '-'}")
        kept = [
            mps_daemon.ask(bench.program, job.place, f"get_default_{what}")
            for what in ("active_thread_percentage", "device_pinned_mem_limit 0")
        ]
        row("the daemon's defaults afterwards", ", ".join(kept))
        with Job(90, 12288, uid=USER) as larger:
            numbers = answer(larger.start(*client("take", "16384")))
            row("a second job of the user has 90 %, 12288 MiB", say(numbers, "sms", "taken_mib"))
        numbers = answer(start(client("take", "16384"), job.environment(**own), USER))
        row("it has ended; 100 %, 64 GiB again", say(numbers, "sms", "taken_mib"))


def faults() -> None:
    head("Faults", "what happens", "the other client, the same user", "afterwards")
    with Job(50) as one, Job(50) as two:
        victim, other = one.start(*work(KERNELS, seconds=60)), two.start(*work(KERNELS, "warm=3"))
        pids = wait_for_client(one, 2)
        victim.send_signal(signal.SIGKILL)
        victim.wait()
        numbers = answer(other)
        row("a client is killed (-9)", share(numbers, sms_of(two)), f"clients before {len(pids)}, new client: OK")
    with Job(50) as one, Job(50) as two:
        other = two.start(*work(KERNELS, seconds=6))
        wait_for_client(two)
        numbers = answer(one.start(*client("fault")))
        after = answer(other)
        crashed = mps_daemon.crashes(one.place, one.member.created_unix_ns)
        third = answer(one.start(*client("sms")))
        row(f"a client stores to an illegal address ({say(numbers, 'fault')})", say(after, "rate"), say(third, "sms"))
        row("... what the log says", "; ".join(crashed)[-300:] or "-", log_tail(one.place))
    with Job(50) as one, Job(50, uid=USER) as two:
        other = two.start(*work(KERNELS, seconds=6))
        wait_for_client(two)
        numbers = answer(one.start(*client("fault")))
        row(f"the same, the other is of another daemon ({say(numbers, 'fault')})", say(answer(other), "rate"), "")
    with Job(50, multi_user=True) as one, Job(50, uid=USER, multi_user=True) as two:
        other = two.start(*work(KERNELS, seconds=6))
        wait_for_client(two)
        numbers = answer(one.start(*client("fault")))
        row(f"the same, one multi-user server ({say(numbers, 'fault')})", say(answer(other), "rate"), "")
    _kill("the server is killed (-9)", lambda job: mps_daemon.servers(bench.program, job.place)[0])
    _kill("the daemon is killed (-9)", lambda job: daemon_pid(job.place))
    with Job(50) as one:
        os.kill(daemon_pid(one.place), signal.SIGSTOP)
        begin = time.monotonic()
        with Job(25) as two:
            row("the daemon hangs (SIGSTOP)", "; ".join(two.lines), f"replaced in {time.monotonic() - begin:.2f} s")
    with Job(50) as one:
        begin = time.monotonic()
        os.kill(daemon_pid(one.place), signal.SIGSTOP)
    row("the daemon hangs, the last job leaves", "-", f"{time.monotonic() - begin:.2f} s")


def log_tail(place: Place) -> str:
    try:
        text = Path(place.log, "server.log").read_text(errors="replace").splitlines()[-4:]
    except OSError as error:
        return str(error)
    return "; ".join(line[-120:] for line in text).replace("|", "/")


def _kill(name: str, pid_of: Callable[[Job], int]) -> None:
    with Job(50) as one, Job(50) as two:
        other = one.start(*work(KERNELS, seconds=8))
        wait_for_client(one)
        time.sleep(1.5)  # it is known as a client before it computes
        os.kill(pid_of(one), signal.SIGKILL)
        time.sleep(0.5)
        begin = time.monotonic()
        new = answer(two.start(*client("sms")))
        took = time.monotonic() - begin
        servers = len(mps_processes.servers_at(one.place.pipe))
        with Job(25) as third:
            newest = answer(third.start(*client("sms")))
            row(
                name,
                say(answer(other), "rate"),
                f"a new client before repair: {say(new, 'sms')} ({took:.2f} s); servers {servers}; a new job: "
                f"{'; '.join(third.lines) or 'nothing repaired'}; its client: {say(newest, 'sms')}",
            )
    found = mps_processes.processes()
    row("... all jobs have left", "-", f"{len(found)} processes of MPS")


LOADS = {"(a) 1 MiB H2D + 100 us, 250/s": LC_A, "(b) 20 x 100 us, 50/s": LC_B, "(c) PyTorch inference, 50/s": INFER}


def latency() -> None:
    for name, load in LOADS.items():
        head(name, "beside", "p50 us", "p99 us", "best effort, percent of the chip, or training steps/s")
        _alone("nobody, no MPS", load, None)
        _beside("stock timeslices, no MPS", load, None, None)
        for be_cores in (50, 75):
            for priority in (0, 1):
                with Job(100) as urgent, Job(be_cores, priority=priority) as other:
                    if be_cores == 50 and priority == 0:
                        _alone("nobody, MPS", load, urgent)
                    _beside(f"{be_cores} %, priority {priority}", load, urgent, other)
        if load is not INFER:  # the user may not read root's PyTorch
            with Job(100) as urgent, Job(75, uid=USER) as other:
                _beside("75 % of another user's daemon", load, urgent, other)


def _alone(name: str, load: tuple[str, ...], urgent: Job | None) -> None:
    numbers = answer(_urgent(load, urgent))
    row(name, numbers.get("p50", say(numbers)), numbers.get("p99", ""), "")


def _urgent(load: tuple[str, ...], job: Job | None, *more: str) -> subprocess.Popen[str]:
    command = script(*load) if load is INFER else work(load, *more)
    return job.start(*command) if job else start(command, plain())


def _beside(name: str, load: tuple[str, ...], urgent: Job | None, other: Job | None) -> None:
    begin = f"begin={time.time() + 3:.3f}"
    busy_work = script(*TRAIN) if load is INFER else work(KERNELS, begin)
    busy = other.start(*busy_work) if other else start(busy_work, plain())
    if load is INFER:
        time.sleep(TRAIN_BEGINS_S)
    numbers = answer(_urgent(load, urgent, begin))
    if load is INFER:
        out, errors = busy.communicate()
        left: object = out.strip() or errors.strip()[-160:]
    else:
        left = share(answer(busy), sms_of(other) if other else bench.all_sms)
    row(name, numbers.get("p50", say(numbers)), numbers.get("p99", ""), left)


def interposer() -> None:
    head("The interposer in a client, limit 1024 MiB, policy none", "way", "it took, MiB", "counted, MiB")
    from conformance import make_slice  # mps_jobs adds its folder to the path

    for name in ("no MPS", "MPS"):
        slice_ = make_slice(
            bench.folder / f"slice-{name.replace(' ', '')}", None, bench.uuid, job_mib=1024, policy="none"
        )
        with Job(50) as job:
            limited = {k: v for k, v in slice_.environment().items() if k in ("LD_PRELOAD", c.ENV_LIMITS)}
            environment = (job.environment() if name == "MPS" else plain()) | limited
            numbers = answer(start(client("take", "4096"), environment))
        data = job_dirs.read_bounded(str(slice_.directory / c.FILE_USAGE), USAGE_FILE_SIZE, None) or b""
        peak = parse_usage(data, INT64_MAX, 0).peak_bytes >> 20
        row(name, say(numbers, "taken_mib", "sms"), peak)


def nvml() -> None:
    head("What NVML shows of a client that holds 2 GiB", "process", "type", "MiB", "of")
    with Job(50, uid=USER) as job:
        holder = job.start(*client("hold", "2048", "4"))
        wait_for_client(job)
        time.sleep(1.5)
        listed = subprocess.run(["nvidia-smi", "-q", "-d", "PIDS"], capture_output=True, text=True, check=False).stdout
        words = [line.split(":", 1)[-1].strip() for line in listed.splitlines() if ":" in line]
        at = [n for n, line in enumerate(words) if line.isdigit()]
        for n in at:
            if n + 3 < len(words):
                who = "client" if int(words[n]) == holder.pid else "server or other"
                row(words[n], words[n + 1], words[n + 3], who)
        row("by `ps` of the daemon", mps_daemon.ask(bench.program, job.place, "ps")[-160:], "", "")
        answer(holder)


SECTIONS = {
    "times": times,
    "shares": shares,
    "limits": limits,
    "faults": faults,
    "latency": latency,
    "interposer": interposer,
    "nvml": nvml,
}


def main() -> int:
    status = 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        prepare()
        for name in sys.argv[1:] or list(SECTIONS):
            begin = time.monotonic()
            try:
                SECTIONS[name]()
            except Exception:
                status = 1
                print(f"\n{name} failed: {traceback.format_exc()}")
                for place in mps.places(str(bench.folder)):
                    with suppress(mps_daemon.MpsError):
                        mps.keep_only(bench.program, place, frozenset)
            print(f"\n({name}: {time.monotonic() - begin:.0f} s)", flush=True)
    finally:
        end()
    return status


if __name__ == "__main__":
    sys.exit(main())
