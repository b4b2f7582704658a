# SPDX-License-Identifier: Apache-2.0
"""Runs one stage: stage.py prolog|epilog [--config PATH]. Started with -I -S: no environment, no site-packages scan."""

import gc
import os
import sys

HERE = __file__.rpartition("/")[0]


def main() -> int:
    gc.disable()  # nothing here lives long enough to be worth a collection
    stage, arguments = sys.argv[1], sys.argv[2:]
    sys.path.append(f"{HERE}/..")
    try:
        import hami_hpc  # noqa: F401  the checkout
    except ModuleNotFoundError:
        sys.path.pop()
        import site

        site.main()  # installed: its site-packages
    if stage == "epilog":
        from hami_hpc.stages.epilog import main as run
    else:
        from hami_hpc.stages.prolog import main as run
    return run(arguments)


if __name__ == "__main__":
    status = main()
    sys.stderr.flush()
    os._exit(status)  # everything is closed and written: taking the interpreter down would cost a tenth of the run
