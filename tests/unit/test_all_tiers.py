# SPDX-License-Identifier: Apache-2.0
"""How `make test` divides the files of tests between its workers."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import pytest
from all_tiers import CLUSTER, CLUSTERS, LONG, SomeClusters
from node_testbed import ROOT


class Worker:
    """A worker that notes what it is given and, as xdist's, keeps its last test until there is another or it ends."""

    def __init__(self) -> None:
        self.shutting_down = False
        self.given: list[int] = []
        self.done = 0

    def send_runtest_some(self, indices: list[int]) -> None:
        self.given += indices

    def shutdown(self) -> None:
        self.shutting_down = True


def run(names: list[str], workers: int = 5) -> list[list[str]]:
    """Runs all tests to the end; each worker that can do its next one does it in turn. Returns what each has run."""
    made: Any = object.__new__(SomeClusters)
    nodes = [Worker() for _ in range(workers)]
    made.log = lambda *_words: None
    made.collection = names
    made.assigned_work = {node: {} for node in nodes}
    made.registered_collections = dict.fromkeys(nodes, names)
    made.workqueue = OrderedDict()
    for name in names:
        made.workqueue.setdefault(name.partition("::")[0], {})[name] = False
    for node in nodes:
        made._assign_work_unit(node)
    for node in nodes:
        made._reschedule(node)
    while any(ready := [node for node in nodes if node.done < len(node.given) - (not node.shutting_down)]):
        for node in ready:
            node.done += 1
            made.mark_test_complete(node, node.given[node.done - 1])
    assert not made.workqueue
    return [[names[index] for index in node.given[: node.done]] for node in nodes]


def three_in_each(*files: str) -> list[str]:
    return [f"{file}::test_{number}" for file in files for number in range(3)]


@pytest.mark.parametrize("clusters", [1, 2, 3, 7, 30])
@pytest.mark.parametrize("others", [0, 1, 5, 40])
def test_each_test_runs_once_and_the_clusters_on_workers_that_have_one(clusters: int, others: int) -> None:
    names = three_in_each(
        *(f"{CLUSTER}test_{i}.py" for i in range(clusters)), *(f"tests/unit/test_{i}.py" for i in range(others))
    )
    ran = run(names)
    assert sorted(name for part in ran for name in part) == sorted(names)
    for part in ran[CLUSTERS:]:
        assert not [name for name in part if name.startswith(CLUSTER)]
    if clusters >= 2 * CLUSTERS:
        assert all(part and part[0].startswith(CLUSTER) for part in ran[:CLUSTERS])


def test_the_longest_files_begin() -> None:
    files = [f"{folder}/test_{i}.py" for folder in ("tests/cluster", "tests/unit") for i in range(9)]
    ran = run(three_in_each(*files, *LONG))
    first = [part[0].partition("::")[0] for part in ran]
    assert first[:CLUSTERS] == [path for path in LONG if path.startswith(CLUSTER)][:CLUSTERS]
    assert first[CLUSTERS:] == [path for path in LONG if not path.startswith(CLUSTER)][: len(first) - CLUSTERS]


def test_the_longest_files_are_there() -> None:
    assert [path for path in LONG if not (ROOT / path).exists()] == []
