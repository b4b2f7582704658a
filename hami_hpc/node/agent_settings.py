# SPDX-License-Identifier: Apache-2.0
"""[agent] of the settings: how the agent watches, and what it does. Prolog and epilog do not import this."""

from __future__ import annotations

import grp
import pwd
from typing import NamedTuple

from hami_hpc.contract import constants as c
from hami_hpc.core.watch import Action, Kind, Limits
from hami_hpc.errors import NodeError
from hami_hpc.node import fault_table
from hami_hpc.node.config import Settings, _Table
from hami_hpc.node.fault_table import HARMLESS, Actions, FaultAction, FaultPolicy, Whose
from hami_hpc.node.settings_lines import where

# No action here ends a program: a site turns that on (docs/agent.md).
DEFAULT_ACTIONS = {
    Kind.MEMORY_OVER: Action.WARN,
    Kind.UNCOUNTED: Action.LOG,  # memory shared by IPC, too, outlives the process that it was counted for
    Kind.NO_INTERPOSER: Action.WARN,
    Kind.TIME_OVER: Action.LOG,
    Kind.PROCESSES_OVER: Action.WARN,
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
    events_hooks: str = ""  # directory of the site's hooks; "": none
    faults: FaultPolicy = FaultPolicy()
    driver_limits: bool = True  # whether slices have their limits in the driver, where it has such limits


def read_agent(settings: Settings) -> AgentSettings:
    """Returns the agent's settings. Raises NodeError, with file, table and key, for whatever is wrong with them."""
    table = _Table(settings.path, "agent", dict(settings.agent or {}))
    period_ms = table.whole("period_ms", 1000, 200, 10_000)
    slack_mib = table.whole("memory_slack_mib", 64, 0, c.MEM_MIB_MAX)
    group = table.text("group", "")
    driver_limits = table.flag("driver_limits", True)
    users = table.names("exempt_users", ("root",))
    actions = _Table(settings.path, "agent.actions", table.take("actions", {}))
    chosen = {
        kind: Action(actions.text(kind.value, DEFAULT_ACTIONS[kind].value, [a.value for a in ALLOWED[kind]]))
        for kind in Kind
    }
    actions.close()
    faults = _faults(_Table(settings.path, "agent.faults", table.take("faults", {})))
    hooks = "" if table.left.get("events_hooks", "") == "" else table.directory_or_file("events_hooks", "/")
    table.take("events_hooks")
    table.close()
    return AgentSettings(
        period_ms=period_ms,
        group=_gid(settings.path, group) if group else -1,
        limits=Limits(slack_mib << 20, frozenset(_uid(settings.path, name) for name in users)),
        actions=chosen,
        events_hooks=hooks,
        faults=faults,
        driver_limits=driver_limits,
    )


def _faults(table: _Table) -> FaultPolicy:
    """Returns the choices of [agent.faults]: a key is whose fault, `xid_N`, or a condition of the fault table."""
    by_code: dict[str, Actions] = {}
    by_whose: dict[Whose, Actions] = {}
    conditions = [name for name in fault_table.table() if not name.isdecimal()]
    for key in list(table.left):
        code = key.removeprefix("xid_")
        names = table.names(key, (), tuple(FaultAction))
        chosen = frozenset(map(FaultAction, names))
        if key in tuple(Whose):
            whose = Whose(key)
            by_whose[whose] = chosen
        elif (key.startswith("xid_") and code.isdecimal() and len(code) <= 6) or key in conditions:
            code = key if key in conditions else str(int(code))
            whose = fault_table.fault_of(code).whose
            by_code[code] = chosen
        else:
            known = f"{', '.join(Whose)}, xid_N, {', '.join(conditions)}"
            raise NodeError(f"{where(table.path, table.name, key)}: unknown key {key[: c.GIVEN_MAX]!r}; known: {known}")
        if whose is Whose.APPLICATION and chosen - HARMLESS:
            table.refuse(
                key,
                list(names),
                '"log" and "comment": a program can cause this at will, and would make its run free or take the GPU '
                "out of service",
            )
    return FaultPolicy(by_code, by_whose)


def _gid(path: str, name: str) -> int:
    try:
        return grp.getgrnam(name).gr_gid
    except KeyError:
        raise NodeError(
            f"{where(path, 'agent', 'group')}: group = '{name[: c.GIVEN_MAX]}' does not exist on this node"
        ) from None


def _uid(path: str, name: str) -> int:
    try:
        return pwd.getpwnam(name).pw_uid
    except KeyError:
        raise NodeError(
            f"{where(path, 'agent', 'exempt_users')}: exempt_users has '{name[: c.GIVEN_MAX]}', who does not exist on "
            "this node"
        ) from None
