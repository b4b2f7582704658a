# SPDX-License-Identifier: Apache-2.0
"""[qos.*] of the settings, the plan that brings slurmdbd to them, and slurm.conf's lines for them."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from node_testbed import ROOT

from hami_hpc.core import plain_toml
from hami_hpc.core import qos as core
from hami_hpc.core.qos import Command, Qos
from hami_hpc.errors import NodeError
from hami_hpc.node.config import parse_settings
from hami_hpc.node.qos_settings import read_qos
from hami_hpc.render import qos_lines
from hami_hpc.slurm.lines import Setting

OPTIONS = {field.option for field in core.FIELDS}
SLURM_22_05, SLURM_26_05 = 22 << 16 | 5 << 8 | 8, 26 << 16 | 5 << 8
FULL = """
[qos.be]
priority = 10
grace_time_s = 30
usage_factor = 0.5
max_jobs_per_user = 50
[qos.lc]
priority = 1000
preempt = ["be"]
preempt_mode = "requeue"
preempt_exempt_time_s = 60
usage_factor = 2
flags = ["NoDecay", "denyonlimit"]
max_wall = "1-00:00:00"
max_submit_jobs_per_user = "none"
[qos.lc.max_tres_per_user]
vgpu = 4
vgpu_mem = "40G"
vgpu_cores = 200
[qos.lc.grp_tres]
cpu = "none"
"""


def read(text: str) -> tuple[Qos, ...]:
    return read_qos(parse_settings({"version": 1, **tomllib.loads(text)}, "/x.toml"))


def test_the_settings_are_read_into_slurms_units_and_forms() -> None:
    be, lc = read(FULL)
    assert dict(be.values) == {
        ("priority", ""): "10",
        ("grace_time_s", ""): "30",
        ("usage_factor", ""): "0.5",
        ("max_jobs_per_user", ""): "50",
    }
    assert dict(lc.values) == {
        ("priority", ""): "1000",
        ("preempt", ""): "be",
        ("preempt_mode", ""): "requeue",
        ("preempt_exempt_time_s", ""): "00:01:00",
        ("usage_factor", ""): "2",
        ("flags", ""): "DenyOnLimit,NoDecay",
        ("max_wall", ""): "1-00:00:00",
        ("max_submit_jobs_per_user", ""): "none",
        ("max_tres_per_user", "gres/vgpu"): "4",
        ("max_tres_per_user", "gres/vgpu_mem"): "40960",
        ("max_tres_per_user", "gres/vgpu_cores"): "200",
        ("grp_tres", "cpu"): "none",
    }


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[qos.lc]\npreempts = ['be']", r"table \[qos.lc\]: unknown key 'preempts'; did you mean preempt\?"),
        (
            "[qos.lc]\npriority = -1",
            r"priority = '-1' is not understood; allowed is a whole number from 0 to 4294967293$",
        ),
        ("[qos.lc]\npriority = 'none'", "priority = 'none' is not understood"),
        ("[qos.lc]\npriority = true", "priority = 'True' is not understood"),
        ("[qos.lc]\nmax_jobs_per_user = 2.5", 'whole number from 0 to 4294967293, or "none"'),
        ("[qos.lc]\nusage_factor = nan", "a number from 0 to 1000000"),
        ("[qos.lc]\nusage_factor = '2'", "a number from 0 to 1000000"),
        ("[qos.lc]\ngrace_time_s = '30'", "a whole number of seconds"),
        ("[qos.lc]\npreempt_exempt_time_s = -1", "a whole number of seconds"),
        ("[qos.lc]\nmax_wall = '12h'", "whole minutes as a text such as"),
        ("[qos.lc]\nmax_wall = '0:30'", "whole minutes as a text such as"),
        ("[qos.lc]\nmax_wall = 90", "whole minutes as a text such as"),
        ("[qos.lc]\npreempt = 'be'", "a list of QoS, in small letters"),
        ("[qos.lc]\npreempt = ['BE']", "a list of QoS, in small letters"),
        ("[qos.lc]\npreempt = ['lc']", "a list of other QoS"),
        ("[qos.lc]\npreempt_mode = 'suspend'", 'allowed is "cluster" or "requeue" or "cancel"'),
        ("[qos.lc]\nflags = ['Fast']", "a list of: DenyOnLimit, "),
        ("[qos.lc]\nmax_tres_per_user = 4", r"table \[qos.lc.max_tres_per_user\] is not a table"),
        (
            "[qos.lc.max_tres_per_user]\nvgpus = 4",
            r"\[qos.lc.max_tres_per_user\]: unknown key 'vgpus'; did you mean vgpu",
        ),
        ("[qos.lc.max_tres_per_user]\nvgpu_mem = '40'", 'a whole number or a size such as "40G", or "none"'),
        ("[qos.lc.max_tres_per_user]\nvgpu_mem = '50%'", 'a whole number or a size such as "40G", or "none"'),
        ("[qos.lc.max_tres_per_user]\nvgpu_mem = '4G,cores=3'", "is not understood"),
        ("[qos.lc.max_tres_per_user]\nvgpu = '4'", 'a whole number, or "none"'),
        ("[qos.LC]\npriority = 1", "'LC' is no name of a QoS: small letters"),
        ("[qos]\nlc = 3", r"table \[qos.lc\] is not a table"),
        ("qos = 3", r"\[qos\] is not a table"),
        (
            "[qos.a]\npreempt = ['b']\n[qos.b]\npreempt = ['c']\n[qos.c]\npreempt = ['a']",
            "in a circle: a -> b -> c -> a",
        ),
    ],
)
def test_a_wrong_table_is_refused_with_file_table_and_key(text: str, said: str) -> None:
    with pytest.raises(NodeError, match=said) as caught:
        read(text)
    assert "/x.toml" in str(caught.value)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90", 5400), ("1:30", 90), ("01:30:05", 5405), ("1-0", 86400), ("2-03:04", 183840), ("1-00:00:01", 86401)],
)
def test_times_are_read_as_slurm_reads_them(text: str, seconds: int) -> None:
    assert core.time_seconds(text) == seconds
    assert core.time_seconds(core.time_text(seconds)) == seconds


@pytest.mark.parametrize("text", ["", "x", "1:2:3:4", "-1", "1-", "UNLIMITED", "1.5", "\u0661"])
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is no time"):
        core.time_seconds(text)


# ------------------------------------------------------------------------------------------------------ the plan


class Slurmdbd:
    """Does what sacctmgr's commands do, and refuses what slurmdbd refuses. Rows are as `sacctmgr list qos` has them."""

    def __init__(self, **preempt: Sequence[str]) -> None:
        self.rows: dict[str, dict[str, str]] = {}
        for name in preempt:
            self.add(name)
        for name, names in preempt.items():
            self.rows[name]["Preempt"] = ",".join(names)

    def add(self, name: str) -> None:
        unset = {"Name": name, "Priority": "0", "GraceTime": "00:00:00", "UsageFactor": "1.000000"}
        self.rows[name] = dict.fromkeys(core.COLUMNS, "") | unset | {"PreemptMode": "cluster"}

    def present(self) -> dict[str, Qos]:
        return {name: core.read_present(row) for name, row in self.rows.items()}

    def run(self, command: Command) -> None:
        verb, what, *words = command
        assert what == "qos"
        if verb == "add":
            name = words.pop(0).removeprefix("name=")
            assert name not in self.rows, "sacctmgr ends with status 1 when there is nothing to add"
            self.add(name)
        else:
            assert (verb, words.pop(0)) == ("modify", "where")
            name = words.pop(0).removeprefix("name=")
            assert words.pop(0) == "set"
        assert words or verb == "add"
        for word in words:
            self.set(self.rows[name], word)
        preempts = {row["Name"]: core.split(row["Preempt"]) for row in self.rows.values()}
        assert not any(core._circle(preempts, start) for start in preempts), "Preemption loop detected"

    def set(self, row: dict[str, str], word: str) -> None:
        option, _, value = word.partition("=")
        field = next(entry for entry in core.FIELDS if entry.option == option.rstrip("+-"))
        if field.kind is core.Kind.TRES:
            held = dict(item.split("=") for item in row[field.column].split(",") if item)
            held |= dict(item.split("=") for item in value.split(","))
            row[field.column] = ",".join(f"{tres}={count}" for tres, count in held.items() if count != "-1")
        elif field.key == "preempt":
            assert option == "Preempt", "+= and -= leave slurmdbd 22.05 with a wrong list"
            assert all(name in self.rows for name in core.split(value))
            row["Preempt"] = value
        elif field.kind is core.Kind.SECONDS:
            row[field.column] = core.time_text(int(value))
        else:
            row[field.column] = "" if value == "-1" else value


