# SPDX-License-Identifier: Apache-2.0
"""Reads the agent's state file and writes Prometheus's text format."""

from __future__ import annotations

import math
from dataclasses import dataclass

from prometheus_client.utils import floatToGoString

from hami_hpc.core.agent_state import AgentState
from hami_hpc.errors import NodeError
from hami_hpc.metrics.definitions import Metric
from hami_hpc.metrics.samples import ByStages, Histograms, Labels, Samples, Status, agent_histograms, agent_samples
from hami_hpc.node import agent_file, boot, mig_notes, mode_outages

STALE_PERIODS = 10
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


@dataclass(frozen=True, slots=True)
class Exposition:
    """The text, and for people what is wrong with the agent; `problem` is empty with Status.LOOKING."""

    text: bytes
    status: Status
    problem: str


def _family(metric: Metric) -> str:
    """Returns the two lines before a family's samples."""
    text = metric.help.replace("\\", r"\\").replace("\n", r"\n")
    return f"# HELP {metric.name} {text}\n# TYPE {metric.name} {metric.kind}\n"


def _pairs(names: tuple[str, ...], labels: Labels) -> str:
    """Returns labels as name="value" by name, separated by commas."""
    return ",".join([f'{name}="{_escaped(value)}"' for name, value in sorted(zip(names, labels, strict=True))])


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


def _number(value: float) -> str:
    return str(floatToGoString(value))  # type: ignore[no-untyped-call]


def text_of(samples: Samples, histograms: Histograms) -> str:
    """Returns Prometheus's text format 0.0.4, as prometheus-client's generate_latest writes it. That checks and escapes
    the names and values of all labels for each sample anew, which takes three quarters of the time."""
    known: dict[tuple[tuple[str, ...], Labels], str] = {}
    parts: list[str] = []
    for metric, values in samples.items():
        if values:
            parts.append(_family(metric))
        for labels, value in values.items():
            key = (metric.labels, labels)
            braces = known.get(key)
            if braces is None:
                braces = known[key] = f"{{{_pairs(*key)}}}" if labels else ""
            parts.append(f"{metric.name}{braces} {_number(value)}\n")
    for metric, jobs in histograms.items():
        if jobs:
            parts.append(_family(metric))
        for labels, one in jobs.items():
            pairs = _pairs(metric.labels, labels)
            for bound, count in one.buckets:
                bucket = (*labels, "+Inf" if math.isinf(bound) else repr(bound))
                bucket_pairs = _pairs((*metric.labels, "le"), bucket)
                parts.append(f"{metric.name}_bucket{{{bucket_pairs}}} {_number(count)}\n")
            parts.append(f"{metric.name}_count{{{pairs}}} {_number(one.buckets[-1][1])}\n")
            parts.append(f"{metric.name}_sum{{{pairs}}} {_number(one.total)}\n")
    return "".join(parts)


def expose(run_dir: str, state_dir: str = "") -> Exposition:
    """Returns the metrics of this node now. Whatever is wrong with the state file, the text says so."""
    path = f"{agent_file.folder(run_dir)}/{agent_file.NAME}"
    stages = ByStages(mig_notes.no_room_count(run_dir), _modes_out(state_dir))
    absent = f"{path}: there is no valid state of this boot. Is the agent running?"
    try:
        state = agent_file.read(run_dir, boot.boot_id())
    except NodeError as error:
        return Exposition(_text(stages, Status.UNREADABLE), Status.UNREADABLE, str(error))
    if state is None:
        return Exposition(_text(stages, Status.ABSENT), Status.ABSENT, absent)
    try:
        age = agent_file.seconds_old(state)
        is_stale = not -1 <= age <= STALE_PERIODS * state.period_ns / 1e9
        status = Status.STALE if is_stale else Status.LOOKING
        problem = f"{path}: the agent last looked {age:.0f} s ago" if is_stale else ""
        return Exposition(_text(stages, status, state, age), status, problem)
    except (ValueError, TypeError, AttributeError, OverflowError):  # values of other types than the state's
        return Exposition(_text(stages, Status.ABSENT), Status.ABSENT, absent)


def _modes_out(state_dir: str) -> tuple[str, ...]:
    try:
        return tuple(outage.mode for outage in mode_outages.read(state_dir)) if state_dir else ()
    except NodeError:  # doctor says so
        return ()


def _text(stages: ByStages, status: Status, state: AgentState | None = None, age_s: float = 0.0) -> bytes:
    return text_of(agent_samples(status, state, age_s, stages), agent_histograms(status, state)).encode()
