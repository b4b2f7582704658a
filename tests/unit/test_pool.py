# SPDX-License-Identifier: Apache-2.0
"""What is free for slices: the largest one fits by the rules that translate requests, and a larger one does not."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import node_testbed
import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st
from test_cluster_view import JOBS, NODES

from hami_hpc.cli import main
from hami_hpc.core.gpu_choice import Where
from hami_hpc.core.pool import Need, Node, Slice, largest_slice, room_of, shortages, size_of, totals
from hami_hpc.core.request import Request
from hami_hpc.core.request_keys import MemMib
from hami_hpc.core.site import Site
from hami_hpc.core.units import resolve
from hami_hpc.errors import NodeError
from hami_hpc.slurm import cluster_view, commands


def site(total_mib: int, shard_mib: int) -> Site:
    return Site(
        shard_mib=shard_mib,
        memory_scaling=1.0,
        default_mem="25%",
        default_cores=25,
        bare_shard="refuse",
        modes=("share",),
        classes={},
        gpu_models={"h200": total_mib},
        partitions={"gpu": ("h200",)},
    )


def node_of(total_mib: int, shard_mib: int, used: tuple[int, ...] | None = (0, 0), **more: object) -> Node:
    shards = 2 * (total_mib // shard_mib)
    node = Node(
        name="node1",
        state="IDLE",
        reason="",
        model="h200",
        gpus=2,
        partitions=("gpu",),
        features=(),
        total={"shard": shards, "vgpu_mem": 2 * total_mib, "vgpu_cores": 200},
        allocated={"shard": sum(used or (0,))},
        used=used,
        whole=frozenset(),
        cpus=64,
        cpus_allocated=0,
        memory_mib=1024,
        memory_allocated_mib=0,
    )
    return replace(node, **more)  # type: ignore[arg-type]


def shards_of(found: Slice, of: Site) -> int:
    return resolve(Request(mem=MemMib(found.mem_mib), cores=found.cores), of, Where(("gpu",))).shards


@given(
    total_mib=st.integers(2000, 200_000), shard_mib=st.integers(1, 2000), data=st.data(), settings_known=st.booleans()
)
def test_the_largest_slice_fits_and_is_the_largest(
    total_mib: int, shard_mib: int, data: st.DataObject, settings_known: bool
) -> None:
    rules = site(total_mib, shard_mib)
    node = node_of(total_mib, shard_mib)
    size = size_of(node, shard_mib if settings_known else 0)
    free = data.draw(st.integers(1, size.shards))
    found = largest_slice(size, free, node)
    if found is None:  # 1 % of the time takes more shards than that
        assert shards_of(Slice(1, 1), rules) > free
        return
    assert shards_of(found, rules) <= free
    if found.cores < 100:
        assert shards_of(Slice(1, found.cores + 1), rules) > free
    if settings_known and free < size.shards:
        assert shards_of(Slice(found.mem_mib + 1, 1), rules) > free


def test_a_full_gpu_has_nothing_and_an_empty_one_everything() -> None:
    node = node_of(143156, 256, (559, 0), allocated={"shard": 559, "vgpu_mem": 143156, "vgpu_cores": 100})
    room = room_of(node, size_of(node, 256))
    assert [gpu.largest for gpu in room.gpus] == [None, Slice(143156, 100)]
    assert (room.mem_mib, room.cores, room.largest) == (143156, 100, Slice(143156, 100))
    assert room.largest is not None
    assert room.largest.text == "mem=143156M,cores=100"


def test_a_whole_gpu_of_few_shards_has_all_of_its_cores_and_no_more() -> None:
    node = node_of(2000, 50)
    assert largest_slice(size_of(node, 50), 40, node) == Slice(2000, 100)
    assert largest_slice(size_of(node, 50), 39, node) == Slice(1950, 99)


def test_a_gpu_that_is_held_whole_and_a_node_that_is_held_whole_have_nothing() -> None:
    node = node_of(143156, 256, whole=frozenset({0}))
    assert [gpu.free_shards for gpu in room_of(node, size_of(node)).gpus] == [0, 559]
    full = node_of(143156, 256, cpus_allocated=64)
    room = room_of(full, size_of(full))
    assert (room.mem_mib, room.cores, room.largest) == (0, 0, None)
    assert [(gpu.index, gpu.free_shards, gpu.largest) for gpu in room.gpus] == [(0, 0, None), (1, 0, None)]


@pytest.mark.parametrize(
    ("state", "usable"),
    [
        ("IDLE", True),
        ("MIXED+PLANNED", True),
        ("IDLE+CLOUD+POWERED_DOWN", True),
        ("MIXED+CLOUD+NOT_RESPONDING+POWERING_UP", True),
        ("IDLE+CLOUD+POWERING_DOWN", False),
        ("ALLOCATED", True),
        ("MIXED+DRAIN", False),
        ("DOWN*", False),
        ("IDLE*", False),
        ("IDLE+NOT_RESPONDING", False),
        ("IDLE+MAINT+RESERVED", False),
        ("DOWN+DRAIN+INVALID_REG", False),
    ],
)
def test_a_node_that_starts_no_jobs_has_nothing_free(state: str, usable: bool) -> None:
    node = node_of(143156, 256, state=state)
    assert node.is_usable == usable
    assert (room_of(node, size_of(node)).mem_mib > 0) == usable


def test_where_the_gpus_are_not_shown_the_slice_is_a_bound() -> None:
    node = node_of(143156, 256, None, allocated={"shard": 700, "vgpu_mem": 1000, "vgpu_cores": 100})
    room = room_of(node, size_of(node, 256))
    assert not room.is_exact
    assert room.largest == Slice(418 * 256, 74)


def test_what_a_node_lacks_is_named() -> None:
    node = node_of(143156, 256, (400, 300), cpus_allocated=60, memory_allocated_mib=1000)
    size = size_of(node, 256)
    room = room_of(node, size)
    assert shortages(node, size, room, Need(200, 1024, 30, 4, 24)) == []
    assert shortages(node, size, room, Need(259, 1024, 30, 4, 24)) == []
    assert len(shortages(node, size, room, Need(260, 1024, 30, 4, 24))) == 1
    lacks = shortages(node, size, room, Need(280, 1024, 30, 5, 25))
    assert lacks == [
        "it takes 51 % of one GPU, and the emptiest has 46 % free",
        "4 of its CPUs are free and the job needs 5",
        "24 MiB of its main memory are free and the job needs 25",
    ]
    nearly = node_of(143156, 256, (6, 559))
    assert shortages(nearly, size, room_of(nearly, size), Need(559, 1, 1, 1, 1)) == [
        "it takes 100 % of one GPU, and the emptiest has 98 % free"
    ]
    drained = replace(node, state="IDLE+DRAIN")
    assert shortages(drained, size, room_of(drained, size), Need(1, 1, 1, 1, 1)) == ["it is idle+drain"]


def test_totals_count_as_free_only_what_starts_jobs() -> None:
    up, down = node_of(143156, 256), node_of(143156, 256, name="node2", state="DOWN")
    (total,) = totals([(node, room_of(node, size_of(node, 256))) for node in (up, down)])
    assert (total.nodes, total.gpus, total.mem_mib, total.free_mib) == (2, 4, 4 * 143156, 2 * 143156)


def test_what_a_node_does_not_have_or_has_given_away_is_not_free() -> None:
    node = node_of(143156, 256, total={"shard": 5}, allocated={"shard": 7})
    assert (node.free("vgpu_mem"), node.free("shard")) == (0, 0)
    assert replace(node, total={"shard": 9}).free("shard") == 2


def test_a_bound_counts_no_gpu_that_is_held_whole() -> None:
    taken = {"shard": 500, "vgpu_mem": 1000, "vgpu_cores": 10}
    node = node_of(143156, 256, None, allocated=taken, whole=frozenset({1}))
    room = room_of(node, size_of(node, 256))
    assert (room.mem_mib, room.cores) == (59 * 256, 10)
    assert room.largest == Slice(59 * 256, 10)
    none_left = room_of(replace(node, whole=frozenset({0, 1})), size_of(node, 256))
    assert (none_left.mem_mib, none_left.cores, none_left.largest) == (0, 0, None)


def test_the_lowest_cores_that_a_slice_can_have_is_one_percent_and_the_least_memory_one_mib() -> None:
    node = node_of(143156, 256, allocated={"vgpu_mem": 2 * 143156 - 1, "vgpu_cores": 199})
    assert largest_slice(size_of(node, 256), 559, node) == Slice(1, 1)
    for taken in ({"vgpu_mem": 2 * 143156}, {"vgpu_cores": 200}):
        assert largest_slice(size_of(node, 256), 559, replace(node, allocated=taken)) is None
    assert largest_slice(size_of(node, 256), 0, node) is None


@pytest.mark.parametrize(
    ("need", "lacks"),
    [
        (Need(1, 100, 10, 1, 1), []),
        (Need(1, 101, 1, 1, 1), ["the node's GPU memory or cores are taken"]),
        (Need(1, 1, 11, 1, 1), ["the node's GPU memory or cores are taken"]),
        (Need(18, 1, 1, 1, 1), []),
        (Need(19, 1, 1, 1, 1), ["its GPUs together have less free"]),
    ],
)
def test_what_a_node_lacks_whose_gpus_are_not_shown_is_told_of_all_of_them(need: Need, lacks: list[str]) -> None:
    taken = {"shard": 1100, "vgpu_mem": 2 * 143156 - 100, "vgpu_cores": 190}
    node = node_of(143156, 256, None, allocated=taken)
    assert shortages(node, size_of(node, 256), room_of(node, size_of(node, 256)), need) == lacks


def test_a_total_has_the_largest_slice_of_its_nodes_and_says_whether_it_is_a_bound() -> None:
    half = node_of(143156, 256, (300, 300), allocated={"shard": 600, "vgpu_mem": 1000})
    bound = node_of(143156, 256, None, allocated={"shard": 0, "vgpu_mem": 24})
    other = node_of(80000, 256, model="a100", allocated={})
    rooms = [(node, room_of(node, size_of(node, 256))) for node in (half, bound, other)]
    a100, h200 = totals(rooms)
    assert (a100.model, a100.nodes, a100.allocated_mib, a100.is_exact) == ("a100", 1, 0, True)
    assert (h200.model, h200.nodes, h200.allocated_mib, h200.is_exact) == ("h200", 2, 1024, False)
    assert h200.largest == Slice(143156, 100)
    assert totals(rooms[:1])[0].is_exact
    nothing = node_of(143156, 256, state="DOWN")
    (total,) = totals([(nothing, room_of(nothing, size_of(nothing)))])
    assert (total.largest, total.is_exact) == (None, True)


@pytest.fixture
def slurm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commands, "show_nodes", lambda: NODES)
    monkeypatch.setattr(commands, "show_jobs", lambda *_job: JOBS)
    monkeypatch.delenv("HAMI_HPC_CONFIG", raising=False)


def pool(tmp_path: Path, *words: str) -> Result:
    return CliRunner().invoke(
        main, ["pool", *words], env={"HAMI_HPC_CONFIG": str(node_testbed.Node.make(tmp_path).config)}
    )


@pytest.mark.usefixtures("slurm")
def test_pool_shows_nodes_and_with_a_name_each_gpu(tmp_path: Path) -> None:
    lines = pool(tmp_path).stdout.splitlines()
    assert len(lines) == 2
    assert lines[1].split() == [
        *("node1", "mixed", "h200", "2", "0", "286312", "146176", "69632", "200", "130", "48"),
        "mem=40704M,cores=28",
    ]
    assert [line.split() for line in pool(tmp_path, "node1").stdout.splitlines()[-2:]] == [
        ["node1", "0", "113", "mem=28928M,cores=20"],
        ["node1", "1", "159", "mem=40704M,cores=28"],
    ]
    (row,) = json.loads(pool(tmp_path, "--format", "json").stdout)
    assert row["free_by_gpu"][0] == {"index": 0, "free_shards": 113, "largest": {"mem_mib": 28928, "cores": 20}}


@pytest.mark.usefixtures("slurm")
def test_pool_takes_host_lists_as_slurm_writes_them(tmp_path: Path) -> None:
    assert pool(tmp_path, "node[1]").stdout == pool(tmp_path, "node1").stdout
    missing = pool(tmp_path, "node[1-3],login")
    assert missing.exit_code == 1
    assert "no node with vGPUs of the name login,node[2-3] (sinfo -N); nodes of the cloud" in missing.stderr
    wrong = pool(tmp_path, "node[1-")
    assert (wrong.exit_code, "is not a host name or range: give names, or host lists" in wrong.stderr) == (2, True)


@pytest.mark.usefixtures("slurm")
def test_pool_shows_the_presets_of_the_settings(tmp_path: Path) -> None:
    config = node_testbed.Node.make(tmp_path).config
    with Path(config).open("a") as file:
        file.write('[presets.inference]\nmem = "8G"\ncores = 25\n[presets.any]\ntype = "!h200"\n')
    lines = CliRunner().invoke(main, ["pool", "--config", str(config)]).stdout.splitlines()
    assert [line.split() for line in lines[-3:]] == [
        ["PRESET", "STANDS", "FOR"],
        ["vgpu:preset=any", "type=!h200"],
        ["vgpu:preset=inference", "mem=8G,cores=25"],
    ]


@pytest.mark.usefixtures("slurm")
def test_pool_works_without_settings_and_says_so_of_a_file_that_was_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hami_hpc.contract.constants.FILE_CONFIG", str(tmp_path / "none.toml"))
    result = CliRunner().invoke(main, ["pool"])
    assert (result.exit_code, result.stdout.splitlines()[1].split()[-1]) == (0, "mem=40704M,cores=28")
    named = CliRunner().invoke(main, ["pool", "--config", str(tmp_path / "none.toml")])
    assert named.exit_code == 1


@pytest.mark.usefixtures("slurm")
def test_pool_shows_a_drained_node_with_its_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drained = NODES.replace("State=MIXED", "State=MIXED+DRAIN").rstrip() + " Reason=bad fan [root@now]\n"
    monkeypatch.setattr(commands, "show_nodes", lambda: drained + NODES.replace("NodeName=node1", "NodeName=node2"))
    monkeypatch.setattr(commands, "show_jobs", lambda *_job: JOBS + JOBS.replace("Nodes=node1", "Nodes=node2"))
    lines = pool(tmp_path).stdout.splitlines()
    assert lines[1].split()[1] == "mixed+drain"
    assert lines[1].split()[-1] == "none"
    assert "node1 is mixed+drain: bad fan [root@now]" in lines
    assert lines[5].split() == ["h200", "2", "4", "572624", "292352", "69632", "mem=40704M,cores=28"]


@pytest.mark.usefixtures("slurm")
def test_like_nodes_share_a_line_unless_each_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of three that differ in what is allocated and of one that is drained, as are two more with the same reason."""
    one = "".join(line for line in NODES.splitlines(keepends=True) if "NodeName=node1 " in line)
    empty = one.replace("gres/shard=846", "gres/shard=0").replace("gres/vgpu_mem=146176", "gres/vgpu_mem=0")
    down = empty.replace("State=MIXED", "State=MIXED+DRAIN").rstrip() + " Reason=bad fan [root@now]\n"
    texts = (one, empty, one, down, down)
    shown = "".join(text.replace("node1", f"gpu{n:02}") for n, text in enumerate(texts, 1))
    monkeypatch.setattr(commands, "show_nodes", lambda: shown)
    jobs = "".join(JOBS.replace("Nodes=node1", f"Nodes=gpu{n:02}") for n in (1, 3))
    monkeypatch.setattr(commands, "show_jobs", lambda *_job: jobs)
    head, *rows = (line.split() for line in pool(tmp_path).stdout.split("\n\n")[0].splitlines())
    assert (head[0], head[-1], len(rows)) == ("NODES", "NODELIST", 2)
    assert (rows[0][0], rows[0][1], rows[0][-1]) == ("3", "mixed", "gpu[01-03]")
    assert (rows[1][0], rows[1][1], rows[1][-2:]) == ("2", "mixed+drain", ["none", "gpu[04-05]"])
    each = json.loads(pool(tmp_path, "--format", "json").stdout)
    assert len(each) == 5
    like = [node for node in each if node["usable"]]
    sums = [sum(node[key] for node in like) for key in ("mem_mib", "allocated_mem_mib", "free_mem_mib")]
    assert rows[0][5:8] == [str(value) for value in sums]
    best = max((node["largest_slice"] for node in like), key=lambda found: (found["mem_mib"], found["cores"]))
    assert rows[0][11] == Slice(**best).text
    assert "gpu[04-05] are mixed+drain: bad fan [root@now]" in pool(tmp_path).stdout
    lines = pool(tmp_path, "--each-node").stdout.split("\n\n")[0].splitlines()
    assert [line.split()[0] for line in lines] == ["NODE", "gpu01", "gpu02", "gpu03", "gpu04", "gpu05"]
    named = pool(tmp_path, "gpu[01-02]").stdout.splitlines()
    assert [line.split() for line in named[:3]] == [line.split() for line in lines[:3]]


