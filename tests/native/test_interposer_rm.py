# SPDX-License-Identifier: Apache-2.0
"""Processes that never load libcuda: the memory they ask for is charged, and their channels are paused."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest
from conformance import BUILD, MIB, REAL_GPU, Slice, make_slice

from hami_hpc.contract import constants as c

pytestmark = pytest.mark.skipif(REAL_GPU, reason="asks the simulated kernel; tests/gpu has Vulkan and OpenGL")
RM = BUILD / "rm"
FORMS = ["alloc", "short-alloc", "transfer", "subdevice", "heap-size", "heap-range", "heap-rows", "heap-transfer"]


@pytest.fixture
def machine(tmp_path: Path) -> tuple[Path, str]:
    """A simulated machine with one H200, and its GPU's UUID."""
    directory = tmp_path / "sim"
    subprocess.run([str(BUILD / "sim/sim-machine"), str(directory), "h200"], check=True, capture_output=True)
    uuid = re.search(r"uuid=(GPU-\S+)", (directory / "machine.conf").read_text())
    assert uuid is not None
    return directory, uuid[1]


def usage(made: Slice) -> dict[str, int]:
    data = (made.directory / c.FILE_USAGE).read_bytes()
    return {k: int.from_bytes(data[o : o + n], "little") for k, (o, n, _kind) in c.USAGE_FIELDS.items()}


def gpu(machine: Path) -> dict[str, int]:
    """The GPU as the simulated driver's own books have it."""
    out = subprocess.run([BUILD / "sim/sim-state", machine], check=True, capture_output=True, text=True)
    found: dict[str, int] = json.loads(out.stdout)["gpus"][0]
    return found


def charged(tmp_path: Path, machine: tuple[Path, str], mib: int, program: str, form: str) -> dict[str, int]:
    """Runs a program that fills a slice; returns the job's usage, which agrees with the driver's own books."""
    made = make_slice(tmp_path / "job", *machine, job_mib=mib)
    result = made.run(str(RM / program), form)
    assert result.returncode == 0, result.stderr
    assert usage(made)["peak_bytes"] == gpu(machine[0])["peak_bytes"] == mib * MIB
    return usage(made)


@pytest.mark.parametrize("form", FORMS)
def test_memory_is_charged_in_every_form_it_is_asked_for(form: str, tmp_path: Path, machine: tuple[Path, str]) -> None:
    used = charged(tmp_path, machine, 4096, "every_form_of_memory_is_counted", form)
    assert used["device_oom_count"] == 0


@pytest.mark.parametrize("form", ["long", "short", "transfer"])
def test_a_handle_for_other_gpus_keeps_memory_charged(form: str, tmp_path: Path, machine: tuple[Path, str]) -> None:
    charged(tmp_path, machine, 1024, "a_handle_for_other_gpus_keeps_memory", form)


def test_small_objects_are_charged_in_the_pages_they_ask_for(tmp_path: Path, machine: tuple[Path, str]) -> None:
    """Vulkan asks for hundreds of small ones, in pages of 4 KiB; CUDA in pages of 2 MiB."""
    made = make_slice(tmp_path / "job", *machine, job_mib=1024)
    for page, bytes_, wanted in ((1, 5000, 8192), (2, 5000, 65536), (0, 5000, 65536), (3, 5000, 2 * MIB)):
        result = made.run(str(RM / "one_object"), str(page), str(bytes_))
        assert result.returncode == 0, result.stderr
        slots = (made.directory / c.FILE_USAGE).read_bytes()
        assert max(peaks(slots)) == wanted


def peaks(data: bytes) -> list[int]:
    """peak_bytes of every slot that is still written down."""
    offset, size, _kind = c.USAGE_SLOT_FIELDS["peak_bytes"]
    first = c.USAGE_SIZE + c.USAGE_STEP_SIZE * c.USAGE_STEP_COUNT
    bases = range(first, first + c.USAGE_SLOT_SIZE * c.USAGE_SLOT_COUNT, c.USAGE_SLOT_SIZE)
    return [int.from_bytes(data[base + offset : base + offset + size], "little") for base in bases]


