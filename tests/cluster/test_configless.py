# SPDX-License-Identifier: Apache-2.0
"""A configless cluster: slurmd, sackd and the commands beside them have what slurmctld sends, and no other file of the
site."""

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


# A login host: the same, sackd, and then a user's command. SLURM_CONF and /etc/slurm are not there.
LOGIN = """
set -e
for name in slurm munge; do mkdir -p /run/$name; mount -t tmpfs -o mode=755 none /run/$name; done
[ ! -e /etc/slurm ] || mount -t tmpfs -o mode=755 none /etc/slurm
ln -s "$0" /run/munge/munge.socket.2
/usr/sbin/sackd -D --conf-server "$1" &
trap 'kill $!' EXIT
for _ in $(seq 100); do [ -e /run/slurm/conf/slurm.conf ] && break; sleep 0.1; done
user=$2; shift 2
setpriv --reuid "$user" --regid "$user" --clear-groups "$@"
"""
SINCE_23_11 = config.slurm_release() >= (23, 11)  # gres.conf's includes are sent, and there is sackd


def merge_for_configless(made: Layout) -> None:
    """As docs/node.md says."""
    text = made.slurm_conf.read_text().replace(f"include {made.etc}/", "include ")
    config.write(made.slurm_conf, f"{text}SlurmctldParameters=enable_configless\n")
    if not SINCE_23_11:
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
    assert ("hami-hpc-gres.conf" in names) is SINCE_23_11
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


def on_login_host(sent: Layout, *command: str) -> jobs.Done:
    """Runs a user's command on a host that has sackd and no slurmd."""
    environment = jobs.user_environment(sent, USER)
    del environment["SLURM_CONF"]
    server = f"localhost:{sent.ports['slurmctld']}"
    login = ("unshare", "--mount", "sh", "-c", LOGIN, str(sent.munge_socket), server, USER, *command)
    done = subprocess.run(
        login, env=environment, cwd=sent.home / USER, capture_output=True, text=True, timeout=60, check=False
    )
    return jobs.Done(done.returncode, done.stdout, done.stderr)


@pytest.mark.slurm_from("23.11")
def test_a_login_host_needs_no_more_than_sackd(sent: Layout) -> None:
    done = on_login_host(sent, "srun", "--gres=vgpu:h200:mem=25%,cores=10", "slice")
    assert total_mib(done.out) == [35584], done.err
    refused = on_login_host(sent, "srun", "--gres=vgpu:a100:mem=1G", "slice")
    assert "GPU type 'a100' is not in partition gpu; its types are: h200" in refused.err
    asked = on_login_host(sent, "sbatch", "--hold", "--parsable", "--gres=vgpu:mem=8G,cores=50", "--wrap=true")
    assert asked.status == 0, asked.err
    assert "gres/vgpu_mem=8192" in jobs.job_facts(sent, int(asked.out))["TRES"]
    refused = on_login_host(sent, "sbatch", "--gres=vgpu:mem=0", "--wrap=true")
    assert "hami_hpc: " in refused.err
    jobs.admin(sent, "scancel", f"--user={USER}")
