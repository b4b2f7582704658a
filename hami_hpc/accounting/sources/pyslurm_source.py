# SPDX-License-Identifier: Apache-2.0
"""The one place that knows pyslurm: slurmdbd's records through libslurm, as the lines of ``sacct -P``.

pyslurm is optional, under another licence (GPL-2.0-only), and libslurm ends the process when it finds no
configuration. So it is imported in a process of its own: ``python -m hami_hpc.accounting.sources.pyslurm_source``,
which reads what is asked as JSON. Its memory (some KiB a job, see docs/accounting.md) goes back with it.
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
# The bounds of time where none is given. libslurm reads no earlier one than the first.
_FIRST_S, _LAST_S = 1_000_000, 4_102_444_800
_INSTALL = (
    "install the newest git tag of the release line that sacct --version names (22.05: v22.5.3, 24.11: v24.11.0): "
    "pip install git+https://github.com/PySlurm/pyslurm@TAG; or use --source sacct, which needs nothing"
)


@dataclass(frozen=True, slots=True)
class Request:
    """What the other process is asked for. jobs: numbers, or none for the window. clusters: as for sacct -M."""

    target: str
    jobs: tuple[int, ...]
    start_s: int
    end_s: int
    clusters: str


def fetch(period: Period, target: Path, clusters: str = "") -> Export:
    """As sacct.fetch: every run active in the period, kept in ``target``. Raises AccountingError when it fails."""
    return _run(Request(str(target), (), period.start_s, period.end_s, clusters))


def fetch_jobs(jobs: Sequence[int], target: Path, clusters: str = "") -> Export:
    """As sacct.fetch_jobs: jobs by number, whenever they ran. Raises AccountingError when it fails."""
    return _run(Request(str(target), tuple(jobs), 0, 0, clusters))


def _run(request: Request) -> Export:
    isolated = ["-I"] if sys.flags.isolated else []
    done = subprocess.run(
        [sys.executable, *isolated, "-m", "hami_hpc.accounting.sources.pyslurm_source"],
        input=json.dumps(asdict(request)),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        encoding="utf-8",
        errors="replace",
        check=False,
    )
    if done.returncode:
        message = done.stderr.strip().splitlines()
        raise AccountingError(f"pyslurm failed: {message[-1] if message else f'status {done.returncode}'}")
    return open_export(Path(request.target))


def import_pyslurm() -> ModuleType:
    try:
        import pyslurm
        import pyslurm.settings
    except ModuleNotFoundError as error:
        raise AccountingError(f"no module {error.name} in {sys.prefix}; {_INSTALL}") from error
    except Exception as error:  # an ImportError names the libslurm it was built for; other releases raise others
        raise AccountingError(f"it does not fit this machine's Slurm ({error}); {_INSTALL}") from error
    if not hasattr(pyslurm, "slurmdb_jobs"):
        raise AccountingError(f"pyslurm {pyslurm.__version__} has no slurmdb_jobs; {_INSTALL}")
    module: ModuleType = pyslurm
    return module


class ClusterJobs:
    """An Ask: calls for one cluster's jobs, since a number means another job in another cluster.

    A slurmdb_jobs keeps what an earlier call gave and a later one does not, so a connection serves only calls that
    give everything: those for jobs by number.
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
    """slurmdbd's names for TRES and QoS, deleted QoS among them."""
    deleted_too = pyslurm.db.QualityOfServiceFilter(with_deleted=True)
    try:
        tres = pyslurm.db.TrackableResources.load(name_is_key=False)
        qos = pyslurm.db.QualitiesOfService.load(deleted_too, name_is_key=False)
    except pyslurm.RPCError as error:
        raise AccountingError(f"slurmdbd does not answer ({error}); does sacctmgr show cluster?") from error
    except TypeError as error:
        raise AccountingError(f"pyslurm {pyslurm.__version__} has no TRES by number; use --source sacct") from error
    return Names(
        {int(number): str(one.type_and_name) for number, one in tres.items()},
        {int(number): str(one.name) for number, one in qos.items()},
    )


def _clusters(pyslurm: ModuleType, wanted: str) -> list[str]:
    """As sacct -M reads it: none is the one of slurm.conf, ``all`` every one that slurmdbd has."""
    if wanted.strip().lower() == "all":
        return sorted(pyslurm.slurmdb_clusters().get())
    return [name.strip() for name in wanted.split(",") if name.strip()] or [pyslurm.settings.LOCAL_CLUSTER]


def write(pyslurm: ModuleType, request: Request) -> None:
    """What the request asks for, into its target, as sacct -P prints it."""
    names = names_of(pyslurm)
    with Path(request.target).open("w", encoding="utf-8", errors="replace") as out:
        out.write(DELIMITER.join(ASKED) + "\n")
        for cluster in _clusters(pyslurm, request.clusters):
            ask = ClusterJobs(pyslurm, cluster)
            for run in printed(ask, names, request.jobs, request.start_s, request.end_s):
                out.write(DELIMITER.join(run[name].translate(_ONE_LINE) for name in ASKED) + "\n")


def main() -> int:
    """The other process. What went wrong is the last line on stderr."""
    asked: dict[str, Any] = json.load(sys.stdin)
    request = Request(asked["target"], tuple(asked["jobs"]), asked["start_s"], asked["end_s"], asked["clusters"])
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
