# SPDX-License-Identifier: Apache-2.0
"""render on a site with slurmdbd and without: slurmctld does not start where it is to store gres and nobody does."""

from __future__ import annotations

from pathlib import Path

import pytest
from node_testbed import Node
from test_render_site import SLURMDBD, render


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node.make(tmp_path / "node", with_gpus=False)


def test_without_slurmdbd_slurmctld_is_not_told_what_to_store(node: Node) -> None:
    etc = node.root / "etc"
    etc.mkdir()
    fragment = etc / "slurm-hami-hpc.conf"
    for kind, is_told in (("", False), (SLURMDBD.replace("slurmdbd", "none"), False), (SLURMDBD, True)):
        (etc / "slurm.conf").write_text(f"ClusterName=small\n{kind}")
        said = " ".join(render(node, "--force").output.split())
        assert ("AccountingStorageTRES=" in fragment.read_text()) is is_told
        assert ("has no AccountingStorageType=accounting_storage/slurmdbd" in said) is not is_told