def bring(slurmdbd: Slurmdbd, wanted: Sequence[Qos]) -> list[Command]:
    """Applies the plan; afterwards nothing is left to do."""
    planned = core.plan(wanted, slurmdbd.present())
    for command in planned:
        slurmdbd.run(command)
    assert core.differences(wanted, slurmdbd.present()) == []
    assert core.plan(wanted, slurmdbd.present()) == []
    return planned


def test_from_nothing_each_qos_is_made_and_preemption_is_last() -> None:
    planned = bring(Slurmdbd(), read(FULL))
    assert [core.line(command) for command in planned] == [
        "sacctmgr --immediate add qos name=be Priority=10 GraceTime=30 UsageFactor=0.5 MaxJobsPerUser=50",
        "sacctmgr --immediate add qos name=lc Priority=1000 PreemptMode=requeue PreemptExemptTime=00:01:00 "
        "UsageFactor=2 Flags=DenyOnLimit,NoDecay MaxWall=1-00:00:00 "
        "MaxTRESPerUser=gres/vgpu=4,gres/vgpu_mem=40960,gres/vgpu_cores=200",
        "sacctmgr --immediate modify qos where name=lc set Preempt=be",
    ]


def test_only_what_differs_is_written_and_other_limits_stay() -> None:
    slurmdbd = Slurmdbd(normal=(), be=(), lc=("be",))
    bring(slurmdbd, read(FULL))
    slurmdbd.rows["lc"] |= {"GrpJobs": "7", "Priority": "3", "MaxTRESPU": "cpu=9,gres/vgpu=5,gres/vgpu_mem=40960"}
    assert bring(slurmdbd, read(FULL)) == [
        ("modify", "qos", "where", "name=lc", "set", "Priority=1000", "MaxTRESPerUser=gres/vgpu=4,gres/vgpu_cores=200")
    ]
    assert slurmdbd.rows["lc"]["GrpJobs"] == "7"
    assert slurmdbd.rows["lc"]["MaxTRESPU"].startswith("cpu=9,")
    assert slurmdbd.rows["normal"]["Priority"] == "0"


