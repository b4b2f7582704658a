#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Jobs that a real Slurm suspends and resumes on a real GPU (docs/benchmarks/suspend.md): stock, by hami-hpc-watch, by
# task/hami_hpc, beside NVIDIA's checkpoint API, in one run. As root, on a machine that nobody else uses; slurm_here.sh says
# what it writes and needs. SECTIONS: which parts of bench_suspend.py.
set -eu -o pipefail
# shellcheck source=tests/gpu/slurm_here.sh
. "$(dirname "$0")/slurm_here.sh"

unpack
configure
# Each job's memory may be moved, except those of the runs that show stock Slurm.
sed -i '/^\[classes.std\]/a swap = true' /etc/hami-hpc/hami-hpc.toml
export HAMI_HPC_STAGES="$checkout/prolog" HAMI_HPC_CONFIG=/etc/hami-hpc/hami-hpc.toml # for task/hami_hpc in slurmd
trap down EXIT
up
say "$(nvidia-smi --query-gpu=name,driver_version --format=csv,noheader), Slurm $(sinfo --version | cut -d' ' -f2), $(date +%F)"
nproc
free -g | sed -n 2p
# shellcheck disable=SC2086  # a list of words
(cd "$checkout" && PYTHONPATH=.:tests/gpu:tests/native:tests python3 tests/gpu/bench_suspend.py ${SECTIONS-})
say "slurmd's log"
grep -E 'hami_hpc|rror' /var/log/slurmd.log | grep -v -E 'pmix|cgroup' | tail -n 25 || true
