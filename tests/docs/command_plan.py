# SPDX-License-Identifier: Apache-2.0
"""What runs each command of the documents' fenced blocks. A command that is in none of these fails a test.

on the private cluster   those of CLUSTER_WORDS in CLUSTER_DOCUMENTS: tests/cluster/test_docs.py
in a folder              those of docs/images/README.md: test_commands.py
BY                       the test that runs it, under its name: its function has the command's words (words_of), by
                         itself or by what it calls in the tests (reached.py); or those that stand behind its name
NOT_RUN                  nothing does, for the reason given; test_commands.py checks its target, options and paths
"""

from __future__ import annotations

import re
import shlex

CLUSTER_DOCUMENTS = ("docs/guide.md", "docs/researchers.md", "docs/upgrade.md")
CLUSTER_WORDS = ("sbatch", "srun", "salloc", "squeue", "scontrol", "scancel", "hami-hpc")
FOLDER_DOCUMENTS = ("docs/images/README.md",)

_ACCOUNTING = (
    "tests/unit/test_accounting/test_documented_commands.py::test_the_examples_of_the_document_run_one_after_the_other"
)
_STORY = "tests/cluster/test_story.py::test_the_demo_follows_a_request_from_sbatch_to_the_bill"
_RENDER = "tests/cluster/test_site.py::test_step_4_leaves_a_site_as_it_was_and_the_printed_lines_bring_vgpu_beside_it"
_DIFF = "tests/unit/test_render_site.py::test_diff_shows_and_changes_nothing"
_SEVERAL = "tests/cluster/test_several_slices.py::"
_TYPES = "tests/cluster/test_mixed_models.py::test_types_of_a_request_are_a_choice_of_nodes"
_QOS = "tests/cluster/test_qos.py::test_apply_writes_what_differs_once_and_touches_nothing_else"
_QUOTA = "tests/unit/test_quota_command.py::"
_QUOTA_APPLY = _QUOTA + "test_apply_goes_on_until_slurmdbd_has_all_of_it_and_then_does_nothing"
_INVENTORY = "tests/unit/test_node_inventory.py::"
_MPS = "tests/unit/test_mps_command.py::"
_SWAP = "tests/cluster/test_swap_live.py::test_a_job_leaves_the_gpu_and_comes_back"
_GPU = "tests/cluster/test_gpu_drain.py::test_20_jobs_all_run_on_the_other_gpu_until_it_is_resumed"
_DEFRAGMENT = (
    "tests/unit/test_mig_defragment.py::test_a_dry_run_says_after_which_job_a_request_fits_and_changes_nothing"
)
_MODES = "tests/cluster/test_modes_out.py::test_a_mode_that_fails_three_times_is_out_while_the_node_serves_others"
_STATIC = "tests/unit/test_mig_static.py::test_a_layout_stands_and_a_second_apply_changes_nothing"
_EVENTS = "tests/unit/test_events_command.py::test_lines_of_json_are_as_they_were_written_and_can_be_chosen"
_STUDY = "tests/native/test_time_study.py::test_the_claims_of_the_study_hold"
_DEBIAN = "tests/packages/live_debian.py::test_a_node_needs_neither_network_nor_compiler"
_TARBALL = "tests/packages/live_tarball.py::test_a_tarball_is_installed_by_one_command_and_removed_by_another"
BY = {
    "sbatch --gres=vgpu:mem=8G,cores=50 train.sh": _STORY,
    "scontrol show job -d 1": _STORY,
    "sbatch --gres=vgpu:2:mem=8G,cores=50 train.sh": _SEVERAL + "test_two_slices_are_equal_and_on_two_gpus",
    "sbatch --nodes=2 --gres=vgpu:h200:2:mem=8G,cores=50 train.sh": _SEVERAL + "test_each_node_has_its_slices",
    "sbatch --gres='vgpu:type=h200|a100,mem=8G,cores=50' train.sh": _TYPES,
    "sbatch --gres='vgpu:type=!h200,mem=8G,cores=50' train.sh": _TYPES,
    "sbatch --qos=lc --gres=vgpu:mem=25%,cores=30 serve.sh": _STORY,
    "sbatch --gres=vgpu:mem=200G,cores=50 train.sh": _STORY,
    "hami-hpc jobs": _STORY,
    ". .cluster/env": "tests/cluster/test_story.py::"
    "test_doctor_in_a_shell_that_read_the_clusters_env_misses_cgroups_alone",
    "hami-hpc render --diff -o /etc/slurm": _DIFF,
    "hami-hpc render -o /etc/slurm": _RENDER,
    "hami-hpc inventory --format json --node gpu01": "tests/unit/test_node_commands.py::"
    "test_inventory_shows_slurms_index_model_and_shards",
    "hami-hpc render --diff --inventory /tmp/inventories -o /etc/slurm": _INVENTORY
    + "test_nodes_that_are_there_stay_and_a_dry_run_shows_all_nodes",
    "hami-hpc render --inventory /tmp/inventories -o /etc/slurm": _INVENTORY
    + "test_one_run_over_all_nodes_writes_what_a_run_for_each_writes",
    "hami-hpc qos show": _QOS,
    "hami-hpc qos apply --dry-run": _QOS,
    "hami-hpc qos apply": _QOS,
    "hami-hpc quota apply --dry-run": _QUOTA_APPLY,
    "hami-hpc quota apply": _QUOTA_APPLY,
    "hami-hpc quota render": _QUOTA + "test_render_prints_what_slurm_conf_lacks_until_it_is_merged",
    "hami-hpc quota show": _QUOTA + "test_show_has_both_sides_and_what_is_in_use",
    "hami-hpc agent --once": "tests/cluster/test_agent.py::test_a_second_agent_is_refused_and_once_shows_what_there_is",
    'hami-hpc gpu drain 3 --reason "Xid 63: row remapping pending"': _GPU,
    "hami-hpc gpu list": _GPU,
    "hami-hpc swap out 4711": _SWAP,
    "hami-hpc ps": "tests/unit/test_turns_seen.py::test_ps_shows_root_all_turns_and_what_waits_for_what",
    "hami-hpc swap in 4711": _SWAP,
    "hami-hpc mig defragment --dry-run": _DEFRAGMENT,
    "hami-hpc mig apply --dry-run /etc/hami-hpc/mig-layout.toml": _STATIC,
    "hami-hpc mig apply /etc/hami-hpc/mig-layout.toml": _STATIC,
    "hami-hpc mps status": _MPS + "test_status_shows_each_daemon_with_its_jobs_and_limits",
    "hami-hpc mode list": _MODES,
    "hami-hpc advise --mem 8G --cores 25 --count 12 --trust none": "tests/unit/test_advice.py::"
    "test_the_documented_command_advises_what_the_page_says",
    "hami-hpc mode resume mig": "tests/unit/test_mode_returns.py::test_mode_list_and_resume",
    "hami-hpc mps restart 0-1000": _MPS + "test_restart_ends_the_server_too",
    "hami-hpc gpu resume 3": _GPU,
    "hami-hpc events --since 1h": _EVENTS,
    "hami-hpc events --job 4711 --format json": _EVENTS,
    "hami-hpc events --follow --kind gpu_fault": "tests/unit/test_events_command.py::test_following_shows_what_comes",
    "make sim-time": f"{_STUDY} benchmarks/time_study.py --page",
    "apt-get install ./hami-hpc-common_*.deb ./hami-hpc-slurm_*.deb ./hami-hpc-node_*.deb": f"{_DEBIAN} apt-get",
    "tar -xzf hami-hpc-node-VERSION-slurm22.05.8-x86_64.tar.gz": f"{_TARBALL} tar -xzf",
    "./hami-hpc-node-VERSION-slurm22.05.8-x86_64/install": f"{_TARBALL} /install",
    "make wheel": "tests/unit/test_wheel.py::test_its_commands_run_in_a_fresh_environment",
    "make install": "tests/unit/test_install.py::test_the_command_runs_from_there_and_knows_its_build",
    "make uninstall": "tests/unit/test_uninstall.py::"
    "test_what_install_brings_uninstall_takes_away_and_nothing_else_twice",
}
# Every example of docs/accounting.md that begins with hami-hpc.
BY_DOCUMENT = {"docs/accounting.md": ("hami-hpc", _ACCOUNTING)}

