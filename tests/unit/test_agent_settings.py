# SPDX-License-Identifier: Apache-2.0
"""hami_hpc/node/agent_settings.py: the table [agent], its defaults, and a message for each wrong value."""

from __future__ import annotations

import grp
import pwd
from pathlib import Path

import pytest
from node_testbed import Node

from hami_hpc.core.watch import MIB, Action, Kind
from hami_hpc.errors import NodeError
from hami_hpc.node.agent_settings import ALLOWED, DEFAULT_ACTIONS, AgentSettings, read_agent

ACTIONS = '"ignore" or "log" or "warn" or "kill" or "fail" or "drain"'
NO_JOB = '"ignore" or "log" or "kill" or "drain"'
NOBODY = pwd.getpwuid(65534).pw_name


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node.make(tmp_path / "node", with_gpus=False)


def read(node: Node, text: str) -> AgentSettings:
    node.config.write_text(f"{node.config.read_text()}{text}\n")
    return read_agent(node.settings)


@pytest.mark.parametrize("text", ["", "[agent]", "[agent.actions]"])
def test_defaults(node: Node, text: str) -> None:
    own = read(node, text)
    assert (own.period_ms, own.group) == (1000, -1)
    assert own.limits == (64 * MIB, frozenset({0}))
    assert own.actions == DEFAULT_ACTIONS


def test_no_default_ends_a_program() -> None:
    assert DEFAULT_ACTIONS.keys() == set(Kind)
    assert set(DEFAULT_ACTIONS.values()) <= {Action.LOG, Action.WARN}


def test_all_of_it_can_be_set(node: Node) -> None:
    group = grp.getgrgid(0).gr_name
    actions = "\n".join(f'{kind.value} = "drain"' for kind in Kind)
    own = read(
        node,
        f'[agent]\nperiod_ms = 200\nmemory_slack_mib = 0\ngroup = "{group}"\nexempt_users = ["{NOBODY}"]\n'
        f"[agent.actions]\n{actions}",
    )
    assert own == (200, 0, (0, frozenset({65534})), dict.fromkeys(Kind, Action.DRAIN))


def test_nobody_needs_to_be_exempt(node: Node) -> None:
    assert read(node, "[agent]\nexempt_users = []").limits.exempt_uids == frozenset()


@pytest.mark.parametrize("kind", list(Kind))
@pytest.mark.parametrize("action", list(Action))
def test_each_kind_takes_the_actions_that_can_be_done(node: Node, kind: Kind, action: Action) -> None:
    text = f'[agent.actions]\n{kind.value} = "{action.value}"'
    if action in ALLOWED[kind]:
        assert read(node, text).actions == DEFAULT_ACTIONS | {kind: action}
    else:
        assert kind is Kind.NO_JOB
        with pytest.raises(NodeError, match="is not understood"):
            read(node, text)


@pytest.mark.parametrize("value", [200, 10_000])
def test_the_ends_of_the_period_are_allowed(node: Node, value: int) -> None:
    assert read(node, f"[agent]\nperiod_ms = {value}").period_ms == value


PERIOD = "period_ms = {} is not understood; allowed is a whole number from 200 to 10000"
SLACK = "memory_slack_mib = {} is not understood; allowed is a whole number from 0 to 16777216"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("period_ms = 199", PERIOD.format("'199'")),
        ("period_ms = 10001", PERIOD.format("'10001'")),
        ("period_ms = 1000.0", PERIOD.format("'1000.0'")),
        ("period_ms = true", PERIOD.format("'True'")),
        ('period_ms = "1000"', PERIOD.format("'1000'")),
        ("memory_slack_mib = -1", SLACK.format("'-1'")),
        ("memory_slack_mib = 99999999999", SLACK.format("'99999999999'")),
        ("memory_slack_mib = []", SLACK.format("'[]'")),
        ("group = 5", "group = '5' is not understood; allowed is a text"),
        ('group = "no such group"', "group = 'no such group' does not exist on this node"),
        ('exempt_users = "root"', "exempt_users = 'root' is not understood; allowed is a list of names"),
        ("exempt_users = [0]", "exempt_users = '[0]' is not understood; allowed is a list of names"),
        ('exempt_users = [""]', "exempt_users = \"['']\" is not understood; allowed is a list of names"),
        ('exempt_users = ["root", "no such user"]', "exempt_users has 'no such user', who does not exist on this node"),
        ("period = 5", "unknown key 'period'; did you mean period_ms?"),
        ("xyz = 5", "unknown key 'xyz'; known: period_ms, memory_slack_mib, group, exempt_users, actions"),
    ],
)
def test_a_wrong_value_is_refused_with_its_place(node: Node, text: str, message: str) -> None:
    with pytest.raises(NodeError) as caught:
        read(node, f"[agent]\n{text}")
    assert str(caught.value) == f"{node.config}, table [agent]: {message}"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('memory_over = "pause"', f"memory_over = 'pause' is not understood; allowed is {ACTIONS}"),
        ("uncounted = true", f"uncounted = 'True' is not understood; allowed is {ACTIONS}"),
        ('no_interposer = ""', f"no_interposer = '' is not understood; allowed is {ACTIONS}"),
        ('time_over = "LOG"', f"time_over = 'LOG' is not understood; allowed is {ACTIONS}"),
        ("wrong_gpu = []", f"wrong_gpu = '[]' is not understood; allowed is {ACTIONS}"),
        ("no_grant = 1", f"no_grant = '1' is not understood; allowed is {ACTIONS}"),
        ('no_job = "warn"', f"no_job = 'warn' is not understood; allowed is {NO_JOB}"),
        ('no_job = "fail"', f"no_job = 'fail' is not understood; allowed is {NO_JOB}"),
        ('memory_under = "log"', "unknown key 'memory_under'; did you mean memory_over?"),
    ],
)
def test_a_wrong_action_is_refused_with_its_place(node: Node, text: str, message: str) -> None:
    with pytest.raises(NodeError) as caught:
        read(node, f"[agent.actions]\n{text}")
    assert str(caught.value) == f"{node.config}, table [agent.actions]: {message}"


def test_actions_that_are_no_table_are_refused(node: Node) -> None:
    with pytest.raises(NodeError, match=r"table \[agent.actions\] is not a table"):
        read(node, '[agent]\nactions = "kill"')


def test_an_agent_that_is_no_table_is_refused(node: Node) -> None:
    node.config.write_text(f"agent = 5\n{node.config.read_text()}")
    with pytest.raises(NodeError, match=r"table \[agent\] is not a table"):
        read_agent(node.settings)
