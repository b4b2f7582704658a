# SPDX-License-Identifier: Apache-2.0
"""One rank of two, each on a GPU of its own: all-reduces, then DDP training steps; prints their rates as JSON.

Usage: collectives.py RANK PORT SECONDS. Each piece runs for SECONDS, of which the first fifth is left out.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable

import torch
import torch.distributed as dist

WORLD = 2
ELEMENTS = 16 << 20  # 64 MiB of float32


def rate_of(step: Callable[[], None], each: int, seconds: float) -> float:
    """Returns how often a second `step` is done, in groups of `each`. Both ranks do the same number."""
    for _ in range(2 * each):
        step()
    torch.cuda.synchronize()
    begin = time.monotonic()
    counted, counted_from, go_on = 0, 0.0, torch.ones(1, device="cuda")
    while go_on.item():
        now = time.monotonic()
        for _ in range(each):
            step()
        torch.cuda.synchronize()
        if now > begin + 0.2 * seconds:
            counted_from = counted_from or now
            counted += each
        go_on.fill_(now < begin + seconds)
        dist.broadcast(go_on, 0)  # rank 0 decides for both
    return counted / (time.monotonic() - counted_from)


def training() -> Callable[[], None]:
    """Returns a training step: the model of train.py, its gradients averaged over the ranks."""
    torch.manual_seed(0)
    layers = [layer for _ in range(6) for layer in (torch.nn.Linear(1024, 1024), torch.nn.GELU())]
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(*layers).cuda())
    optimizer = torch.optim.AdamW(model.parameters())
    data = torch.randn(4096, 1024, device="cuda")

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        model(data).square().mean().backward()
        optimizer.step()

    return step


def main() -> None:
    rank, port, seconds = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
    torch.cuda.set_device(0)
    dist.init_process_group("nccl", init_method=f"tcp://127.0.0.1:{port}", world_size=WORLD, rank=rank)
    data = torch.ones(ELEMENTS, device="cuda")
    reduced = rate_of(lambda: dist.all_reduce(data.fill_(1.0)), 20, seconds)
    if data[0].item() != WORLD:
        raise SystemExit("the all-reduce gave a wrong sum")
    steps = rate_of(training(), 5, seconds)
    print(json.dumps({"all_reduces": reduced, "steps": steps}), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
