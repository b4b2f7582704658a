# SPDX-License-Identifier: Apache-2.0
"""Runs one stage: stage.py prolog|epilog [--config PATH]. Started with -I -S: no environment, no site-packages scan."""

import sys

HERE = __file__.rpartition("/")[0]


def main() -> int:
    stage, arguments = sys.argv[1], sys.argv[2:]
    sys.path.insert(0, f"{HERE}/..")
    try:
        import hami_hpc  # noqa: F401  the checkout
    except ModuleNotFoundError:
        sys.path.pop(0)
        import site

        site.main()  # installed: its site-packages
    if stage == "epilog":
        from hami_hpc.stages.epilog import main as run
    else:
        from hami_hpc.stages.prolog import main as run
    return run(arguments)


if __name__ == "__main__":
    sys.exit(main())
