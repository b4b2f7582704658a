# SPDX-License-Identifier: Apache-2.0
"""hami-hpc mig apply: a static layout stands, slices keep off its GPUs, and an apply that was killed is completed."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner
from forked import points
from hypothesis import given
from hypothesis import strategies as st
from mig_models import profiles_of
from mig_testbed import KILLED, MigNode
from test_out_of_service import FakeNode

from hami_hpc.cli import main
from hami_hpc.core.mig_static import HEAD, Slot, arrange, from_text, ordered, read_layout, to_text, types_of
from hami_hpc.core.out_of_service import Holding
from hami_hpc.errors import NodeError
from hami_hpc.isolation import mig_checks
from hami_hpc.node import mig_list, mig_static
from hami_hpc.slurm import commands, placeholders
from hami_hpc.stages.mig_apply import apply

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="NVML lets only root divide a GPU")
JOB = 7
A100 = "1"  # the second GPU of the simulated machine, where MIG is off
THREE: dict[str, tuple[str, ...]] = {A100: ("3g.20gb", "1g.5gb", "2g.10gb")}


@pytest.fixture
def bed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MigNode:
    monkeypatch.setattr(placeholders, "Node", lambda _name, _environment: FakeNode())
    return MigNode.make(tmp_path, monkeypatch)


def run(bed: MigNode, *words: str, faults: str = "") -> tuple[int, str]:
    return bed.command("mig", *words, faults=faults)


def write(bed: MigNode, text: str) -> str:
    path = bed.node.root / "layout.toml"
    path.write_text(text)
    path.chmod(0o644)
    return str(path)


def layout(bed: MigNode, gpus: str, hosts: str = "node[1-2]") -> str:
    return write(bed, f'version = 1\n[nodes."{hosts}"]\n{gpus}\n')


def standing(bed: MigNode, minor: int = 1) -> list[tuple[str, int, bool]]:
    listed = json.loads(run(bed, "list", "--format", "json")[1])[minor]["instances"]
    return sorted((row["profile"], row["start"], row["is_static"]) for row in listed)


def aliases(bed: MigNode) -> list[tuple[str, int]]:
    folder = bed.machine.directory / "dev/nvidia_mig"
    return sorted((path.name, path.stat().st_mode & 0o777) for path in folder.iterdir()) if folder.exists() else []


def findings(bed: MigNode) -> list[tuple[str, str]]:
    settings = bed.node.settings
    return bed.run(lambda: [(one.level.name, one.detail) for one in mig_checks.check_static(settings)])


def do(bed: MigNode, wanted: dict[str, tuple[str, ...]] | None) -> Callable[[], list[str]]:
    settings = bed.node.settings
    return lambda: apply(settings, FakeNode(), wanted, dry_run=False)


@needs_root
def test_a_layout_stands_and_a_second_apply_changes_nothing(bed: MigNode) -> None:
    path = layout(bed, '1 = ["1g.5gb", "3g.20gb", "2g.10gb"]')
    status, output = run(bed, "apply", path, "--dry-run")
    assert (status, output.count("is made (dry run)"), aliases(bed)) == (0, 3, []), output
    assert not (bed.node.root / "state/mig-layout").exists()
    status, output = run(bed, "apply", path)
    assert (status, "MIG is switched on" in output, output.count(" is made")) == (0, True, 3)
    assert standing(bed) == [("1g.5gb", 6, True), ("2g.10gb", 4, True), ("3g.20gb", 0, True)]
    assert aliases(bed) == [("0", 0), ("1", 0), ("2", 0)], "names for Slurm, which nobody can open"
    assert {mode for _, mode in bed.devices().values()} == {0o444}, "Slurm's cgroups decide who opens these"
    assert findings(bed) == [("OK", "3 instance(s) stand")]
    rows = [line.split() for line in (bed.node.root / "run/mig-static").read_text().splitlines()]
    assert [int(number) for number, _ in rows] == [1, 2, 3], "Slurm's numbers, after the GPU with slices"
    listed = json.loads(run(bed, "list", "--format", "json")[1])[1]["instances"]
    of_uuid = {row["uuid"]: row["profile"] for row in listed}
    assert [of_uuid[uuid] for _, uuid in rows] == ["3g.20gb", "2g.10gb", "1g.5gb"]
    before = standing(bed)
    status, output = run(bed, "apply", path)
    assert (status, "stand already" in output, standing(bed)) == (0, True, before)
    assert (bed.node.root / "state" / "events.jsonl").read_text().count('"mig_layout"') == 1


@needs_root
def test_slices_and_reconcile_and_plans_keep_off_a_static_gpu(bed: MigNode) -> None:
    assert bed.run(do(bed, THREE))
    before = standing(bed)
    assert bed.prolog(JOB, **{"SLURM_JOB_GPUS": "1"}) == 0
    assert "has a static MIG layout" in (bed.node.jobs / str(JOB) / "refused").read_text()
    assert JOB not in bed.node.grants()
    assert bed.prolog(JOB + 1) == 0, "the other GPU serves slices"
    assert bed.epilog(JOB + 1) == 0
    assert [one for one in bed.reconcile() if one.action.kind.value == "remove-instance"] == []
    assert standing(bed) == before
    assert "static layout" in run(bed, "list")[1]
    assert run(bed, "disable", "1")[0] == 1


@needs_root
def test_a_static_gpu_is_shown_without_shards_and_cannot_be_drained_alone(bed: MigNode) -> None:
    from hami_hpc.stages import gpu_service

    assert bed.run(do(bed, THREE))
    settings = bed.node.settings
    environment = {"HAMI_HPC_CONFIG": str(bed.node.config)}
    output = bed.run(lambda: CliRunner().invoke(main, ["inventory"], env=environment).output)
    assert ["static MIG layout" in line for line in output.splitlines()[1:]] == [False, True]
    with pytest.raises(NodeError, match="placeholder jobs cannot hold these: drain the node"):
        bed.run(lambda: gpu_service.drain(settings, FakeNode(), "1", "a test"))


@needs_root
def test_a_node_without_a_layout_or_a_driver_has_nothing_to_apply_at_boot(bed: MigNode) -> None:
    assert run(bed, "apply", faults="nvmlInit_v2=9") == (0, "no GPU of this node has a static layout\n")


@needs_root
def test_a_prolog_that_looked_before_the_apply_makes_nothing_on_its_gpu(
    bed: MigNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert bed.run(do(bed, THREE))
    monkeypatch.setattr(mig_static, "check", lambda *_: None)
    assert bed.prolog(JOB, **{"SLURM_JOB_GPUS": "1"}) == 0
    assert len(standing(bed)) == 3
    assert JOB not in bed.node.grants()


@needs_root
def test_a_change_is_refused_in_words_while_jobs_hold_instances(bed: MigNode, monkeypatch: pytest.MonkeyPatch) -> None:
    path = layout(bed, '1 = ["3g.20gb"]')
    assert run(bed, "apply", path)[0] == 0
    before = standing(bed)
    monkeypatch.setattr(placeholders, "Node", lambda _name, _environment: FakeNode(Holding(9, 1, 0, False, False)))
    status, output = run(bed, "apply", layout(bed, '1 = ["2g.10gb"]'))
    assert (status, "running job(s): 9" in output, standing(bed)) == (1, True, before)
    status, output = run(bed, "apply", layout(bed, '1 = ["3g.20gb"]'))
    assert (status, "stand already" in output) == (0, True), "nothing has to change"
    monkeypatch.setattr(placeholders, "Node", lambda _name, _environment: FakeNode())
    assert run(bed, "apply", layout(bed, '1 = ["2g.10gb", "2g.10gb"]'))[0] == 0
    assert [row[0] for row in standing(bed)] == ["2g.10gb"] * 2
    assert run(bed, "apply", layout(bed, "1 = []"))[0] == 0
    assert (standing(bed), aliases(bed), bed.devices()) == ([], [], {})
    assert not (bed.node.root / "run/mig-static").exists()
    assert not (bed.node.root / "state/mig-layout").exists()


@needs_root
def test_others_instances_are_never_removed_for_a_layout(bed: MigNode) -> None:
    foreign = bed.make_foreign(profile_id=19, start=6)
    settings = bed.node.settings
    both = {"0": ("1g.18gb",), "1": ("3g.20gb",)}
    with pytest.raises(NodeError, match="1 instance\\(s\\) that are not of a static layout"):
        bed.run(lambda: apply(settings, FakeNode(), both, dry_run=False))  # type: ignore[arg-type]
    assert bed.instances() == (foreign,)
    assert standing(bed, 1) == [], "all is checked before anything is done"
    assert not (bed.node.root / "state/mig-layout").exists()


@needs_root
@pytest.mark.parametrize(
    ("gpus", "text"),
    [
        ('0 = ["1g.18gb"]', "have to be the last ones of the node, by minor number: 1 for this one"),
        ('1 = ["4g.20gb", "4g.20gb"]', "cannot hold 4g.20gb, 4g.20gb at once"),
        ('1 = ["9g.9gb"]', "9g.9gb is no profile of it; its profiles are: 1g.5gb"),
        ('9 = ["1g.5gb"]', "this node has no GPU 9"),
        ("1 = 3", "is not a list of at most 16 profiles"),
        ("1 = [3]", "is not a list of at most 16 profiles"),
        ("garbage", "is no layout"),
    ],
)
def test_what_cannot_stand_is_refused_in_words(bed: MigNode, gpus: str, text: str) -> None:
    status, output = run(bed, "apply", layout(bed, gpus))
    assert (status, text in output) == (1, True), output
    assert standing(bed) == []


@needs_root
def test_a_file_that_others_can_write_and_two_tables_of_a_node_are_refused(bed: MigNode) -> None:
    path = layout(bed, '1 = ["1g.5gb"]')
    Path(path).chmod(0o666)
    assert "root reads only settings that root alone can write" in run(bed, "apply", path)[1]
    two = 'version = 1\n[nodes.node1]\n1 = ["1g.5gb"]\n[nodes."node[1-3]"]\n1 = []\n'
    assert "has two tables for node1: node1 and node[1-3]" in run(bed, "apply", write(bed, two))[1]
    assert "no GPU of this node has a static layout" in run(bed, "apply", layout(bed, "1 = ['1g.5gb']", "gpu7"))[1]
    assert "cannot be read" in run(bed, "apply", "/nowhere/layout.toml")[1]
    assert "names GPU" in run(bed, "apply", layout(bed, f'1 = []\n{gpu_uuid(bed)} = ["1g.5gb"]'))[1]


def gpu_uuid(bed: MigNode) -> str:
    return str(json.loads(run(bed, "list", "--format", "json")[1])[1]["uuid"])


@needs_root
def test_after_a_restart_apply_without_a_file_makes_it_again_without_slurmctld(
    bed: MigNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert bed.run(do(bed, THREE))
    before = standing(bed)
    bed.restart()
    monkeypatch.setattr("hami_hpc.node.boot.boot_id", lambda: "the-next-boot")
    for path in (bed.machine.directory / "dev/nvidia_mig").iterdir():
        path.unlink()
    assert findings(bed)[0][0] == "FAIL"

    class Silent:
        def holdings(self) -> tuple[Holding, ...]:
            raise NodeError("slurmctld does not answer")

    monkeypatch.setattr(placeholders, "Node", lambda _name, _environment: Silent())
    status, output = run(bed, "apply")
    assert status == 0, output
    assert (standing(bed), findings(bed)[0][0]) == (before, "OK")


@needs_root
def test_after_a_repair_apply_without_a_file_says_which_gpu_is_gone_and_a_file_makes_it_stand(bed: MigNode) -> None:
    assert bed.run(do(bed, THREE))
    gone = from_text((bed.node.root / "state/mig-layout").read_text())[0].gpu_uuid
    conf = bed.machine.directory / "machine.conf"
    conf.write_text(conf.read_text().replace(gone, "GPU-99999999-9999-9999-9999-999999999999"))
    bed.machine.state("--restart")
    bed.enter_gpus()
    with pytest.raises(NodeError, match=f"has GPU 1 .{gone}., which the driver does not show.*mig apply FILE"):
        bed.run(do(bed, None))
    assert bed.run(do(bed, THREE))
    assert findings(bed) == [("OK", "3 instance(s) stand")]


@needs_root
def test_doctor_says_what_does_not_stand(bed: MigNode) -> None:
    assert bed.run(do(bed, THREE))
    (bed.machine.directory / "dev/nvidia_mig/2").unlink()
    assert "/dev/nvidia_mig/2 is not the device of 1g.5gb" in findings(bed)[0][1]
    slots = mig_static.read(str(bed.node.root / "state"))
    mig_static.write(str(bed.node.root / "state"), [*slots[:1], slots[1]._replace(start=0, profile_id=14)])
    level, detail = findings(bed)[0]
    assert (level, "does not stand" in detail, "is not of the layout" in detail) == ("FAIL", True, True)
    (bed.node.root / "state/mig-layout").write_text("garbage")
    with pytest.raises(NodeError, match="is damaged"):
        findings(bed)
    assert bed.prolog(JOB) == 1, "nobody shares a GPU that may be another's: the node is drained"


def changing(code: object) -> bool:
    """What one instance takes within the driver's calls is killed line by line in test_mig_crash.py."""
    name, path = str(getattr(code, "co_name", "")), str(getattr(code, "co_filename", ""))
    return (
        (name in ("_do", "place_devices") and path.endswith("stages/mig_apply.py"))
        or (name == "write" and path.endswith("node/mig_static.py"))
        or (name in ("_make", "made", "end") and path.endswith("node/mig_gpu.py"))
        or (name == "place_alias" and path.endswith("node/mig_caps.py"))
    )


