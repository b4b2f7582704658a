#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# A real Slurm beside a real GPU, from sbatch to the epilog: unpacks Debian's Slurm packages (bookworm's, the ones that
# build/slurm-plugins were built against) over a throw-away GPU machine that has none, starts munged, slurmctld and
# slurmd on it, and runs a PyTorch job in a slice. As root, on a machine that nobody else uses; slurm_here.sh says what
# it writes and needs.
set -eu -o pipefail
# shellcheck source=tests/gpu/slurm_here.sh
. "$(dirname "$0")/slurm_here.sh"
packages="slurmctld slurmd slurm-client slurm-wlm-basic-plugins munge libmunge2 libhwloc15 libnuma1 liblua5.1-0 libpmix2 libdbus-1-3 libjson-c5 libhttp-parser2.9"

if [ "${1-}" = download ]; then
	mkdir -p "$2"
	cd "$2"
	# shellcheck disable=SC2086  # a list of words
	exec apt-get download $packages
fi

job() {
	cat >/tmp/job.sh <<'EOF'
#!/bin/bash
nvidia-smi --query-gpu=name,memory.total,memory.used --format=csv
python3 - <<'PY'
import os, subprocess, sys, torch
free, total = torch.cuda.mem_get_info()
print(f"torch sees {total / 2**20:.0f} MiB, {free / 2**20:.0f} MiB of them free")
held = []
try:
    while True:
        held.append(torch.empty(512 << 20, dtype=torch.uint8, device="cuda"))
except torch.OutOfMemoryError as error:
    print(f"after {len(held)} x 512 MiB: {type(error).__name__}: {str(error).splitlines()[0][:150]}")
other = "import torch; print('a second process of the job finds', torch.cuda.mem_get_info()[0] >> 20, 'MiB free')"
del held[4:]
torch.cuda.empty_cache()
subprocess.run([sys.executable, "-c", other], check=True)
PY
env -i PATH="$PATH" LD_LIBRARY_PATH="${LD_LIBRARY_PATH-}" python3 -c "
import os, torch
print('without LD_PRELOAD' if 'LD_PRELOAD' not in os.environ else '?', 'torch sees', torch.cuda.mem_get_info()[1] >> 20, 'MiB')"
srun --gres=vgpu:mem=4G,cores=25 python3 -c "import torch; print('a step of 4 GiB sees', torch.cuda.mem_get_info()[1] >> 20, 'MiB')"
mkfifo /tmp/ask."$SLURM_JOB_ID"
python3 -c "
import sys, torch
for line in sys.stdin:
    print(line.strip(), 'torch sees', torch.cuda.mem_get_info()[1] >> 20, 'MiB', flush=True)" </tmp/ask."$SLURM_JOB_ID" &
exec 9>/tmp/ask."$SLURM_JOB_ID"
echo 'before resize' >&9
sleep 5
for size in mem=40G,cores=25 mem=800G mem=6G; do
	srun --overlap --gres=none --ntasks-per-node=1 --vgpu-resize=$size true
	echo "after resize $size" >&9
done
exec 9>&-
wait
rm /tmp/ask."$SLURM_JOB_ID"
EOF
	rm -f /tmp/shown /tmp/job.out
	say "sbatch --gres=vgpu:mem=8G,cores=50 job.sh"
	cd /tmp
	id=$(sbatch --parsable --gres=vgpu:mem=8G,cores=50 --output=/tmp/job.out /tmp/job.sh)
	for _ in $(seq 300); do
		state=$(squeue -h -j "$id" -o %T 2>/dev/null || true)
		[ "$state" = RUNNING ] && [ ! -e /tmp/shown ] && grep -q free /tmp/job.out 2>/dev/null && {
			scontrol show job -d "$id" | grep -E 'JobState|TRES|Nodes=.*GRES|TresPerNode'
			(cd "$checkout" && python3 -m hami_hpc.cli jobs) || true
			touch /tmp/shown
		}
		[ -z "$state" ] && break
		sleep 0.2
	done
	say "What the job printed"
	cat /tmp/job.out
	say "After the epilog: the usage record, and nothing else"
	sleep 1
	cat "/var/lib/hami-hpc/usage/$id.json"
	echo
	ls /run/hami-hpc/jobs
	say "A bad request"
	sbatch --gres=vgpu:mem=800G /tmp/job.sh || true
	say "The job's state"
	scontrol show job "$id" | grep -E 'JobState|ExitCode|RunTime'
	grep -E 'rror' /var/log/slurmd.log | grep -v -E 'pmix|cgroup' | tail -n 10 || true
}

unpack
configure
trap down EXIT
up
say "$(nvidia-smi --query-gpu=name,driver_version --format=csv,noheader), Slurm $(sinfo --version | cut -d' ' -f2), $(date +%F)"
job
