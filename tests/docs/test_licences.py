# SPDX-License-Identifier: Apache-2.0
"""Every source file says its licence in its first lines, and the licences' texts are there as published."""

from __future__ import annotations

import hashlib
import subprocess

from documents import ROOT

# Files without comments, and texts for people; the checkout's LICENSE holds for them.
WITHOUT = (".md", ".svg", ".png", ".json", ".parquet", ".typed", ".gitignore", "LICENSE", "COPYING")
RECORDED = ("tests/unit/test_accounting/records/", "tests/unit/recorded/")
GPL = ("slurm-plugins/", "tests/native/slurm/")
HEAD_LINES = 5


def sources() -> list[str]:
    """The checkout's files, those included that are not committed yet."""
    command = ("git", "ls-files", "--cached", "--others", "--exclude-standard")
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    names = [name for name in listed if not name.endswith(WITHOUT) and not name.startswith(RECORDED)]
    return [name for name in names if (ROOT / name).is_file()]


def licence(name: str) -> str:
    lines = (ROOT / name).read_text(encoding="utf-8").splitlines()[:HEAD_LINES]
    found = [line.partition("SPDX-License-Identifier:")[2].split()[0] for line in lines if "SPDX-License-I" in line]
    return found[0] if found else "none"


def test_every_source_file_names_its_licence() -> None:
    names = sources()
    assert len(names) > 300
    wrong = [f"{name}: {licence(name)}" for name in names if licence(name) not in ("Apache-2.0", "GPL-2.0-or-later")]
    assert wrong == []


def test_what_links_into_slurm_is_under_the_gpl_and_nothing_else() -> None:
    for name in sources():
        if licence(name) == "GPL-2.0-or-later":
            assert name.startswith(GPL), name
        elif name.endswith((".c", ".h")):
            assert not name.startswith("slurm-plugins/"), name


def test_the_licences_texts_are_whole() -> None:
    """The digests of the texts that apache.org and gnu.org publish, as Debian's base-files has them too."""
    digests = {
        "LICENSE": "cfc7749b96f63bd31c3c42b5c471bf756814053e847c10f3eb003417bc523d30",
        "slurm-plugins/COPYING": "8177f97513213526df2cf6184d8ff986c675afb514d4e68a404010521b880643",
    }
    for name, digest in digests.items():
        assert hashlib.sha256((ROOT / name).read_bytes()).hexdigest() == digest, name
