# SPDX-License-Identifier: Apache-2.0
"""docs/metrics.md lists the metrics as the code defines them, and promtool accepts names, types and HELP texts."""

from __future__ import annotations

import re
from pathlib import Path

from metrics_testbed import AgentNode, make_job, make_state
from promtool import ROOT, promtool

from hami_hpc.cli.metrics_command import HOST, PORT
from hami_hpc.metrics.definitions import METRICS
from hami_hpc.metrics.exposition import expose
from hami_hpc.metrics.samples import Status
from hami_hpc.metrics.server import CONNECTION_SECONDS, MAX_CONNECTIONS, MAX_REQUEST_BYTES

TEXT = (ROOT / "docs/metrics.md").read_text(encoding="utf-8")


def section(heading: str) -> str:
    return TEXT.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]


def test_the_table_of_metrics_is_the_codes() -> None:
    expected = [f"| `{m.name}` | {m.kind} | {', '.join(m.labels) or chr(0x2013)} | {m.help} |" for m in METRICS]
    assert re.findall(r"^\| `hami_hpc_.*$", section("The metrics"), re.MULTILINE) == expected


def test_the_table_of_other_names_is_of_metrics_that_exist() -> None:
    names = re.findall(r"^\| `(hami_hpc_\w+)`", section("Names elsewhere"), re.MULTILINE)
    assert names
    assert len(set(names)) == len(names)
    assert set(names) <= {metric.name for metric in METRICS}


def test_limits_and_defaults_in_the_text_are_the_codes() -> None:
    assert f"{HOST}:{PORT}" in TEXT
    assert f"at most {MAX_REQUEST_BYTES // 1024} KiB" in TEXT
    assert f"at most {CONNECTION_SECONDS:.0f} s" in TEXT
    assert f"with {MAX_CONNECTIONS} connections open" in TEXT
    for status in set(Status) - {Status.LOOKING}:
        assert f"(`{status.value}`)" in section("When the agent does not look")
    unit = (ROOT / "gres-conf/hami-hpc-metrics.service.j2").read_text(encoding="utf-8")
    assert f"--listen {HOST}:{PORT}\n" in unit


def test_promtool_finds_nothing_wrong_with_the_exposition(tmp_path: Path) -> None:
    node = AgentNode(tmp_path)
    state = make_state(gpus=2, jobs=3)
    node.write(state._replace(jobs=(make_job(finding=("memory_over",)), *state.jobs[1:])))
    done = promtool("check", "metrics", stdin=expose(node.run_dir).text.decode())
    assert (done.returncode, done.stdout) == (0, "")


def test_promtool_would_find_what_is_wrong() -> None:
    wrong = "# HELP hami_hpc_x Bytes.\n# TYPE hami_hpc_x counter\nhami_hpc_x 1\n"
    done = promtool("check", "metrics", stdin=wrong)
    assert done.returncode != 0
    assert "_total" in done.stdout