@needs_root
@pytest.mark.parametrize(
    ("old", "new"),
    [(None, {"1": ("3g.20gb",)}), ({"1": ("3g.20gb",)}, {"1": ("2g.10gb",)}), ({"1": ("3g.20gb",)}, {})],
    ids=["made", "changed", "removed"],
)
def test_an_apply_killed_at_any_line_is_completed_by_the_next(
    bed: MigNode, old: dict[str, tuple[str, ...]] | None, new: dict[str, tuple[str, ...]]
) -> None:
    names, settings = sorted(new.get("1", ())), bed.node.settings

    def completed() -> tuple[object, ...]:
        do(bed, new)()
        rows = [row.profile for row in mig_list.read(settings)[1].instances]
        return sorted(rows), [one.level.name for one in mig_checks.check_static(settings)]

    for kill, line in enumerate(points()):
        bed.run(do(bed, old or {}))
        was_killed = str(bed.run(do(bed, new), at_line=line, traced=changing)) == KILLED
        if was_killed and kill % 3 == 0:  # whoever comes first: reconcile takes nothing that stands
            bed.reconcile()
        assert bed.run(completed) == (names, ["OK"] if names else []), line
        assert len(aliases(bed)) == len(names) == len(mig_static.read(settings.state_dir))
        if not was_killed:
            break
    assert line > 20


