# SPDX-License-Identifier: Apache-2.0
"""accounting/ingest and month, which timers run: the fetch from all nodes, with stand-ins for other programs."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from node_testbed import ROOT

SINFO = "#!/bin/sh\nseq --format 'gpu%03g' 200\nseq --format 'gpu%03g' 200\n"
# Nodes whose number ends in 7 are down. The last argument is the directory, the one before it NODE:PATH.
RSYNC = """#!/bin/sh
while [ $# -gt 2 ]; do shift; done
node=${1%%:*}
echo "$RSYNC_RSH" >"$LOG/rsh"
case $node in
*7) exit 255 ;;
esac
mkdir -p "$2" && echo "{}" >"$2/1.json"
"""
HAMI_HPC = '#!/bin/sh\necho "$*" >>"$LOG/calls"\numask >>"$LOG/calls"\n'


@pytest.fixture
def site(tmp_path: Path) -> Path:
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, text in (("sinfo", SINFO), ("rsync", RSYNC), ("hami-hpc", HAMI_HPC)):
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    return tmp_path


def ingest(site: Path, **more: str) -> subprocess.CompletedProcess[str]:
    environment = {
        "PATH": f"{site}/bin:{os.environ['PATH']}",
        "HAMI_HPC_COLLECTED": str(site / "collected"),
        "LOG": str(site),
        **more,
    }
    command = [str(ROOT / "accounting" / "ingest"), "--since", "2026-01-01"]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def test_records_of_all_nodes_are_fetched_and_those_that_are_down_are_named_in_one_line(site: Path) -> None:
    (site / "bin" / "scontrol").write_text('#!/bin/sh\n[ "$1 $2" = "show hostlist" ] && echo "list of $3"\n')
    (site / "bin" / "scontrol").chmod(0o755)
    done = ingest(site)
    assert done.returncode == 0, done.stderr
    down = {f"gpu{number:03}" for number in range(7, 201, 10)}
    assert {path.name for path in (site / "collected").iterdir()} == {f"gpu{n:03}" for n in range(1, 201)} - down
    assert done.stderr == (
        "ingest: nodes that could not be asked for their usage records, which stay there until next time: "
        f"list of {','.join(sorted(down))}\n"
    )
    calls = (site / "calls").read_text().splitlines()
    assert calls[::2] == [
        f"collect-usage --quiet --input {site}/collected --remove",
        "ingest --quiet --since 2026-01-01",
    ]
    assert (site / "collected").stat().st_mode & 0o077 == 0


def test_a_question_for_help_fetches_nothing(site: Path) -> None:
    command = [str(ROOT / "accounting" / "ingest"), "--help"]
    environment = {"PATH": f"{site}/bin:{os.environ['PATH']}", "LOG": str(site)}
    subprocess.run(command, env=environment, check=True)
    assert (site / "calls").read_text().splitlines()[::2] == ["ingest --help"]
    assert not (site / "rsh").exists()


def test_month_makes_nothing_for_what_is_no_month(site: Path) -> None:
    for words in (["--help"], ["2026-1"], ["2026-10", "2026-11"], ["../../x"]):
        environment = {"PATH": f"{site}/bin:{os.environ['PATH']}", "LOG": str(site), "HAMI_HPC_REPORTS": f"{site}/out"}
        command = [str(ROOT / "accounting" / "month"), *words]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert (done.returncode, "allowed is a month such as" in done.stderr) == (2, True)
        assert not (site / "out").exists()


def test_a_node_that_is_down_is_waited_for_ten_seconds_unless_the_site_says_otherwise(site: Path) -> None:
    ingest(site)
    assert (site / "rsh").read_text() == "ssh -o BatchMode=yes -o ConnectTimeout=10\n"
    ingest(site, RSYNC_RSH="rsh of the site")
    assert (site / "rsh").read_text() == "rsh of the site\n"
