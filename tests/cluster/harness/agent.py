# SPDX-License-Identifier: Apache-2.0
"""What the cluster's agent found, from the lines that it printed."""

from __future__ import annotations

import json

from hami_hpc.core.agent_state import Event
from hami_hpc.core.watch import Kind

from .layout import Layout


def log_size(layout: Layout) -> int:
    """Returns the present end of the agent's output."""
    return (layout.log / "agent.out").stat().st_size


def events_since(layout: Layout, start: int) -> list[Event]:
    """Returns the findings that the agent printed after this end, each with its kind."""
    with (layout.log / "agent.out").open("rb") as file:
        file.seek(start)
        lines = file.read().decode().splitlines()
    events = [Event(**json.loads(line)) for line in lines if line.startswith("{")]
    return [event for event in events if event.kind in (*Kind, "disturbed")]