@needs_root
@pytest.mark.parametrize(
    "fault",
    [
        "nvmlDeviceSetMigMode=4",
        "nvmlDeviceCreateGpuInstanceWithPlacement=24",
        "nvmlGpuInstanceCreateComputeInstance=999",
        "nvmlDeviceGetMigMode=999",
        "nvmlDeviceGetGpuInstancePossiblePlacements_v2=999",
    ],
)
def test_a_driver_that_fails_is_named_and_the_next_apply_completes_it(bed: MigNode, fault: str) -> None:
    path = layout(bed, '1 = ["3g.20gb", "3g.20gb"]')
    status, output = run(bed, "apply", path, faults=fault)
    assert (status, len(output.strip().splitlines()[-1]) > 20) == (1, True)
    assert standing(bed) == []
    assert run(bed, "apply", path)[0] == 0
    assert len(standing(bed)) == 2


# The pure part.


@given(st.lists(st.sampled_from(["1g.18gb", "1g.35gb", "2g.35gb", "3g.71gb", "4g.71gb", "7g.141gb"]), max_size=8))
def test_an_arrangement_is_found_exactly_where_the_gpu_can_hold_the_set(names: list[str]) -> None:
    from hami_hpc.core.mig_units import holdable, offered_profiles

    profiles = profiles_of("h200")
    rows = offered_profiles(profiles, None)
    placed = arrange(profiles, names)
    counts = tuple(names.count(row.name) for row in rows)
    assert (placed is not None) == (counts in holdable(profiles))
    if placed is not None:
        cells = [at for one, start in placed for at in range(start, start + one.size)]
        assert len(set(cells)) == len(cells)
        assert all(start in one.starts for one, start in placed)
        assert sorted(one.name for one, _ in placed) == sorted(names)


