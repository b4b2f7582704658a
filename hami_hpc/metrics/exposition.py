# SPDX-License-Identifier: Apache-2.0
"""Reads the agent's state file and writes Prometheus's text format, with prometheus-client."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from hami_hpc.core.agent_state import AgentState
from hami_hpc.errors import NodeError
from hami_hpc.metrics.definitions import COUNTER, Metric
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


class _Families(Collector):
    def __init__(self, samples: Samples, histograms: Histograms) -> None:
        self._samples = samples
        self._histograms = histograms

    def collect(self) -> Iterator[Family]:
        for metric, values in self._samples.items():
            if values:
                yield _family(metric, values)
        for metric, jobs in self._histograms.items():
            family = HistogramMetricFamily(metric.name, metric.help, labels=metric.labels)
            for labels, value in jobs.items():
                buckets = [("+Inf" if math.isinf(bound) else repr(bound), count) for bound, count in value.buckets]
                family.add_metric(labels, buckets, value.total)
            if jobs:
                yield family


def _family(metric: Metric, values: dict[Labels, float]) -> Family:
    kind = CounterMetricFamily if metric.kind == COUNTER else GaugeMetricFamily
    family = kind(metric.name, metric.help, labels=metric.labels)
    for labels, value in values.items():
        family.add_metric(labels, value)
    return family


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
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Families(agent_samples(status, state, age_s, stages), agent_histograms(status, state)))
    return generate_latest(registry)
