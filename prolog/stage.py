# SPDX-License-Identifier: Apache-2.0
"""Runs a stage: stage.py prolog|epilog|resize|suspend [OPTIONS]. Python's -I -S skip environment and site-packages."""

import gc
import os
import sys

HERE = __file__.rpartition("/")[0]


def main() -> int:
    gc.disable()  # the process ends too soon for a collection to be useful
    stage, arguments = sys.argv[1], sys.argv[2:]
    sys.path.append(f"{HERE}/..")
    try:
        import hami_hpc  # from the checkout
    except ModuleNotFoundError:
        sys.path.pop()
        import site

        site.main()  # from the installation's site-packages
        import hami_hpc
    try:
        from hami_hpc import quick_import
    except ImportError:  # another Python may lack what it takes of importlib, which then imports everything
        pass
    else:
        quick_import.install(hami_hpc.__path__[0])
    if stage == "epilog":
        from hami_hpc.stages.epilog import main as run
    elif stage == "resize":
        from hami_hpc.stages.resize import main as run
    elif stage == "suspend":
        from hami_hpc.stages.suspend import main as suspend_or_resume

        return suspend_or_resume(arguments)
    else:
        from hami_hpc.stages.prolog import main as run
    return run(arguments)


if __name__ == "__main__":
    status = main()
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except OSError:  # slurmd was stopped: nobody reads them
        pass
    os._exit(status)  # all files are closed and written; the interpreter's own exit takes a tenth of the run