def test_devices_of_one_type_are_in_a_row_and_the_notes_come_back_as_written() -> None:
    slots = [
        Slot("GPU-b", 3, 19, 6, 1, "1g.18gb"),
        Slot("GPU-a", 2, 9, 0, 4, "3g.71gb"),
        Slot("GPU-b", 3, 9, 0, 4, "3g.71gb"),
        Slot("GPU-a", 2, 19, 6, 1, "1g.18gb"),
    ]
    assert types_of(slots) == {"3g.71gb": 2, "1g.18gb": 2}
    assert [(one.minor, one.profile) for one in ordered(slots)] == [
        *((2, "3g.71gb"), (3, "3g.71gb")),
        *((2, "1g.18gb"), (3, "1g.18gb")),
    ]
    assert from_text(to_text(slots)) == ordered(slots)
    text = to_text(slots)
    for wrong in ("", text[:-1], text.replace(HEAD, "x"), HEAD + "\nGPU-a x 1 2 3 y\n", HEAD + "\nMIG-a 1 1 2 3 y\n"):
        with pytest.raises(ValueError, match=r"\S"):
            from_text(wrong)


@pytest.mark.parametrize(
    "document", [{}, {"version": 2}, {"version": True}, {"version": 1, "x": 1}, {"version": 1, "nodes": 3}]
)
def test_another_layout_file_is_refused(document: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"\S"):
        read_layout(document)


