#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Jobs that take turns on a real GPU whose memory is oversold, under a real Slurm and the agent (docs/benchmarks/turns.md).
# As root, on a machine that nobody else uses; slurm_here.sh says what it writes and needs. SECTIONS: which parts of
# bench_turns.py; TURN_S: turn_s of the settings; TOUCH_GIB: touches so much of the host's memory first, as a virtual
# machine gets its memory when it uses it for the first time, at a fifth of the speed of a copy.
set -eu -o pipefail
# shellcheck source=tests/gpu/slurm_here.sh
. "$(dirname "$0")/slurm_here.sh"

unpack
configure '[classes.be]
swap = true
policy = "burst"
qos = ["be"]
[agent]'
# There is no slurmdbd, so no QoS: all jobs are of class std, which bench_turns.py lets be moved or not.
sed -i 's/^shard_mib = 256/&\nmemory_scaling = 3\nturn_s = '"${TURN_S-60}"'/; /^\[classes.std\]/a swap = true' /etc/hami-hpc/hami-hpc.toml
sed -i 's/^policy = "cap"/policy = "burst"/' /etc/hami-hpc/hami-hpc.toml
(cd "$checkout" && python3 -m hami_hpc.cli render --output /etc/slurm --node "$here" \
	${GPUS:+--gpus "$model:$GPUS"} --node-parameters "NodeAddr=127.0.0.1 CPUs=16 RealMemory=1024" \
	--plugin-dir /usr/lib/x86_64-linux-gnu/slurm-wlm --spank /usr/lib/x86_64-linux-gnu/slurm-wlm/spank_hami_hpc.so \
	--prolog /etc/slurm/prolog --epilog /etc/slurm/epilog --force)
sed -i '/^AccountingStorageTRES/d' /etc/slurm/slurm-hami-hpc.conf
export HAMI_HPC_STAGES="$checkout/prolog" HAMI_HPC_CONFIG=/etc/hami-hpc/hami-hpc.toml
trap down EXIT
up
(cd "$checkout" && exec python3 -m hami_hpc.cli agent --node "$here" >/tmp/agent.log 2>&1) &
say "$(nvidia-smi --query-gpu=name,driver_version --format=csv,noheader), Slurm $(sinfo --version | cut -d' ' -f2), $(date +%F)"
nproc
[ -z "${TOUCH_GIB-}" ] || seq 16 | xargs -P 16 -I % python3 -c 'import mmap, sys
mmap.mmap(-1, int(sys.argv[1]) << 26, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | mmap.MAP_POPULATE)' "$TOUCH_GIB"
free -g | sed -n 2p
# shellcheck disable=SC2086  # a list of words
(cd "$checkout" && PYTHONPATH=.:tests/gpu:tests/native:tests python3 tests/gpu/bench_turns.py ${SECTIONS-})
say "what the agent wrote"
tail -n 60 /tmp/agent.log | cut -c1-300
pkill -f 'hami_hpc.cli agent' || true
grep -E 'hami_hpc|rror' /var/log/slurmd.log | grep -v -E 'pmix|cgroup' | tail -n 15 || true
