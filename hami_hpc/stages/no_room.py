# SPDX-License-Identifier: Apache-2.0
"""What the prolog does with a job for whose MIG instance its GPU has no place. Imported only then."""

from __future__ import annotations

from hami_hpc.node import mig_notes
from hami_hpc.node.config import Settings
from hami_hpc.stages import send_back as jobs

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping


def send_back(settings: Settings, environment: Mapping[str, str], job_id: int, reason: str) -> bool:
    """Counts the job and requeues it. Returns whether it was requeued."""
    mig_notes.count_no_room(settings.run_dir)
    return jobs.requeue(environment, job_id, reason)