def test_a_new_qos_gets_no_words_for_what_it_does_not_have() -> None:
    wanted = read('[qos.lc]\nflags=[]\nmax_wall="none"\npreempt=[]')
    (command,) = bring(Slurmdbd(), wanted)
    assert command == ("add", "qos", "name=lc")


def test_none_takes_a_limit_away() -> None:
    slurmdbd = Slurmdbd(lc=())
    slurmdbd.rows["lc"] |= {"MaxJobsPU": "3", "MaxWall": "01:00:00", "Flags": "NoDecay", "GrpTRES": "cpu=4,node=2"}
    wanted = read('[qos.lc]\nmax_jobs_per_user="none"\nmax_wall="none"\nflags=[]\ngrp_tres={cpu="none"}')
    assert bring(slurmdbd, wanted) == [
        (*("modify", "qos", "where", "name=lc", "set"), "Flags=-1", "MaxWall=-1", "GrpTRES=cpu=-1", "MaxJobsPerUser=-1")
    ]
    assert slurmdbd.rows["lc"]["GrpTRES"] == "node=2"


def test_who_preempts_whom_can_be_turned_round_although_slurmdbd_refuses_circles() -> None:
    slurmdbd = Slurmdbd(a=("b", "c"), b=("c",), c=())
    bring(slurmdbd, read("[qos.a]\npreempt=[]\n[qos.b]\npreempt=['a']\n[qos.c]\npreempt=['b']"))
    assert slurmdbd.rows["c"]["Preempt"] == "b"


