# SPDX-License-Identifier: Apache-2.0
"""Inference of a small transformer 50 times a second for SECONDS, each from host to host; prints latencies as JSON."""

import json
import sys
import time

import torch

EVERY_S = 0.02
seconds = float(sys.argv[1])
torch.manual_seed(0)
layer = torch.nn.TransformerEncoderLayer(512, 8, 2048, batch_first=True)
model = torch.nn.TransformerEncoder(layer, 6).cuda().half().eval()
data = torch.randn(8, 64, 512).half().pin_memory()
took = []
with torch.inference_mode():
    for _ in range(20):
        model(data.cuda(non_blocking=True)).cpu()
    begin = next_at = time.perf_counter()
    while time.perf_counter() < begin + seconds:
        while time.perf_counter() < next_at:
            time.sleep(0.0001)
        start = time.perf_counter()
        next_at = max(next_at + EVERY_S, start)
        model(data.cuda(non_blocking=True)).cpu()
        took.append((time.perf_counter() - start) * 1e6)
took.sort()
rank = {"p50": 0.5, "p90": 0.9, "p99": 0.99}
print(json.dumps({k: took[min(len(took) - 1, int(q * len(took)))] for k, q in rank.items()}))
