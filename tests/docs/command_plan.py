# SPDX-License-Identifier: Apache-2.0
"""What runs each command of the documents' fenced blocks. A command that is in none of these fails a test.

on the private cluster   those of CLUSTER_WORDS in CLUSTER_DOCUMENTS: tests/cluster/test_docs.py
in a folder              those of docs/images/README.md: test_commands.py
BY                       the test that runs it, under its name
NOT_RUN                  nothing does, for the reason given; test_commands.py checks its target, options and paths
"""

from __future__ import annotations

CLUSTER_DOCUMENTS = ("docs/guide.md", "docs/researchers.md", "docs/upgrade.md")
CLUSTER_WORDS = ("sbatch", "srun", "salloc", "squeue", "scontrol", "scancel", "hami-hpc")
FOLDER_DOCUMENTS = ("docs/images/README.md",)

_ACCOUNTING = (
    "tests/unit/test_accounting/test_documented_commands.py::test_the_examples_of_the_document_run_one_after_the_other"
)
_STORY = "tests/cluster/test_story.py::test_the_demo_follows_a_request_from_sbatch_to_the_bill"
_RENDER = "tests/cluster/test_site.py"
_SEVERAL = "tests/cluster/test_several_slices.py"
_TYPES = "tests/cluster/test_mixed_models.py::test_types_of_a_request_are_a_choice_of_nodes"
_QOS = "tests/cluster/test_qos.py"
_QUOTA = "tests/unit/test_quota_command.py"
_INVENTORY = "tests/unit/test_node_inventory.py"
_MPS = "tests/unit/test_mps_command.py"
_SWAP = "tests/cluster/test_swap_live.py::test_a_job_leaves_the_gpu_and_comes_back"
_GPU = "tests/cluster/test_gpu_drain.py"
_DEFRAGMENT = (
    "tests/unit/test_mig_defragment.py::test_a_dry_run_says_after_which_job_a_request_fits_and_changes_nothing"
)
_MODES = "tests/cluster/test_modes_out.py"
_STATIC = "tests/unit/test_mig_static.py::test_a_layout_stands_and_a_second_apply_changes_nothing"
_EVENTS = "tests/unit/test_events_command.py"
_DEBIAN = "tests/packages/live_debian.py"
BY = {
    "sbatch --gres=vgpu:mem=8G,cores=50 train.sh": _STORY,
    "scontrol show job -d 1": _STORY,
    "sbatch --gres=vgpu:2:mem=8G,cores=50 train.sh": _SEVERAL,
    "sbatch --nodes=2 --gres=vgpu:h200:2:mem=8G,cores=50 train.sh": _SEVERAL,
    "sbatch --gres='vgpu:type=h200|a100,mem=8G,cores=50' train.sh": _TYPES,
    "sbatch --gres='vgpu:type=!h200,mem=8G,cores=50' train.sh": _TYPES,
    "sbatch --qos=lc --gres=vgpu:mem=25%,cores=30 serve.sh": _STORY,
    "sbatch --gres=vgpu:mem=200G,cores=50 train.sh": _STORY,
    "hami-hpc jobs": _STORY,
    ". .cluster/env": "tests/cluster/test_story.py::"
    "test_doctor_in_a_shell_that_read_the_clusters_env_misses_cgroups_alone",
    "hami-hpc render --diff -o /etc/slurm": _RENDER,
    "hami-hpc render -o /etc/slurm": _RENDER,
    "hami-hpc inventory --format json --node gpu01": _INVENTORY,
    "hami-hpc render --diff --inventory /tmp/inventories -o /etc/slurm": _INVENTORY,
    "hami-hpc render --inventory /tmp/inventories -o /etc/slurm": _INVENTORY,
    "hami-hpc qos show": _QOS,
    "hami-hpc qos apply --dry-run": _QOS,
    "hami-hpc qos apply": _QOS,
    "hami-hpc quota apply --dry-run": _QUOTA,
    "hami-hpc quota apply": _QUOTA,
    "hami-hpc quota render": _QUOTA,
    "hami-hpc quota show": _QUOTA,
    "hami-hpc agent --once": "tests/cluster/test_agent.py::test_a_second_agent_is_refused_and_once_shows_what_there_is",
    'hami-hpc gpu drain 3 --reason "Xid 63: row remapping pending"': _GPU,
    "hami-hpc gpu list": _GPU,
    "hami-hpc swap out 4711": _SWAP,
    "hami-hpc ps": "tests/unit/test_turns_seen.py::test_ps_shows_root_all_turns_and_what_waits_for_what",
    "hami-hpc swap in 4711": _SWAP,
    "hami-hpc mig defragment --dry-run": _DEFRAGMENT,
    "hami-hpc mig apply --dry-run /etc/hami-hpc/mig-layout.toml": _STATIC,
    "hami-hpc mig apply /etc/hami-hpc/mig-layout.toml": _STATIC,
    "hami-hpc mps status": _MPS,
    "hami-hpc mode list": _MODES,
    "hami-hpc advise --mem 8G --cores 25 --count 12 --trust none": "tests/unit/test_advice.py",
    "hami-hpc mode resume mig": "tests/unit/test_mode_returns.py::test_mode_list_and_resume",
    "hami-hpc mps restart 0-1000": _MPS,
    "hami-hpc gpu resume 3": _GPU,
    "hami-hpc events --since 1h": _EVENTS,
    "hami-hpc events --job 4711 --format json": _EVENTS,
    "hami-hpc events --follow --kind gpu_fault": _EVENTS,
    "make sim-time": "tests/native/test_time_study.py::test_the_claims_of_the_study_hold",
    "make deb": _DEBIAN,
    "apt-get install ./hami-hpc-common_*.deb ./hami-hpc-slurm_*.deb ./hami-hpc-node_*.deb": _DEBIAN,
    "make dist-node": "tests/packages/live_tarball.py",
    "tar -xzf hami-hpc-node-VERSION-slurm22.05.8-x86_64.tar.gz": "tests/packages/live_tarball.py",
    "./hami-hpc-node-VERSION-slurm22.05.8-x86_64/install": "tests/packages/live_tarball.py",
    "make wheel": "tests/unit/test_wheel.py",
    "make install": "tests/unit/test_install.py",
    "make uninstall": "tests/unit/test_uninstall.py",
}
# Every example of docs/accounting.md that begins with hami-hpc.
BY_DOCUMENT = {"docs/accounting.md": ("hami-hpc", _ACCOUNTING)}