@pytest.mark.usefixtures("slurm")
def test_pool_says_when_its_slices_are_bounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commands, "show_jobs", lambda *_job: "")
    text = pool(tmp_path).stdout
    assert "at most mem=68G,cores=48" in text
    assert "Slurm does not show how full each GPU of node1 is" in text


@pytest.mark.usefixtures("slurm")
def test_pool_asks_for_no_jobs_where_the_nodes_say_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    later = NODES.replace("shard:h200:2(IDX:0-1)", "shard:h200:846(446/559,400/559)")
    monkeypatch.setattr(commands, "show_nodes", lambda: later)
    monkeypatch.delattr(commands, "show_jobs")
    assert pool(tmp_path).stdout.splitlines()[1].split()[-1] == "mem=40704M,cores=28"


@pytest.mark.usefixtures("slurm")
def test_pool_says_what_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = pool(tmp_path, "node7")
    assert (wrong.exit_code, len(wrong.stderr.splitlines())) == (1, 1)
    assert "node7" in wrong.stderr
    monkeypatch.setattr(commands, "show_nodes", lambda: "")
    assert pool(tmp_path).stdout.startswith("Slurm shows no node with vGPUs")
    assert json.loads(pool(tmp_path, "--format", "json").stdout) == []

    def no_slurm() -> str:
        raise NodeError("scontrol cannot be run")

    monkeypatch.setattr(commands, "show_nodes", no_slurm)
    assert pool(tmp_path).exit_code == 1


def test_the_recorded_lines_are_those_of_two_nodes_and_one_has_gpus() -> None:
    assert len(NODES.splitlines()) == 2
    assert len(cluster_view.parse_nodes(NODES, [])) == 1


def test_the_jobs_of_a_large_cluster_are_counted_by_node_in_one_look_each() -> None:
    """Ten million looks, one for each node and job, would take minutes."""
    nodes = "".join(NODES.replace("node1", f"node{number}") for number in range(1000))
    jobs = [(f"node{number % 1000}", number % 2, 1) for number in range(20_000)]
    found = cluster_view.parse_nodes(nodes.replace("gres/shard=846", "gres/shard=20"), jobs)
    assert [node.used for node in found] == [(20, 0), (0, 20)] * 500
