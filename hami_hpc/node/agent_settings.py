# SPDX-License-Identifier: Apache-2.0
"""[agent] of the settings: how the agent watches, and what it does. Prolog and epilog do not import this."""

from __future__ import annotations

import grp
import pwd
from typing import NamedTuple

from hami_hpc.contract import constants as c
from hami_hpc.core.watch import Action, Kind, Limits
from hami_hpc.errors import NodeError
from hami_hpc.node.config import Settings, _Table

# No action here ends a program: a site turns that on (docs/agent.md).
DEFAULT_ACTIONS = {
    Kind.MEMORY_OVER: Action.WARN,
    Kind.UNCOUNTED: Action.LOG,  # memory shared by IPC, too, outlives the process that it was counted for
    Kind.NO_INTERPOSER: Action.WARN,
    Kind.TIME_OVER: Action.LOG,
    Kind.WRONG_GPU: Action.WARN,
    Kind.NO_GRANT: Action.LOG,
    Kind.NO_JOB: Action.LOG,
}
# A process of no job has no output to warn in and no job to fail.
ALLOWED = {kind: tuple(Action) for kind in Kind} | {
    Kind.NO_JOB: (Action.IGNORE, Action.LOG, Action.KILL, Action.DRAIN),
}


class AgentSettings(NamedTuple):
    """The table [agent], with defaults filled in."""

    period_ms: int
    group: int  # gid that may read the state file; -1: root only
    limits: Limits
    actions: dict[Kind, Action]


def read_agent(settings: Settings) -> AgentSettings:
    """Returns the agent's settings. Raises NodeError, with file, table and key, for whatever is wrong with them."""
    table = _Table(settings.path, "agent", dict(settings.agent or {}))
    period_ms = table.whole("period_ms", 1000, 200, 10_000)
    slack_mib = table.whole("memory_slack_mib", 64, 0, c.MEM_MIB_MAX)
    group = table.text("group", "")
    users = table.names("exempt_users", ("root",))
    actions = _Table(settings.path, "agent.actions", table.take("actions", {}))
    chosen = {
        kind: Action(actions.text(kind.value, DEFAULT_ACTIONS[kind].value, [a.value for a in ALLOWED[kind]]))
        for kind in Kind
    }
    actions.close()
    table.close()
    return AgentSettings(
        period_ms=period_ms,
        group=_gid(settings.path, group) if group else -1,
        limits=Limits(slack_mib << 20, frozenset(_uid(settings.path, name) for name in users)),
        actions=chosen,
    )


def _gid(path: str, name: str) -> int:
    try:
        return grp.getgrnam(name).gr_gid
    except KeyError:
        raise NodeError(f"{path}, table [agent]: group = '{name[: c.GIVEN_MAX]}' does not exist on this node") from None


def _uid(path: str, name: str) -> int:
    try:
        return pwd.getpwnam(name).pw_uid
    except KeyError:
        raise NodeError(
            f"{path}, table [agent]: exempt_users has '{name[: c.GIVEN_MAX]}', who does not exist on this node"
        ) from None
