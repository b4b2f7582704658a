# SPDX-License-Identifier: Apache-2.0
"""What the cluster's agent found, from the lines that it printed."""

from __future__ import annotations

import json
from typing import Any

from hami_hpc.core.agent_state import Event
from hami_hpc.core.watch import Kind

from .layout import Layout


def log_size(layout: Layout, name: str = "agent") -> int:
    """Returns the present end of an agent's output."""
    return (layout.log / f"{name}.out").stat().st_size


def event_of(line: dict[str, Any]) -> Event:
    """Returns the event of a line; what a line leaves out is empty."""
    values: dict[str, Any] = {"job_id": 0, "gpu_uuid": "", "action": "", **line}
    return Event(**{name: value for name, value in values.items() if name in Event._fields})


def events_since(layout: Layout, start: int, name: str = "agent") -> list[Event]:
    """Returns the findings that the agent printed after this end, each with its kind."""
    with (layout.log / f"{name}.out").open("rb") as file:
        file.seek(start)
        lines = file.read().decode().splitlines()
    events = [event_of(json.loads(line)) for line in lines if line.startswith("{")]
    return [event for event in events if event.kind in (*Kind, "disturbed")]