_CHROOTS = "needs debootstrap and Debian's archive, and takes half an hour a release"
_SYSTEMD = "needs a site's systemd and Slurm's own services"
_PYSLURM = "compiles pyslurm for minutes; make test-pyslurm does it"
_TIER = "is what runs the tests, or a tier of them"
NOT_RUN = {
    "make demo": "test_story.py tells the same story on the tests' cluster, which the demo's would be a second of",
    "make demo NODES=4": "test_several_nodes.py tells the same story on its cluster of two nodes",
    "make demo-stop NODES=4": "as make demo-stop",
    "make demo-stop": "stops the demo's cluster; the tests' cluster is stopped by the same function",
    "make build": "every other test needs what it builds",
    "make docs": "tests/docs/test_documents_site.py builds the same site; the target installs mkdocs before",
    "make lint": _TIER,
    "make test": _TIER,
    "make test-unit": _TIER,
    "make test-cluster": _TIER,
    "make test-native": _TIER,
    "make test-sanitizers": _TIER,
    "make test-gpu": "needs a real NVIDIA GPU",
    "make test-packages": "needs debootstrap and Debian's archive, and takes minutes",
    "make test-all-points": "takes minutes: tests of which make test takes a part",
    "make test-vm": "needs qemu, debootstrap and Debian's archive, and takes minutes",
    "systemctl enable hami-hpc-reconcile.service": _SYSTEMD,
    "systemctl enable --now hami-hpc-agent.service": _SYSTEMD,
    "make test-matrix": _CHROOTS,
    "export SLURM_SRC=/usr/src/slurm-24.05.8": "needs a machine whose Slurm is not Debian's",
    'make test-matrix SLURM_SUITES="noble resolute"': _CHROOTS,
    "make check-slurm-releases": "needs the git repository of Slurm's source, and takes minutes",
    "make test-matrix SLURM_SRC_forky=/usr/src/slurm-26.05.5": _CHROOTS,
    "make test-matrix SLURM_SUITES=trixie MATRIX=tests/cluster/test_quota.py": _CHROOTS,
    "make mutate SAMPLE=300 SEED=7 CHILDREN=2": "takes minutes",
    "make mutate SAMPLE=0 ONLY='hami_hpc/isolation/*'": "takes minutes",
    "make generate": "would write into the checkout; lint and tests/unit/test_contract.py check what it writes",
    ".venv/bin/python -m pytest tests/unit/test_config.py": _TIER,
    "systemctl restart slurmctld": _SYSTEMD,
    "systemctl restart slurmd": _SYSTEMD,
    "systemctl disable --now hami-hpc-ingest.timer hami-hpc-month.timer": _SYSTEMD,
    "systemctl disable --now hami-hpc-reconcile.service hami-hpc-reconcile.timer hami-hpc-agent.service": _SYSTEMD,
    "systemctl enable --now /etc/slurm/hami-hpc-agent.service": _SYSTEMD,
    "systemctl disable --now hami-hpc-metrics.service": _SYSTEMD,
    "pip install 'build/packages/hami_hpc-VERSION-py3-none-any.whl[accounting]'": "takes what accounting needs from a "
    "package index; tests/unit/test_wheel.py installs such a file with what is there",
    "export SLURM_INCLUDE_DIR=/usr/include SLURM_LIB_DIR=/usr/lib/x86_64-linux-gnu": _PYSLURM,
    "pip install 'git+https://github.com/PySlurm/pyslurm@v22.5.3'": _PYSLURM,
    "pip install '.[accounting,pyslurm]'": _PYSLURM,
}


def runner(document: str, command: str) -> str:
    """What runs a command: cluster, folder, a test's name, "not run", or "" for a command that is in no list."""
    word = command.split()[0]
    if command in BY:
        return BY[command]
    if command in NOT_RUN:
        return "not run"
    if document in BY_DOCUMENT and word == BY_DOCUMENT[document][0]:
        return BY_DOCUMENT[document][1]
    if document in CLUSTER_DOCUMENTS and word in CLUSTER_WORDS:
        return "cluster"
    return "folder" if document in FOLDER_DOCUMENTS else ""