@pytest.mark.parametrize(("groups", "channels", "others"), [(1, 8, 0), (1, 200, 0), (100, 3, 0), (1, 8, 5000)])
def test_every_channel_is_paused_however_many_there_are(
    groups: int, channels: int, others: int, tmp_path: Path, machine: tuple[Path, str]
) -> None:
    """Without contexts and without NVML nobody knows whether it works, so that all of its time counts."""
    made = make_slice(tmp_path / "job", *machine, job_mib=4096, cores_percent=20)
    made.extra["HAMI_SIM_FAULTS"] = "nvmlInit_v2=9"
    result = made.run(str(RM / "every_channel_is_paused"), str(groups), str(channels), str(others))
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize(
    ("fields", "timeslice_us"),
    [
        ({}, 20 * 450),
        ({"slice_us": 700}, 700),
        ({"slice_us": 700, "latency_others": 1}, 10),
        ({"slice_us": 700, "latency_others": 1, "latency": 1}, 20_000),
        ({"slice_us": 700, "latency_others": 1, "latency": 1, "latency_above": 1}, 1000),
    ],
)
def test_every_group_gets_the_timeslice(
    tmp_path: Path, machine: tuple[Path, str], fields: dict[str, int], timeslice_us: int
) -> None:
    """That of the job's cores, or of its class, or as latency-critical jobs beside it have it."""
    made = make_slice(tmp_path / "job", *machine, job_mib=4096, cores_percent=20, policy="burst", fields=fields)
    result = made.run(str(RM / "every_channel_is_paused"), "100", "1", "0", str(timeslice_us))
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize(
    ("fields", "timeslice_us"),
    [
        ({}, 2048),
        ({"server_cores": 60}, 2048),
        ({"server_cores": 60, "others_least_cores": 30}, 60 * 450),
        ({"others_least_cores": 30}, 20 * 450),
        ({"latency_others": 1}, 10),
        ({"latency_others": 1, "turn_length_permille": 500}, 10),
    ],
)
def test_a_client_of_mps_sets_its_servers_timeslice_and_is_not_paused(
    tmp_path: Path, machine: tuple[Path, str], fields: dict[str, int], timeslice_us: int
) -> None:
    """By its own handle of the server's group, below which its channels are. It is not paused in a turn either, where
    it cannot tell the other clients of it (tests/native/test_mps_turns.py)."""
    made = make_slice(tmp_path / "job", *machine, job_mib=4096, cores_percent=20, mode="mps", fields=fields)
    result = made.run(str(RM / "a_client_of_mps_has_a_handle_of_its_servers_group"), str(timeslice_us))
    assert result.returncode == 0, result.stderr


def test_channels_below_a_second_handle_of_a_group_are_paused(tmp_path: Path, machine: tuple[Path, str]) -> None:
    """Else a program would have no cap by it."""
    made = make_slice(tmp_path / "job", *machine, job_mib=4096, cores_percent=20)
    made.extra["HAMI_SIM_FAULTS"] = "nvmlInit_v2=9"
    result = made.run(str(RM / "a_client_of_mps_has_a_handle_of_its_servers_group"), "0")
    assert result.returncode == 0, result.stderr


def test_many_objects_cost_no_more_than_few(tmp_path: Path, machine: tuple[Path, str]) -> None:
    made = make_slice(tmp_path / "job", *machine, job_mib=4096)

    def nanoseconds(alive: int, preload: bool) -> float:
        result = made.run(str(RM / "many_objects_stay_fast"), str(alive), preload=preload)
        assert result.returncode == 0, result.stderr
        return float(result.stdout)

    added = {alive: nanoseconds(alive, True) - nanoseconds(alive, False) for alive in (10, 100_000)}
    assert added[100_000] < added[10] + 5000  # scanning 100,000 of them took 50 us and more


def test_memory_that_a_neighbour_holds_is_counted_apart(tmp_path: Path, machine: tuple[Path, str]) -> None:
    """The limit allows it and the driver has not as much: another count than that of the limit."""
    neighbour = make_slice(tmp_path / "neighbour", *machine, job_mib=140000)
    made = make_slice(tmp_path / "job", *machine, job_mib=8192)
    fill = [str(BUILD / "conformance/processes_share_one_limit"), "child"]
    holder = subprocess.Popen(fill, env=neighbour.environment(), stdout=subprocess.PIPE)
    try:
        assert holder.stdout is not None
        assert holder.stdout.read(1) == b"f"  # it has filled its slice
        program = [str(BUILD / "compute/a_neighbour_holds_the_memory")]
        environment = made.environment() | {c.ENV_LOG: "1"}
        result = subprocess.run(program, env=environment, capture_output=True, text=True, timeout=60, check=False)
        assert result.returncode == 0, result.stderr
        assert result.stderr.count("others hold the GPU's memory") == usage(made)["device_oom_count"] == 2
        assert usage(made)["oom_count"] == 0
        assert made.run(str(RM / "every_form_of_memory_is_counted"), "heap-size").returncode == 1
        assert usage(made)["device_oom_count"] == 3
        assert usage(made)["oom_count"] == 0
    finally:
        holder.kill()
        holder.communicate()
