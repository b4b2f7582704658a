# SPDX-License-Identifier: Apache-2.0
"""`python -m hami_hpc.cli.share_files SHARE [ZSH]` writes the files that `make install` generates from the commands:
man pages, and completion for bash, zsh (into ZSH, default SHARE/zsh/site-functions) and fish.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from click.shell_completion import get_completion_class

from hami_hpc.builds import build_text
from hami_hpc.cli import COMMANDS, NODE_COMMANDS, has_accounting, main, man_pages

PROGRAM = "hami-hpc"
VARIABLE = "_HAMI_HPC_COMPLETE"  # the name that click derives from PROGRAM


def completion(shell: str) -> str:
    """Returns the script that makes a shell ask hami-hpc for completions."""
    found = get_completion_class(shell)
    assert found is not None
    kind = found(main, {}, PROGRAM, VARIABLE)
    # click's source() would start bash to check its version; the user's shell matters, not this machine's.
    return kind.source_template % kind.source_vars()


def files(share: Path, zsh: Path) -> dict[Path, str]:
    """Returns path -> content of every file. Leaves out accounting's pages where its commands cannot be imported."""
    names = COMMANDS if has_accounting() else NODE_COMMANDS
    made = {share / "man/man1" / name: page for name, page in man_pages.pages(build_text(), names).items()}
    return made | {
        share / "bash-completion/completions" / PROGRAM: completion("bash"),
        zsh / f"_{PROGRAM}": completion("zsh"),
        share / "fish/vendor_completions.d" / f"{PROGRAM}.fish": completion("fish"),
    }


def write(share: Path, zsh: Path) -> tuple[Path, ...]:
    """Writes all files, each by a rename, and returns their paths."""
    contents = files(share, zsh)
    for path, text in contents.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        new = path.with_name(f"{path.name}.new.{os.getpid()}")
        new.write_text(text, encoding="utf-8")
        new.chmod(0o644)
        new.replace(path)
    return tuple(contents)


if __name__ == "__main__":
    target = Path(sys.argv[1])
    written = write(target, Path(sys.argv[2]) if len(sys.argv) > 2 else target / "zsh/site-functions")
    print(*written, sep="\n")