@st.composite
def preemptions(draw: st.DrawFn) -> dict[str, list[str]]:
    """Who preempts whom among four QoS, without a circle: each only such as come later in some order."""
    order = draw(st.permutations("abcd"))
    later = {name: order[index + 1 :] for index, name in enumerate(order)}
    return {name: sorted(other for other in later[name] if draw(st.booleans())) for name in order}


@given(preemptions(), preemptions())
def test_any_order_of_preemption_is_reached_from_any_other(
    before: dict[str, list[str]], after: dict[str, list[str]]
) -> None:
    wanted = [Qos(name, {("preempt", ""): core.joined(names)}) for name, names in after.items()]
    bring(Slurmdbd(**before), wanted)


def test_a_circle_with_a_qos_that_only_slurmdbd_has_is_refused_before_anything_is_done() -> None:
    wanted = read("[qos.lc]\npreempt = ['be']")
    present = Slurmdbd(lc=(), be=("lc",)).present()
    with pytest.raises(NodeError, match="circle: lc -> be -> lc"):
        core.check_circles(wanted, present, "/x.toml")
    core.check_names(wanted, present, "/x.toml")
    with pytest.raises(NodeError, match=r"slurmdbd has no QoS 'be' to preempt; add \[qos.be\]"):
        core.check_names(wanted, {}, "/x.toml")


def test_what_sacctmgr_prints_in_another_form_is_named() -> None:
    row = Slurmdbd(lc=()).rows["lc"] | {"GraceTime": "soon"}
    with pytest.raises(NodeError, match="prints GraceTime of QoS lc as 'soon'"):
        core.read_present(row)


# --------------------------------------------------------------------------------------------------- slurm.conf


def lines(
    wanted: Sequence[Qos], version: int = SLURM_22_05, site: dict[str, str] | None = None
) -> list[tuple[str, ...]]:
    pairs = enumerate((site or {}).items(), 1)
    given = {key.lower(): [Setting(value, f"slurm.conf, line {number}")] for number, (key, value) in pairs}
    return [(merge.what, *merge.lines) for merge in qos_lines.merge_lines(wanted, given, version, "slurm.conf")]


def test_a_site_without_anything_gets_all_lines() -> None:
    assert lines(read(FULL)) == [
        (
            "slurm.conf: add:",
            "AccountingStorageEnforce=associations,limits,qos",
            "PreemptType=preempt/qos",
            "PreemptMode=REQUEUE",
            "SchedulerParameters=preempt_youngest_first,preempt_strict_order,preempt_reorder_count=10",
        )
    ]
    assert lines(read(FULL), SLURM_26_05)[0][-1] == "PreemptParameters=youngest_first,strict_order,reorder_count=10"


def test_the_example_in_the_document_comes_to_the_lines_that_it_shows() -> None:
    text = (ROOT / "docs" / "qos.md").read_text(encoding="utf-8")
    example = text.partition("\n## An example\n")[2].split("```toml\n")[1].split("```")[0]
    assert plain_toml.read(example) == tomllib.loads(example), "a prolog reads it without tomllib"
    shown = text.split("```text\n")[1].split("```")[0]
    ((_, *printed),) = lines(read(example))
    assert shown.splitlines() == printed
    assert f"`{lines(read(example), SLURM_26_05)[0][-1]}`" in text


