# SPDX-License-Identifier: Apache-2.0
"""Inference of a small transformer 50 times a second, each from host to host; prints latencies (us) as JSON.

Usage: infer.py SECONDS [graph] [hint]. With graph one CUDA graph holds all of its kernels: they wait for no CPU. With
hint each says HINT_S before it begins that it comes soon.
"""

import json
import sys
import time
from contextlib import nullcontext
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from hami_hpc.hints import request, soon

EVERY_S = 0.02
HINT_S = 0.0003
seconds = float(sys.argv[1])
torch.manual_seed(0)
layer = torch.nn.TransformerEncoderLayer(512, 8, 2048, batch_first=True)
model = torch.nn.TransformerEncoder(layer, 6).cuda().half().eval()
data = torch.randn(8, 64, 512).half().pin_memory()
took = []


def infer() -> torch.Tensor:
    return model(data.cuda(non_blocking=True)).cpu()


with torch.inference_mode():
    for _ in range(20):
        infer()
    if "graph" in sys.argv[2:]:
        static, graph = data.cuda(), torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        with torch.cuda.graph(graph):
            result = model(static)

        def infer() -> torch.Tensor:
            static.copy_(data, non_blocking=True)
            graph.replay()
            return result.cpu()

        for _ in range(5):
            infer()
    begin = next_at = time.perf_counter()
    while time.perf_counter() < begin + seconds:
        while time.perf_counter() < next_at - HINT_S:
            time.sleep(0.0001)
        with request() if "hint" in sys.argv[2:] else nullcontext():
            if "hint" in sys.argv[2:]:
                soon()
            while time.perf_counter() < next_at:
                pass
            start = time.perf_counter()
            next_at = max(next_at + EVERY_S, start)
            infer()
            took.append((time.perf_counter() - start) * 1e6)
took.sort()
rank = {"p50": 0.5, "p90": 0.9, "p99": 0.99}
print(json.dumps({k: took[min(len(took) - 1, int(q * len(took)))] for k, q in rank.items()}))
