# SPDX-License-Identifier: Apache-2.0
"""What a change of somebody's timeslice does to others on a real GPU: three busy processes with 20 ms each, beside an
idle one that sets its own so often a second (timeslices.c). No limits, no interposer.

Usage: HAMI_BENCH_WORK=work python3 tests/gpu/timeslices.py
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests/native"), str(ROOT / "tests/gpu")]

from tenants import FOLDER, SECONDS, Tenant, alone, answer, prepare, row  # noqa: E402

BUSY = Tenant(("kernels",))
IDLE = Tenant(("requests", "us=13", "every=1000000000"))


def environment(library: Path, timeslice: str) -> dict[str, str]:
    return os.environ | {"LD_PRELOAD": str(library), "HAMI_TEST_TIMESLICE": timeslice}


def main() -> None:
    prepare()
    library = FOLDER / "timeslices.so"
    source = str(ROOT / "tests/gpu/timeslices.c")
    command = ["gcc", "-O2", "-shared", "-fPIC", f"-I{ROOT}/native/include", source, "-o", str(library), "-pthread"]
    subprocess.run(command, check=True)
    native = alone(BUSY)["rate"]
    row("changes a second", "the three, percent of native while they were served", "ended after, s")
    row(*["---"] * 3)
    for per_second in (0, 10, 50, 200):
        idle = IDLE.start(environment=environment(library, f"10000 {per_second}"))
        time.sleep(0.5)
        begins, busy = time.time() + 3, []
        for _ in range(3):
            busy.append(BUSY.start(f"begin={begins:.3f}", environment=environment(library, "20000")))
            time.sleep(0.3)
        try:
            rates, ended = [], []
            for process in busy:
                rates.append(answer(process)["rate"])
                ended.append(time.time() - begins)
        finally:
            idle.kill()
            idle.wait()
        shares = " + ".join(f"{100 * rate / native:.1f}" for rate in rates)
        row(per_second, shares, ", ".join(f"{at:.1f}" for at in ended))


if __name__ == "__main__":
    print(f"{SECONDS:.0f} s each")
    main()
