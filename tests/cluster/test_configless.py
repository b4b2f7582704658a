# SPDX-License-Identifier: Apache-2.0
"""A configless cluster: slurmd and the commands beside it have what slurmctld sends, and no other file of the site."""

from __future__ import annotations

import dataclasses
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness import cluster as private_cluster
from harness import config, daemons, jobs, layout, mounting, services
from harness.layout import Layout
from test_requests import total_mib

USER = "games"
pytestmark = pytest.mark.skipif(not mounting.can_mount(), reason="nothing can be mounted here")
# What is in /run/slurm and /run/munge of a node; slurmd makes /run/slurm/conf.
OWN_RUN = """
for name in slurm munge; do mkdir -p /run/$name; mount -t tmpfs -o mode=755 none /run/$name; done
ln -s "$0" /run/munge/munge.socket.2
exec "$@"
"""


def merge_for_configless(made: Layout) -> None:
    """As docs/node.md says, for Slurm before 23.11."""
    text = made.slurm_conf.read_text().replace(f"include {made.etc}/", "include ")
    config.write(made.slurm_conf, f"{text}SlurmctldParameters=enable_configless\n")
    config.write(made.etc / "gres.conf", (made.etc / "hami-hpc-gres.conf").read_text())
    config.write(made.etc / "plugstack.conf", (made.etc / "plugstack.conf.d/hami-hpc.conf").read_text())
    script = (made.etc / "cli_filter.lua").read_text()
    config.write(made.etc / "cli_filter.lua", script.replace("/usr/lib/hami-hpc/lua/", f"{made.etc}/"))


def cache(made: Layout) -> Path:
    """Returns where slurmd keeps what it was sent."""
    return made.public / "slurmd" / made.node / "conf-cache"


@pytest.fixture(scope="module")
def sent() -> Iterator[Layout]:
    """A cluster whose node with GPUs was told no more than where slurmctld is."""
    folder = Path(tempfile.mkdtemp(prefix="hami-", dir="/tmp"))
    folder.chmod(0o755)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(layout, "PUBLIC_PARENT", str(folder))
        made = private_cluster.up(folder / "cluster")
    try:
        merge_for_configless(made)
        private_cluster.restart(made, "slurmctld")
        daemons.stop(made, "slurmd")
        usual = services.describe(made, "slurmd")
        server = f"localhost:{made.ports['slurmctld']}"
        own = ("unshare", "--mount", "sh", "-c", OWN_RUN, str(made.munge_socket))
        command = (*own, *usual.command, "--conf-server", server)
        environment = {name: value for name, value in usual.environment.items() if name != "SLURM_CONF"}
        daemons.start(made, dataclasses.replace(usual, command=command, environment=environment))
        jobs.wait(made, cache(made).joinpath("slurm.conf").exists, "what slurmd is sent")
        yield made
    finally:
        private_cluster.remove(made.root)
        mounting.unmount_below(folder)
        subprocess.run(["rm", "-rf", str(folder)], check=True)


def test_requests_are_translated_by_what_the_node_was_sent(sent: Layout) -> None:
    conf = cache(sent)
    names = {path.name for path in conf.iterdir()}
    assert "slurm-hami-hpc.conf" in names
    assert "hami_hpc_site.lua" not in names
    beside = {"SLURM_CONF": str(conf / "slurm.conf")}
    script = "echo $SLURM_CONF\nslice\nsrun --overlap --gres=vgpu:mem=1G,cores=10 slice\nsrun --overlap slice"
    job = jobs.submit(sent, USER, "--gres=vgpu:mem=25%,cores=25", script=script)
    jobs.wait_for_state(sent, job, "COMPLETED")
    text = jobs.output(sent, USER, job)
    assert text.startswith(f"{conf}/slurm.conf\n")
    assert total_mib(text) == [35584, 1024, 35584]

    done = jobs.run_as(sent, USER, ("srun", "--gres=vgpu:h200:mem=25%,cores=10", "slice"), beside)
    assert total_mib(done.out) == [35584], done.err
    refused = jobs.run_as(sent, USER, ("srun", "--gres=vgpu:a100:mem=1G", "slice"), beside)
    assert "GPU type 'a100' is not in partition gpu; its types are: h200" in refused.err