@needs_root
def test_render_counts_no_shards_of_a_static_gpu_and_refuses_devices_in_a_wrong_order(
    bed: MigNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bed.edit("[partitions.gpu]", "[gpu_models.a100]\ntotal_mib = 40000\n[partitions.gpu]")
    assert bed.run(do(bed, THREE))
    environment = {"HAMI_HPC_CONFIG": str(bed.node.config)}

    def rendered(device: str) -> tuple[int, str]:
        words = ["render", "--dry-run", "-o", str(tmp_path / "etc"), "--node", "node1", "--device", device]
        result = CliRunner().invoke(main, words, env=environment)
        return result.exit_code, result.output

    for release, shards in (("22.05.8", "shard:h200:559"), ("24.11.5", "shard:559")):
        monkeypatch.setattr(commands, "known_version", lambda release=release: commands.version_of(release))
        status, output = bed.run(lambda: rendered(f"{bed.machine.directory}/dev/nvidia"))
        gres = f"Gres=gpu:h200:1,gpu:3g.20gb:1,gpu:2g.10gb:1,gpu:1g.5gb:1,{shards},"
        assert (status, gres in output) == (0, True), output
    status, output = bed.run(lambda: rendered("/zzz/nvidia"))
    assert (status, "have to come after /zzz/nvidia0 and so on by name" in output) == (2, True)
    slots = mig_static.read(str(bed.node.root / "state"))
    uuid = str(json.loads(run(bed, "list", "--format", "json")[1])[0]["uuid"])
    mig_static.write(str(bed.node.root / "state"), [*slots, slots[0]._replace(gpu_uuid=uuid, minor=0)])
    status, output = bed.run(lambda: rendered(f"{bed.machine.directory}/dev/nvidia"))
    assert (status, "every GPU of this node has a static MIG layout" in output) == (1, True)


def test_slurms_numbers_of_instances_follow_those_of_the_gpus(tmp_path: Path) -> None:
    state = str(tmp_path)
    assert mig_static.by_index(state, {0: "GPU-a", 1: "GPU-b"}) == {0: "GPU-a", 1: "GPU-b"}
    mig_static.write(state, [Slot("GPU-b", 1, 9, start, 4, "3g.71gb") for start in (0, 4)])
    assert mig_static.by_index(state, {0: "GPU-a", 1: "GPU-b"}) == {0: "GPU-a", 1: "GPU-b", 2: "GPU-b"}
    Path(mig_static.path_of(state)).chmod(0o666)
    with pytest.raises(NodeError, match="root alone can write"):
        mig_static.read(state)
    assert mig_static.by_index(state, {0: "GPU-a"}) == {0: "GPU-a"}
