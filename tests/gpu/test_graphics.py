# SPDX-License-Identifier: Apache-2.0
"""Programs that use the GPU without CUDA, in a slice of a real GPU.

Vulkan and OpenGL allocate through another call of the resource manager than libcuda does (docs/adr/040), and never call
cuInit. Run by `make test-gpu` on a GPU node, as root.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "native"))
from conformance import REAL_GPU, Slice, make_slice

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not REAL_GPU, reason="needs a GPU: HAMI_TEST_GPU=1")]
LIMIT_MIB = 4096
OUT_OF_DEVICE_MEMORY = -2  # VkResult


@pytest.fixture
def job(tmp_path: Path) -> Slice:
    query = ["nvidia-smi", "--query-gpu=uuid", "--format=csv,noheader"]
    uuid = subprocess.run(query, capture_output=True, text=True, check=True).stdout.split()[0]
    return make_slice(tmp_path / "job", None, uuid, job_mib=LIMIT_MIB)


@pytest.fixture(scope="module")
def vulkan_take(tmp_path_factory: pytest.TempPathFactory) -> str:
    program = tmp_path_factory.mktemp("vulkan") / "vulkan_take"
    source = Path(__file__).with_name("vulkan_take.c")
    subprocess.run(["gcc", "-O1", str(source), "-o", str(program), "-ldl"], check=True)
    native = subprocess.run([program, "64"], capture_output=True, text=True, check=False)
    if native.returncode != 0:
        pytest.skip(f"Vulkan does not start here without a limit either: {native.stderr.strip()}")
    return str(program)


def figures(text: str) -> tuple[int, int, int, int]:
    """MiB taken, the last VkResult, MiB freed, MiB taken again."""
    found = re.search(r"took (\d+) MiB, VkResult (-?\d+); freed (\d+), took (\d+) again", text)
    assert found, text
    taken, result, freed, again = (int(word) for word in found.groups())
    return taken, result, freed, again


def test_vulkan_takes_its_slice_and_no_more(job: Slice, vulkan_take: str) -> None:
    done = job.run(vulkan_take, "12288")
    assert done.returncode == 0, done.stderr
    taken, result, freed, again = figures(done.stdout)
    assert LIMIT_MIB - 512 <= taken <= LIMIT_MIB, done.stdout
    assert result == OUT_OF_DEVICE_MEMORY
    assert again == freed  # what it gives back it can have again


def test_vulkan_that_fits_is_not_refused(job: Slice, vulkan_take: str) -> None:
    done = job.run(vulkan_take, "2048")
    assert done.returncode == 0, done.stderr
    assert figures(done.stdout)[:2] == (2048, 0)


def test_vulkan_and_cuda_share_one_limit(job: Slice, vulkan_take: str) -> None:
    code = f"""
import subprocess, torch
held = torch.empty(2048 << 20, dtype=torch.uint8, device="cuda")
print(subprocess.run([{vulkan_take!r}, "12288"], capture_output=True, text=True).stdout)
"""
    done = job.run(sys.executable, "-c", code)
    assert done.returncode == 0, done.stderr
    taken = figures(done.stdout)[0]
    assert 512 <= taken <= LIMIT_MIB - 2048, done.stdout