_CHROOTS = "needs debootstrap and Debian's archive, and takes half an hour a release"
_SYSTEMD = "needs a site's systemd and Slurm's own services"
_PYSLURM = "compiles pyslurm for minutes; make test-pyslurm does it"
_TIER = "is what runs the tests, or a tier of them"
_PACKAGES = "make test-packages does it, for the tests of tests/packages, and needs debootstrap and Debian's archive"
NOT_RUN = {
    "make demo": "test_story.py tells the same story on the tests' cluster, which the demo's would be a second of",
    "make demo NODES=4": "test_several_nodes.py tells the same story on its cluster of two nodes",
    "make demo-stop NODES=4": "as make demo-stop",
    "make demo-stop": "stops the demo's cluster; the tests' cluster is stopped by the same function",
    "make build": "every other test needs what it builds",
    "make deb": _PACKAGES,
    "make dist-node": _PACKAGES,
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


_TAKE_A_VALUE = {"--format", "--kind", "--node", "--reason", "--trust"}


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


def words_of(command: str) -> list[str]:
    """What of a command a test has to say: subcommands, the names of options, and requests. Not what stands for the
    reader's own: numbers, names of files and nodes."""
    found, before = [], ""
    for word in shlex.split(command)[1:]:
        if word.startswith("--gres="):
            found.append(word.removeprefix("--gres="))
        elif word.startswith("-"):
            found.append(word.partition("=")[0])
        elif re.fullmatch("[a-z][a-z-]*", word) and before not in _TAKE_A_VALUE:
            found.append(word)
        before = word
    return found


def claim(runs: str) -> tuple[str, str, list[str]]:
    """(file, function, words) of an entry of BY."""
    test, *words = runs.split()
    path, _, function = test.partition("::")
    return path, function, words
