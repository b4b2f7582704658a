# SPDX-License-Identifier: Apache-2.0
"""Reads slurmdbd's records through pyslurm and writes them as lines of ``sacct -P``. The only module that uses pyslurm.

pyslurm is optional and under another licence (GPL-2.0-only), and libslurm ends the process when it finds no
configuration. So pyslurm is imported only in a process of its own, ``python -m
hami_hpc.accounting.sources.pyslurm_source``, which reads its request as JSON. Its memory (some KiB per job, see
docs/accounting.md) is freed when that process ends.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from hami_hpc.accounting.errors import AccountingError
from hami_hpc.accounting.sources.pyslurm_runs import Job, Names, printed
from hami_hpc.accounting.sources.sacct import ASKED, DELIMITER, Export, open_export
from hami_hpc.accounting.times import Period

_ONE_LINE = str.maketrans({DELIMITER: "?", "\n": "?", "\r": "?"})
# The bounds of time when none is given. libslurm does not accept an earlier time than the first.
_FIRST_S, _LAST_S = 1_000_000, 4_102_444_800
_INSTALL = (
    "install the newest git tag of the release line that sacct --version names (22.05: v22.5.3, 24.11: v24.11.0): "
    "pip install git+https://github.com/PySlurm/pyslurm@TAG; or use --source sacct, which needs no pyslurm"
)


@dataclass(frozen=True, slots=True)
class Request:
    """The request to the other process. jobs: numbers, or empty for all of the window. clusters: as for sacct -M."""

    target: str
    jobs: tuple[int, ...]
    start_s: int
    end_s: int
    clusters: str


def fetch(period: Period, target: Path, clusters: str = "") -> Export:
    """Writes every run active in the period to ``target``, as sacct.fetch. Raises AccountingError when it fails."""
    return _run(Request(str(target), (), period.start_s, period.end_s, clusters))


def fetch_jobs(jobs: Sequence[int], target: Path, clusters: str = "") -> Export:
    """Writes all runs of these jobs to ``target``, as sacct.fetch_jobs. Raises AccountingError when it fails."""
    return _run(Request(str(target), tuple(jobs), 0, 0, clusters))


def _run(request: Request) -> Export:
    isolated = ["-I"] if sys.flags.isolated else []
    process = subprocess.run(
        [sys.executable, *isolated, "-m", "hami_hpc.accounting.sources.pyslurm_source"],
        input=json.dumps(asdict(request)),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        encoding="utf-8",
        errors="replace",
        check=False,
    )
    if process.returncode:
        message = process.stderr.strip().splitlines()
        raise AccountingError(f"pyslurm failed: {message[-1] if message else f'status {process.returncode}'}")
    return open_export(Path(request.target))


def import_pyslurm() -> ModuleType:
    """Imports pyslurm. Raises AccountingError when it is missing or not built for this machine's Slurm."""
    try:
        import pyslurm
        import pyslurm.settings
    except ModuleNotFoundError as error:
        raise AccountingError(f"no module {error.name} in {sys.prefix}; {_INSTALL}") from error
    except Exception as error:  # an ImportError names the libslurm it was built for; other releases raise other errors
        raise AccountingError(f"it was not built for this machine's Slurm ({error}); {_INSTALL}") from error
    if not hasattr(pyslurm, "slurmdb_jobs"):
        raise AccountingError(f"pyslurm {pyslurm.__version__} has no slurmdb_jobs; {_INSTALL}")
    module: ModuleType = pyslurm
    return module


class ClusterJobs:
    """An Ask for the jobs of one cluster, because job numbers are unique only within a cluster.

    A slurmdb_jobs object keeps the arguments of an earlier call that a later call does not pass. So it is reused only
    for calls that pass all of them, those for jobs by number.
    """

    def __init__(self, pyslurm: ModuleType, name: str) -> None:
        self._pyslurm = pyslurm
        self._name = name
        self._by_number: Any = pyslurm.slurmdb_jobs()

    def __call__(self, jobs: Sequence[str], start_s: int, end_s: int, flags: int) -> Mapping[int, Job]:
        connection = self._by_number if jobs else self._pyslurm.slurmdb_jobs()
        try:
            answer: Mapping[int, Job] = connection.get(
                jobids=list(jobs),
                starttime=f"uts{start_s or _FIRST_S}".encode(),
                endtime=f"uts{end_s or _LAST_S}".encode(),
                flags=flags,
                clusters=[self._name],
            )
        except ValueError as error:  # (text, number) of libslurm's errno, whatever set it last
            raise AccountingError(
                f"slurmdbd does not answer for cluster {self._name} ({error.args[0]!r}); try sacctmgr show cluster"
            ) from error
        return answer


def names_of(pyslurm: ModuleType) -> Names:
    """Returns slurmdbd's names for TRES and QoS, including deleted QoS. Raises AccountingError."""
    deleted_too = pyslurm.db.QualityOfServiceFilter(with_deleted=True)
    try:
        tres = pyslurm.db.TrackableResources.load(name_is_key=False)
        qos = pyslurm.db.QualitiesOfService.load(deleted_too, name_is_key=False)
    except pyslurm.RPCError as error:
        raise AccountingError(f"slurmdbd does not answer ({error}); try sacctmgr show cluster") from error
    except TypeError as error:
        raise AccountingError(f"pyslurm {pyslurm.__version__} has no TRES by number; use --source sacct") from error
    return Names(
        {int(number): str(entry.type_and_name) for number, entry in tres.items()},
        {int(number): str(entry.name) for number, entry in qos.items()},
    )


def _clusters(pyslurm: ModuleType, wanted: str) -> list[str]:
    """Returns the clusters as sacct -M does: for "" the one of slurm.conf, for ``all`` those that slurmdbd has."""
    if wanted.strip().lower() == "all":
        return sorted(pyslurm.slurmdb_clusters().get())
    return [name.strip() for name in wanted.split(",") if name.strip()] or [pyslurm.settings.LOCAL_CLUSTER]


def write(pyslurm: ModuleType, request: Request) -> None:
    """Writes the requested runs to the request's target, as sacct -P prints them."""
    names = names_of(pyslurm)
    with Path(request.target).open("w", encoding="utf-8", errors="replace") as out:
        out.write(DELIMITER.join(ASKED) + "\n")
        for cluster in _clusters(pyslurm, request.clusters):
            ask = ClusterJobs(pyslurm, cluster)
            for run in printed(ask, names, request.jobs, request.start_s, request.end_s):
                out.write(DELIMITER.join(run[name].translate(_ONE_LINE) for name in ASKED) + "\n")


def main() -> int:
    """Runs in the other process. Prints an error as the last line of stderr."""
    fields: dict[str, Any] = json.load(sys.stdin)
    request = Request(fields["target"], tuple(fields["jobs"]), fields["start_s"], fields["end_s"], fields["clusters"])
    try:
        write(import_pyslurm(), request)
    except AccountingError as error:
        print(error, file=sys.stderr)
        return 1
    except OSError as error:
        print(f"cannot write {request.target}: {error.strerror}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
