# SPDX-License-Identifier: Apache-2.0
"""A PyTorch training loop for SECONDS; prints steps per second (the first 20 % of the time is left out)."""

import sys
import time

import torch

seconds = float(sys.argv[1])
torch.manual_seed(0)
layers = [layer for _ in range(6) for layer in (torch.nn.Linear(1024, 1024), torch.nn.GELU())]
model = torch.nn.Sequential(*layers).cuda()
optimizer = torch.optim.AdamW(model.parameters())
data = torch.randn(4096, 1024, device="cuda")


def step() -> None:
    optimizer.zero_grad(set_to_none=True)
    model(data).square().mean().backward()
    optimizer.step()


for _ in range(10):
    step()
torch.cuda.synchronize()
begin = time.monotonic()
counted, counted_from = 0, 0.0
while (now := time.monotonic()) < begin + seconds:
    for _ in range(5):
        step()
    torch.cuda.synchronize()
    if now > begin + 0.2 * seconds:
        counted_from = counted_from or now
        counted += 5
print(counted / (time.monotonic() - counted_from))
