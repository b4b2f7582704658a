# SPDX-License-Identifier: Apache-2.0
"""A node's GPUs: their models, Slurm's numbers for them, and jobs that got one of another model."""

from __future__ import annotations

import pytest

from hami_hpc.core.grant import Grant
from hami_hpc.core.inventory import Device, Gpu, gpu_of_job, indices, make_inventory, match_model
from hami_hpc.core.mixed import ADVICE, check_model, models_of
from hami_hpc.errors import JobError, NodeError
from hami_hpc.render.offer import propose_model


def test_the_model_is_named_in_the_product_name_and_nearest_in_size() -> None:
    models = {"h200": 143156, "a100-40": 40000, "a100_80": 80000, "H20": 97000}

    def model(name: str, mib: int) -> str | None:
        return match_model(Device(0, "GPU-1", name, mib), models)

    assert model("NVIDIA H200", 143156) == "h200"
    assert model("NVIDIA_H200_NVL", 143156) == "h200"
    assert model("NVIDIA H20", 143156) == "H20", "a whole word, in any case"
    assert model("NVIDIA A100-SXM4-40GB", 40330) == "a100-40"
    assert model("NVIDIA A100 80GB PCIe", 81038) == "a100_80"
    assert model("NVIDIA A100", 60000) == "a100-40", "the first by name of two that are as near"
    assert model("NVIDIA A100", 60001) == "a100_80"
    assert model("NVIDIA H100", 81000) is None
    assert model("NVIDIA 40GB", 40000) is None


@pytest.mark.parametrize(
    ("product", "proposed"),
    [
        ("NVIDIA H200", "h200"),
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("NVIDIA A100-SXM4-80GB", "a100"),
        ("NVIDIA A100 80GB PCIe", "a100"),
        ("Tesla V100-SXM2-32GB", "v100"),
        ("NVIDIA GH200 480GB", "gh200"),
        ("NVIDIA L40S", "l40s"),
        ("NVIDIA GeForce RTX 4090", "4090"),
        ("NVIDIA RTX 6000 Ada Generation", "6000"),
        ("NVIDIA TITAN V", "v"),
        ("NVIDIA Graphics Device", "device"),
    ],
)
def test_a_name_that_is_proposed_is_one_that_users_know_and_matches(product: str, proposed: str) -> None:
    assert propose_model(product) == proposed
    assert match_model(Device(0, "GPU-1", product, 1000), {"other": 1000, proposed: 1000}) == proposed


def test_slurms_device_index_is_the_rank_by_minor_number() -> None:
    devices = [Device(5, "GPU-5", "NVIDIA H200", 11), Device(2, "GPU-2", "Tesla T4", 12)]
    gpus = make_inventory(devices, {"h200": 1})
    assert gpus == (
        Gpu(0, 2, "GPU-2", "Tesla T4", "Tesla T4", 12),
        Gpu(1, 5, "GPU-5", "NVIDIA H200", "h200", 11),
    )
    assert gpu_of_job(iter(gpus), 0, 7).uuid == "GPU-2"
    assert gpu_of_job(iter(gpus), 1, 7).uuid == "GPU-5"
    with pytest.raises(NodeError, match=r"job 7 was given GPU 2, but the driver shows 2 GPU\(s\) here"):
        gpu_of_job(iter(gpus), 2, 7)


def test_an_index_is_one_that_slurm_can_have() -> None:
    assert indices("0,1022-1023") == (0, 1022, 1023)
    for wrong in ("1024", "0-1024"):
        with pytest.raises(ValueError, match="1024"):
            indices(wrong)


H200 = Gpu(0, 0, "GPU-1", "NVIDIA H200", "h200", 1000)
A100 = Gpu(1, 1, "GPU-2", "NVIDIA A100", "a100", 400)
GRANT = Grant(7, 1000, "GPU-2", 1, 400, "a100", 400, 50, "std", "cap", "share", 1)
MIXED = f"This node has GPUs of 2 models (a100, h200). {ADVICE}"
PLAIN = "The node's Feature= in slurm.conf names a model that it does not have: run hami-hpc render there"


def refusal(mem_mib: int, gpus: tuple[Gpu, ...], constraints: str, scaling: float = 1.0) -> str:
    with pytest.raises(JobError) as caught:
        check_model(GRANT._replace(mem_mib=mem_mib), gpus, constraints, scaling)
    return str(caught.value)


def test_a_job_that_got_another_model_than_it_asked_for_is_refused() -> None:
    asked = "job 7 asked for {} and was given GPU 1 (a100). {}"
    assert refusal(1, (H200, A100), "vgpu_type_h200") == asked.format("h200", MIXED)
    assert refusal(1, (A100,), "x&vgpu_type_h200") == asked.format("h200", PLAIN)
    assert refusal(1, (A100,), "[vgpu_type_h-20|vgpu_type_b_2]") == asked.format("b_2 or h-20", PLAIN)
    choice = asked.format("b or h200", PLAIN)
    assert refusal(1, (A100,), "vgpu_share&(vgpu_type_h200|vgpu_type_b)") == choice
    assert refusal(1, (A100,), "(vgpu_type_h200|vgpu_type_a100)&vgpu_type_h200,x") == asked.format("h200", PLAIN)
    for constraints in (
        "",
        "vgpu_share",
        "vgpu_type_h200|vgpu_type_a100",
        "xvgpu_type_h200",
        "vgpu_share&vgpu_type_a100*2",
        "(vgpu_type_h200|vgpu_type_a100)&vgpu_share",
        "vgpu_type_h200|rack1",  # a node of rack1 may have any model
        "(vgpu_type_h200|rack1)&vgpu_share",
        "(vgpu_type_h200&rack1)|rack2",
        "vgpu_type_h200&rack1|rack2",
        "(vgpu_type_h200&rack1|rack2)&vgpu_type_a100",
    ):
        check_model(GRANT, (H200, A100), constraints, 1.0)


def test_a_slice_larger_than_its_gpu_is_the_mixtures_fault_on_a_mixed_node_only() -> None:
    large = "job 7 has 401 MiB and was given GPU 1 (a100, 400 MiB). {}"
    assert refusal(401, (H200, A100), "") == large.format(MIXED)
    assert refusal(361, (H200, A100), "", 0.9).startswith("job 7 has 361 MiB")
    check_model(GRANT._replace(mem_mib=360), (H200, A100), "", 0.9)
    check_model(GRANT._replace(mem_mib=401), (A100, A100), "", 1.0)
    assert models_of((H200, A100, H200)) == ("a100", "h200")
