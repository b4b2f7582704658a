# SPDX-License-Identifier: Apache-2.0
"""From slurmd's environment to a grant: what is taken, what is refused and whose fault it is."""

from __future__ import annotations

import pytest

from hami_hpc.contract import constants as c
from hami_hpc.core.grant import (
    Grant,
    JobUnits,
    by_job,
    check_fits,
    is_class_name,
    make_grant,
    parse_id,
    parse_units,
    policy_of_job,
    same_slices,
    total,
    wants_vgpu,
    whole_gpus,
)
from hami_hpc.core.inventory import Gpu
from hami_hpc.errors import JobError, NodeError

JOB = {
    "SLURM_JOB_ID": "7",
    "SLURM_JOB_UID": "1000",
    "SLURM_JOB_GPUS": "3",
    c.ENV_VGPU: "1",
    c.ENV_CLASS: "lc",
    c.ENV_MEM_MIB: "8192",
    c.ENV_CORES: "50",
}
GRANT = Grant(7, 1000, "GPU-1", 0, 1000, "h200", 400, 50, "std", "cap", "share", 1)
LONG = "9" * 13
DIGIT = "²"  # isdigit() holds, int() refuses it


def test_the_units_are_those_of_the_environment() -> None:
    assert parse_units(JOB) == JobUnits(7, 1000, 3, "lc", 8192, 50)
    for name, most in ((c.ENV_MEM_MIB, c.MEM_MIB_MAX), (c.ENV_CORES, c.CORES_MAX)):
        assert str(most) in str(parse_units(JOB | {name: str(most)}))
        assert parse_units(JOB | {name: "1"}) is not None


@pytest.mark.parametrize(
    ("text", "count"), [("1", 1), ("3", 3), ("", 1), ("0", 1), ("-2", 1), (DIGIT, 1), ("9" * 9, 10**9 - 1), (LONG, 1)]
)
def test_a_job_has_as_many_nodes_as_slurm_says_and_one_where_it_says_none(text: str, count: int) -> None:
    units = parse_units(JOB | {"SLURM_JOB_NUM_NODES": text})
    assert units is not None
    assert units.node_count == count


@pytest.mark.parametrize("name", [c.ENV_VGPU, c.ENV_CLASS, c.ENV_MEM_MIB, c.ENV_CORES])
def test_any_one_variable_makes_it_a_vgpu_job_and_one_without_the_others_is_the_nodes_fault(name: str) -> None:
    assert wants_vgpu({name: "1"})
    others = ", ".join(other for other in (c.ENV_VGPU, c.ENV_CLASS, c.ENV_MEM_MIB, c.ENV_CORES) if other != name)
    with pytest.raises(NodeError, match=f"job 7 has a vgpu but {others} did not reach its prolog"):
        parse_units({"SLURM_JOB_ID": "7", name: "1"})


def test_a_job_without_vgpu_has_no_units() -> None:
    assert parse_units({"SLURM_JOB_ID": "7", c.ENV_VGPU: ""}) is None