def test_every_key_is_in_the_document() -> None:
    text = (ROOT / "docs" / "qos.md").read_text(encoding="utf-8")
    rows = [line for line in text.partition("\n## The settings\n")[2].splitlines() if line.startswith("| `")]
    keys = [key for row in rows for key in re.findall(r"`(\w+)`", row.split("|")[1]) if key in core.BY_KEY]
    assert sorted(keys) == sorted(core.BY_KEY)
    options = [name for row in rows for name in re.findall(r"\w+", row.split("|")[2]) if name in OPTIONS]
    assert sorted(options) == sorted(OPTIONS)


def test_what_a_site_has_is_kept_and_joined() -> None:
    site = {"AccountingStorageEnforce": "safe", "PreemptType": "preempt/partition_prio", "PreemptMode": "SUSPEND,GANG"}
    site |= {"SchedulerParameters": "bf_interval=60,preempt_reorder_count=2", "JobRequeue": "0"}
    assert lines(read(FULL), site=site) == [
        (
            "slurm.conf, line 1: instead of AccountingStorageEnforce=safe write:",
            "AccountingStorageEnforce=safe,qos",
        ),
        ("slurm.conf, line 2: instead of PreemptType=preempt/partition_prio write:", "PreemptType=preempt/qos"),
        ("slurm.conf, line 3: instead of PreemptMode=SUSPEND,GANG write:", "PreemptMode=REQUEUE"),
        ("slurm.conf, line 5: instead of JobRequeue=0 write:", "JobRequeue=1"),
        (
            "slurm.conf, line 4: instead of SchedulerParameters=bf_interval=60,preempt_reorder_count=2 write:",
            "SchedulerParameters=bf_interval=60,preempt_youngest_first,preempt_strict_order,preempt_reorder_count=10",
        ),
    ]


@pytest.mark.parametrize("enforce", ["all", "qos,limits", "associations,limits,qos", "safe,qos", "QOS,Limits"])
def test_nothing_is_left_where_all_is_there(enforce: str) -> None:
    parameters = "preempt_youngest_first,preempt_strict_order,preempt_reorder_count=64"
    site = {"PreemptType": "preempt/qos", "PreemptMode": "CANCEL", "SchedulerParameters": parameters}
    site |= {"AccountingStorageEnforce": enforce, "JobRequeue": "1"}
    assert lines(read(FULL), site=site) == []


def test_without_preemption_or_limits_slurm_conf_needs_neither() -> None:
    assert lines(read("[qos.lc]\npriority = 5")) == [("slurm.conf: add:", "AccountingStorageEnforce=associations,qos")]
    assert lines(()) == []
    assert qos_lines.remarks(read("[qos.lc]\npriority = 5"), {}) != []
    assert qos_lines.remarks(read("[qos.lc]\npriority = 0"), {}) == []


def test_a_comparison_shows_what_the_settings_name_and_what_is_set_in_slurmdbd() -> None:
    wanted = [Qos("be", {("priority", ""): "10", ("max_tres_per_user", "gres/vgpu"): "4"})]
    present = {
        "normal": Qos("normal", {("priority", ""): "0", ("usage_factor", ""): "1", ("max_wall", ""): "1-00:00:00"}),
        "be": Qos("be", {("priority", ""): "20", ("grace_time_s", ""): "30", ("preempt", ""): ""}),
    }
    rows = core.compare(wanted, present)
    shown = {(row.qos, row.field, row.tres): (row.settings, row.slurmdbd, row.differs) for row in rows}
    option = {field.key: field.option for field in core.FIELDS}
    assert shown == {
        ("be", option["priority"], ""): ("10", "20", True),
        ("be", option["grace_time_s"], ""): (None, "30", False),
        ("be", option["max_tres_per_user"], "gres/vgpu"): ("4", core.NONE, True),
        ("normal", option["max_wall"], ""): (None, "1-00:00:00", False),
    }
    assert [row.qos for row in rows] == ["be"] * 3 + ["normal"], "those of the settings come first"
    absent = core.compare(wanted, {})
    assert [(row.settings, row.slurmdbd) for row in absent] == [("10", None), ("4", None)]
    assert core.compare([], {"be": Qos("be", {("priority", ""): "10"})})[0].slurmdbd == "10"
