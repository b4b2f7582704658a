# SPDX-License-Identifier: Apache-2.0
"""Runs one stage: stage.py prolog|epilog [--config PATH]. Python options -I -S skip environment and site-packages."""

import gc
import os
import sys

HERE = __file__.rpartition("/")[0]


def main() -> int:
    gc.disable()  # the process ends too soon for a collection to be useful
    stage, arguments = sys.argv[1], sys.argv[2:]
    sys.path.append(f"{HERE}/..")
    try:
        import hami_hpc  # noqa: F401  from the checkout
    except ModuleNotFoundError:
        sys.path.pop()
        import site

        site.main()  # from the installation's site-packages
    if stage == "epilog":
        from hami_hpc.stages.epilog import main as run
    else:
        from hami_hpc.stages.prolog import main as run
    return run(arguments)


if __name__ == "__main__":
    status = main()
    sys.stderr.flush()
    os._exit(status)  # all files are closed and written; the interpreter's own exit takes a tenth of the run
