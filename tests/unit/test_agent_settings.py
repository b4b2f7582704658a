# SPDX-License-Identifier: Apache-2.0
"""hami_hpc/node/agent_settings.py: the table [agent], its defaults, and a message for each wrong value."""

from __future__ import annotations

import grp
import pwd
import re
from pathlib import Path

import pytest
from node_testbed import Node

from hami_hpc.core.watch import MIB, Action, Kind
from hami_hpc.errors import NodeError
from hami_hpc.node.agent_settings import ALLOWED, DEFAULT_ACTIONS, AgentSettings, read_agent
from hami_hpc.node.fault_table import FaultAction, Whose, fault_of, table

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
    assert own[:4] == (200, 0, (0, frozenset({65534})), dict.fromkeys(Kind, Action.DRAIN))


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
        (
            "xyz = 5",
            "unknown key 'xyz'; known: period_ms, memory_slack_mib, group, driver_limits, exempt_users, actions, "
            "faults, events_hooks",
        ),
    ],
)
def test_a_wrong_value_is_refused_with_its_place(node: Node, text: str, message: str) -> None:
    with pytest.raises(NodeError) as caught:
        read(node, f"[agent]\n{text}")
    assert re.fullmatch(rf"{node.config}, line \d+, table \[agent\]: {re.escape(message)}", str(caught.value))


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
    assert re.fullmatch(rf"{node.config}, line \d+, table \[agent.actions\]: {re.escape(message)}", str(caught.value))


def test_actions_that_are_no_table_are_refused(node: Node) -> None:
    with pytest.raises(NodeError, match=r"table \[agent.actions\] is not a table"):
        read(node, '[agent]\nactions = "kill"')


def test_an_agent_that_is_no_table_is_refused(node: Node) -> None:
    node.config.write_text(f"agent = 5\n{node.config.read_text()}")
    with pytest.raises(NodeError, match=r"table \[agent\] is not a table"):
        read_agent(node.settings)


def test_faults_can_be_chosen_by_code_and_by_whose_they_are(node: Node) -> None:
    text = '[agent.faults]\nhardware = ["log"]\nxid_48 = ["requeue"]\ngpu_lost = []\ndriver = ["drain"]\nxid_13 = []'
    policy = read(node, text).faults
    codes = ("79", "48", "gpu_lost", "119", "13", "31", "9999")
    actions = {code: sorted(policy.actions(fault_of(code))) for code in codes}
    assert actions == {
        "79": ["log"],
        "48": ["requeue"],
        "gpu_lost": [],
        "119": ["drain"],
        "13": [],
        "31": ["comment", "log"],
        "9999": ["comment", "log"],
    }


@pytest.mark.parametrize("key", ["application", "xid_13", "xid_31", "xid_43", "thermal_slowdown", "power_brake"])
@pytest.mark.parametrize("action", ["requeue", "unbilled", "drain"])
def test_what_a_program_can_cause_frees_and_drains_nothing(node: Node, key: str, action: str) -> None:
    with pytest.raises(NodeError, match="a program can cause this at will"):
        read(node, f'[agent.faults]\n{key} = ["log", "{action}"]')


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("xid_x = []", "unknown key 'xid_x'; known: application, hardware, driver, unknown, xid_N, gpu_lost, "),
        ("13 = []", "unknown key '13'"),
        ('xid_79 = ["kill"]', "xid_79 = 'kill' is not understood; allowed is a list of: log, comment, requeue"),
        ('xid_79 = "drain"', "allowed is a list of names"),
    ],
)
def test_a_wrong_fault_is_refused_with_what_is_known(node: Node, line: str, text: str) -> None:
    with pytest.raises(NodeError, match=re.escape(text)):
        read(node, f"[agent.faults]\n{line}")


def test_by_default_only_hardware_that_needs_a_reset_is_drained_and_the_table_is_sound() -> None:
    harmful = {FaultAction.DRAIN, FaultAction.UNBILLED, FaultAction.REQUEUE}
    for fault in table().values():
        assert fault.actions & harmful == set() or fault.whose is Whose.HARDWARE
        assert FaultAction.LOG in fault.actions
        assert fault.xid == int(fault.code) if fault.code.isdecimal() else fault.xid in (0, 48, 79)
        if FaultAction.DRAIN in fault.actions:
            assert fault.xid > 0
    assert {fault.code for fault in table().values() if FaultAction.DRAIN in fault.actions} == {
        *("48", "62", "64", "74", "79", "95", "110", "136", "140", "143", "156", "gpu_lost", "ecc_double")
    }
    assert fault_of("79").title == "Xid 79: GPU has fallen off the bus"


@pytest.mark.parametrize(("value", "text"), [('"hooks"', "an absolute path"), ("3", "is not understood")])
def test_hooks_are_a_directory(node: Node, value: str, text: str) -> None:
    assert read(node, '[agent]\nevents_hooks = "/etc/hooks"').events_hooks == "/etc/hooks"
    node.config.write_text(node.config.read_text().replace('"/etc/hooks"', value))
    with pytest.raises(NodeError, match=text):
        read(node, "")
    node.config.write_text(node.config.read_text().replace(f"events_hooks = {value}", ""))
    assert read(node, "").events_hooks == ""
