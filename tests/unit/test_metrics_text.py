# SPDX-License-Identifier: Apache-2.0
"""The text that `hami-hpc metrics` writes is prometheus-client's, byte for byte."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
from agent_states import make_state
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from hami_hpc.core.agent_state import AgentState
from hami_hpc.metrics.definitions import COUNTER
from hami_hpc.metrics.exposition import text_of
from hami_hpc.metrics.samples import ByStages, Histograms, Samples, Status, agent_histograms, agent_samples


class Families(Collector):
    def __init__(self, samples: Samples, histograms: Histograms) -> None:
        self.samples, self.histograms = samples, histograms

    def collect(self) -> Iterator[Family]:
        for metric, values in self.samples.items():
            kind = CounterMetricFamily if metric.kind == COUNTER else GaugeMetricFamily
            family = kind(metric.name, metric.help, labels=metric.labels)
            for labels, value in values.items():
                family.add_metric(labels, value)
            if values:
                yield family
        for metric, jobs in self.histograms.items():
            histogram = HistogramMetricFamily(metric.name, metric.help, labels=metric.labels)
            for labels, one in jobs.items():
                buckets = [("+Inf" if math.isinf(bound) else repr(bound), count) for bound, count in one.buckets]
                histogram.add_metric(labels, buckets, one.total)
            if jobs:
                yield histogram


def with_requests(state: AgentState) -> AgentState:
    rows, name = tuple(range(42)), 'a\\b"c\nd'
    jobs = [job._replace(latency=1, latency_buckets=rows, service_class=name, busy_ns=10**17) for job in state.jobs]
    return state._replace(jobs=tuple(jobs))


@pytest.mark.parametrize("state", [make_state(1, 0), make_state(6, 20), with_requests(make_state(6, 20)), None])
@pytest.mark.parametrize("status", Status)
def test_the_text_is_that_of_prometheus_client(state: AgentState | None, status: Status) -> None:
    samples = agent_samples(status, state, 0.123, ByStages(3, ("mig",)))
    histograms = agent_histograms(status, state)
    registry = CollectorRegistry(auto_describe=False)
    registry.register(Families(samples, histograms))
    assert text_of(samples, histograms).encode() == generate_latest(registry)