@pytest.mark.parametrize(
    ("change", "error", "text"),
    [
        ({c.ENV_MEM_MIB: LONG}, NodeError, f"job 7: {c.ENV_MEM_MIB} is '{LONG}', not a number"),
        ({c.ENV_MEM_MIB: DIGIT}, NodeError, f"{c.ENV_MEM_MIB} is '{DIGIT}', not a number"),
        ({c.ENV_CORES: "x" * 500}, NodeError, f"is '{'x' * c.GIVEN_MAX}', not a number"),
        ({c.ENV_VGPU: "-1"}, NodeError, f"{c.ENV_VGPU} is '-1', not a number"),
        ({c.ENV_CLASS: "Gold"}, NodeError, f"job 7: {c.ENV_CLASS} is 'Gold', not the name of a class"),
        ({c.ENV_CLASS: "x" * 500}, NodeError, f"{c.ENV_CLASS} is '{'x' * c.GIVEN_MAX}', not"),
        ({c.ENV_MEM_MIB: "9" * 12}, JobError, f"job 7: {c.ENV_MEM_MIB}={'9' * 12} is out of range"),
        ({c.ENV_MEM_MIB: "0"}, JobError, f"{c.ENV_MEM_MIB}=0 is out of range; allowed is 1 to {c.MEM_MIB_MAX}"),
        ({c.ENV_CORES: str(c.CORES_MAX + 1)}, JobError, f"job 7: {c.ENV_CORES}=101 is out of range; allowed is 1 to"),
        ({"SLURM_JOB_GPUS": ""}, NodeError, "job 7 has a vgpu but no GPU"),
        ({"SLURM_JOB_GPUS": f"1,{DIGIT}"}, NodeError, f"job 7: SLURM_JOB_GPUS is '1,{DIGIT}', not a list"),
        ({"SLURM_JOB_GPUS": "x" * 500}, NodeError, f"'{'x' * c.GIVEN_MAX}', not a list of device indices"),
        ({"SLURM_JOB_GPUS": "1,2"}, JobError, "job 7 has 1 vgpu on 2 GPU"),
        ({"SLURM_JOB_GPUS": "1,2,3", c.ENV_VGPU: "2"}, JobError, "job 7 has 2 vgpu on 3 GPU"),
        ({c.ENV_VGPU: "0"}, JobError, "job 7 has 0 vgpu on this node; allowed is 1 to 16"),
        ({c.ENV_VGPU: "17"}, JobError, "job 7 has 17 vgpu on this node; allowed is 1 to 16"),
        ({c.ENV_VGPU: "2", c.ENV_MEM_MIB: "8191"}, JobError, f"{c.ENV_MEM_MIB}=8191 cannot be divided equally among 2"),
        ({c.ENV_VGPU: "2", c.ENV_CORES: "51"}, JobError, f"{c.ENV_CORES}=51 cannot be divided equally among 2 slices"),
        ({c.ENV_VGPU: "2", c.ENV_CORES: "202"}, JobError, "=202 for 2 slices is out of range; allowed is 2 to 200"),
        ({c.ENV_VGPU: "2", c.ENV_MEM_MIB: "0"}, JobError, f"{c.ENV_MEM_MIB}=0 for 2 slices is out of range"),
        ({"SLURM_JOB_UID": ""}, NodeError, "SLURM_JOB_UID is ''"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(change: dict[str, str], error: type[Exception], text: str) -> None:
    with pytest.raises((NodeError, JobError)) as caught:
        parse_units(JOB | change)
    assert type(caught.value) is error
    assert text in str(caught.value)


def test_without_the_list_of_gpus_the_job_has_none() -> None:
    with pytest.raises(NodeError, match="job 7 has a vgpu but no GPU"):
        parse_units({name: text for name, text in JOB.items() if name != "SLURM_JOB_GPUS"})


def test_ids_are_32_bit_numbers_and_zero_is_one() -> None:
    assert parse_id({"A": "4294967295"}, "A") == 4294967295
    assert parse_id({"A": "0"}, "A") == 0
    for text in ("4294967296", "", "-1", DIGIT, "1x"):
        with pytest.raises(NodeError, match=f"A is '{text}', not a number"):
            parse_id({"A": text}, "A")
    with pytest.raises(NodeError, match="A is '', not a number"):
        parse_id({}, "A")
    with pytest.raises(NodeError, match=f"A is '{'x' * c.GIVEN_MAX}', "):
        parse_id({"A": "x" * 500}, "A")


WHOLE = {c.ENV_VGPU: "1118", c.ENV_CORES: "200", "SLURM_JOB_GPUS": "0,1"}


def test_whole_gpus_are_more_vgpu_than_any_job_has_slices_and_all_cores_of_each_gpu() -> None:
    assert whole_gpus(WHOLE) == "0,1"
    assert whole_gpus({c.ENV_VGPU: "17", c.ENV_CORES: "100", "SLURM_JOB_GPUS": "5"}) == "5"
    assert whole_gpus(WHOLE | {c.ENV_VGPU: "1" * 12}) == "0,1", "12 digits are a number"
    assert whole_gpus(WHOLE | {"SLURM_JOB_GPUS": "2,3", c.ENV_CORES: "400"}) == "0,1,2,3", "2,3 are those of a type"
    for name, text in (
        (c.ENV_VGPU, "1"),
        (c.ENV_VGPU, "2"),
        (c.ENV_VGPU, "16"),
        (c.ENV_VGPU, ""),
        (c.ENV_VGPU, LONG),
        (c.ENV_VGPU, DIGIT),
        (c.ENV_CORES, "100"),
        (c.ENV_CORES, "199"),
        (c.ENV_CORES, "201"),
        (c.ENV_CORES, ""),
        (c.ENV_CORES, "x"),
        (c.ENV_SLO_US, "x"),
        ("SLURM_JOB_GPUS", ""),
    ):
        assert whole_gpus(WHOLE | {name: text}) == "", f"{name}={text}"
    for name in WHOLE:
        assert not whole_gpus({other: value for other, value in WHOLE.items() if other != name})


def test_a_node_of_few_shards_is_told_by_its_whole_count_of_slo() -> None:
    """A node has as many vgpu_slo as its shards times the largest slo, of which no slice has more than one."""
    few = WHOLE | {c.ENV_VGPU: "2"}
    assert whole_gpus(few | {c.ENV_SLO_US: str(2 * c.SLO_US_MAX)}) == "0,1"
    assert whole_gpus(few | {c.ENV_SLO_US: str(c.SLO_US_MAX)}) == "", "two slices of all cores, with the largest slo"
    assert whole_gpus(few) == ""


@pytest.mark.parametrize("count", [2, 3, 16])
def test_several_slices_have_equal_parts_of_the_jobs_units(count: int) -> None:
    job = JOB | {c.ENV_VGPU: str(count), c.ENV_MEM_MIB: str(count * 8192), c.ENV_CORES: str(count * 100)}
    assert whole_gpus(job) == "", "all cores of as many GPUs are no whole node"
    units = parse_units(job | {c.ENV_SLO_US: "5000"})
    assert units is not None
    assert (units.slice_count, units.mem_mib, units.cores_percent, units.slo_us) == (count, 8192, 100, 5000)


def test_the_slices_of_a_job_are_one_grant_in_its_usage_record() -> None:
    other = GRANT._replace(gpu_uuid="GPU-2", gpu_minor=4, slice_index=1, slice_count=2)
    first = GRANT._replace(slice_count=2)
    both = total((first, other))
    assert (both.gpu_uuid, both.mem_mib) == (f"{GRANT.gpu_uuid},GPU-2", 2 * GRANT.mem_mib)
    assert both.cores_percent == 2 * GRANT.cores_percent
    assert (both.job_id, both.gpu_minor) == (GRANT.job_id, GRANT.gpu_minor)
    assert total((GRANT,)) is GRANT
    assert by_job((other, first)) == {7: (first, other)}
    assert same_slices((first, other), (first, other._replace(created_unix_ns=1)))
    assert not same_slices((first, other), (first,))
    assert not same_slices((first, other), (other, first))


# asked_mem_mib: of a resized slice, what it asked for is compared.
SLICE = ("job_id", "uid", "gpu_uuid", "mem_mib", "cores_percent", "service_class", "policy", "mode", "asked_mem_mib")
TERMS = (
    *("latency", "floor_percent", "class_priority", "slice_us", "slo_us", "slice_index", "slice_count", "in_step"),
    "max_processes",
)


@pytest.mark.parametrize("name", Grant._fields)
def test_a_slice_is_the_same_when_its_user_gpu_and_size_are(name: str) -> None:
    old: object = getattr(GRANT, name)
    new = old + 1 if isinstance(old, int) else f"{old}x"
    other = Grant(**GRANT._asdict() | {name: new})
    assert GRANT.same_slice(other) == other.same_slice(GRANT) == (name not in SLICE + TERMS)


def test_a_grant_has_the_jobs_units_and_the_gpus_own_values() -> None:
    gpu = Gpu(3, 5, "GPU-9", "NVIDIA H200", "h200", 143156)
    made = make_grant(JobUnits(7, 1000, 3, "lc", 8192, 50), gpu, "burst", "share", 10**18)
    assert made == Grant(7, 1000, "GPU-9", 5, 143156, "h200", 8192, 50, "lc", "burst", "share", 10**18, 0, 0)


@pytest.mark.parametrize(
    ("constraints", "policy"),
    [
        ("", "burst"),
        ("a&vgpu_share&vgpu_type_h200", "burst"),
        ("vgpu_policy_cap", "cap"),
        ("(a|b)&vgpu_type_h200&vgpu_policy_cap", "cap"),
        ("vgpu_policy_burst", "burst"),
        ("my_vgpu_policy_cap&vgpu_policy_capped", "burst"),
    ],
)
def test_a_job_has_the_policy_that_its_features_name_else_its_classs_own(constraints: str, policy: str) -> None:
    assert policy_of_job(7, "be", "burst", ("burst", "cap"), constraints) == policy


@pytest.mark.parametrize("constraints", ["vgpu_policy_none", "a|vgpu_policy_none", "vgpu_policy_cap&vgpu_policy_none"])
def test_a_policy_that_the_class_does_not_allow_is_the_jobs_fault_however_it_came_into_its_features(
    constraints: str,
) -> None:
    with pytest.raises(JobError, match="policy=none is not allowed in class be, whose policies are: burst, cap"):
        policy_of_job(7, "be", "burst", ("burst", "cap"), constraints)


def test_only_a_latency_critical_grant_has_a_floor() -> None:
    gpu = Gpu(3, 5, "GPU-9", "NVIDIA H200", "h200", 143156)
    units = JobUnits(7, 1000, 3, "lc", 8192, 50)
    made = make_grant(units, gpu, "burst", "share", 10**18, latency=True, floor=5)
    assert (made.latency, made.floor_percent) == (1, 5)
    made = make_grant(units, gpu, "burst", "share", 10**18, latency=False, floor=5)
    assert (made.latency, made.floor_percent) == (0, 0)


def test_a_grant_has_the_priority_and_the_timeslice_of_its_class() -> None:
    gpu = Gpu(3, 5, "GPU-9", "NVIDIA H200", "h200", 143156)
    made = make_grant(JobUnits(7, 1000, 3, "x", 8192, 50), gpu, "burst", "share", 10**18, priority=7, slice_us=500)
    assert (made.class_priority, made.slice_us) == (7, 500)


@pytest.mark.parametrize("name", ["a", "std", "interactive", "a_class_of_15_b", "x9", "a__"])
def test_a_class_has_any_name_of_this_form(name: str) -> None:
    assert is_class_name(name)
    units = parse_units(JOB | {c.ENV_CLASS: name})
    assert units is not None
    assert units.service_class == name


@pytest.mark.parametrize("name", ["", "9", "9a", "_a", "A", "aB", "a-b", "a b", "a.b", "\u00e4", "a_class_of_16_by"])
def test_any_other_text_is_no_name_of_a_class(name: str) -> None:
    assert not is_class_name(name)


def test_a_gpu_can_be_filled_to_its_last_mib_by_the_others_and_one_more() -> None:
    live = [
        GRANT._replace(job_id=8, mem_mib=300),
        GRANT._replace(job_id=9, mem_mib=200),
        GRANT._replace(job_id=7, mem_mib=999),  # an earlier grant of the same job, which this one replaces
        GRANT._replace(job_id=10, gpu_uuid="GPU-2", mem_mib=999),
    ]
    check_fits(GRANT._replace(mem_mib=500), live, 1.0)
    check_fits(GRANT._replace(mem_mib=250), live, 0.75)
    with pytest.raises(NodeError) as caught:
        check_fits(GRANT._replace(mem_mib=501), live, 1.0)
    assert str(caught.value) == (
        "job 7 needs 501 MiB of GPU 0 (GPU-1), but 500 of 1000 MiB are held (job 8: 300 MiB, job 9: 200 MiB). "
        "If those jobs have ended, run: hami-hpc reconcile"
    )


@pytest.mark.parametrize(("count", "more"), [(8, ""), (9, " and 1 more"), (11, " and 3 more")])
def test_of_many_holders_eight_are_named(count: int, more: str) -> None:
    live = [GRANT._replace(job_id=100 + i, mem_mib=100) for i in range(count)]
    with pytest.raises(NodeError) as caught:
        check_fits(GRANT._replace(mem_mib=1000), live, 1.0)
    named = ", ".join(f"job {100 + i}: 100 MiB" for i in range(8))
    assert f"({named}{more})." in str(caught.value)


def test_a_slice_larger_than_its_gpu_is_a_fault_of_the_settings() -> None:
    with pytest.raises(NodeError, match=r"job 7 was given 901 MiB of GPU 0 \(GPU-1\), which has 900 MiB"):
        check_fits(GRANT._replace(mem_mib=901), [GRANT], 0.9)
