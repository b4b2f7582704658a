# SPDX-License-Identifier: Apache-2.0
"""python -m hami_packages trees|deb|tar|rpm: what `make packages-tree`, `make deb`, `make dist` and `make rpm` call.

Reads the Makefile's places, DESTDIR (the installation to divide) and PLUGIN_BUILD from the environment.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from hami_packages import debian, rpm, tarball, trees
from hami_packages.release import PackagingError, this_release


def main() -> None:
    parser = argparse.ArgumentParser(prog="hami_packages", description=__doc__)
    parser.add_argument("kind", choices=("deb", "tar", "rpm"))
    parser.add_argument("--role", choices=tuple(tarball.ROLES), action="append", help="of a tarball; may be repeated")
    parser.add_argument("--version", default="", help="instead of the one of pyproject.toml and git")
    parser.add_argument("--target", type=Path, required=True, help="the directory of the packages")
    options = parser.parse_args()
    roles = tuple(options.role or tarball.ROLES)
    release = this_release(options.version)
    installed = Path(os.environ["DESTDIR"])
    with_accounting = options.kind != "tar" or "accounting" in roles
    folder = installed.with_name("trees")
    parts = trees.make_trees(installed, folder, release, with_accounting)
    if options.kind == "deb":
        made = debian.build(parts, folder, options.target, release)
    elif options.kind == "rpm":
        made = rpm.build(parts, folder, options.target, release)
    else:
        made = [tarball.build(role, folder, options.target, release) for role in roles]
    print(*made, sep="\n")


if __name__ == "__main__":
    try:
        main()
    except PackagingError as error:
        sys.exit(f"packages: {error}")
