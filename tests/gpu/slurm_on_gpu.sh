#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# A real Slurm beside a real GPU, from sbatch to the epilog: unpacks Debian's Slurm packages (bookworm's, the ones that
# build/slurm-plugins were built against) over a throw-away GPU machine that has none, starts munged, slurmctld and
# slurmd on it, and runs a PyTorch job in a slice. As root, on a machine that nobody else uses: it writes below /etc/slurm,
# /etc/hami-hpc and /usr/lib. Needs `make build` and, in $DEBS, the packages that `tests/gpu/slurm_on_gpu.sh download DIR`
# fetches with apt.
set -eu -o pipefail
checkout=$(cd "$(dirname "$0")/../.." && pwd)
here=$(hostname -s)
packages="slurmctld slurmd slurm-client slurm-wlm-basic-plugins munge libmunge2 libhwloc15 libnuma1 liblua5.1-0 libpmix2 libdbus-1-3 libjson-c5 libhttp-parser2.9"

if [ "${1-}" = download ]; then
	mkdir -p "$2"
	cd "$2"
	# shellcheck disable=SC2086  # a list of words
	exec apt-get download $packages
fi
: "${DEBS:?a directory with the packages; make one with: tests/gpu/slurm_on_gpu.sh download DIR}"
marker=/var/lib/hami-hpc-gpu-test # this script's own Slurm may be used again
[ ! -e "$marker" ] && command -v slurmctld >/dev/null && {
	echo "this machine has a Slurm of its own; use another" >&2
	exit 1
}

say() {
	printf '\n### %s\n' "$1"
}

unpack() {
	local root
	touch "$marker"
	root=$(mktemp -d)
	for package in "$DEBS"/*.deb; do dpkg -x "$package" "$root"; done
	for part in usr etc; do cp -an "$root/$part/." "/$part/" 2>/dev/null || true; done
	[ -d "$root/lib" ] && cp -an "$root/lib/." /usr/lib/ 2>/dev/null || true # bookworm's /lib is a link
	for daemon in slurmctld slurmd slurmstepd; do # Debian names them by alternatives
		[ -e "/usr/sbin/$daemon" ] || ln -s "$daemon-wlm" "/usr/sbin/$daemon"
	done
	for command in sbatch srun squeue sinfo scontrol scancel; do
		[ -e "/usr/bin/$command" ] || ln -s "$command-wlm" "/usr/bin/$command" 2>/dev/null || true
	done
	ldconfig
}

configure() {
	mkdir -p /etc/slurm /etc/hami-hpc /usr/lib/hami-hpc /run/munge /var/lib/hami-hpc /var/spool/slurmctld /var/spool/slurmd
	cp "$checkout"/build/native/libhami-hpc.so /usr/lib/hami-hpc/
	cp "$checkout"/build/slurm-plugins/*.so /usr/lib/x86_64-linux-gnu/slurm-wlm/
	cp "$checkout"/slurm-plugins/lua/*.lua /etc/slurm/
	[ -e /etc/ld.so.preload ] || : >/etc/ld.so.preload # as make install does
	# The machine's own Python serves as the installation's.
	mkdir -p /usr/lib/hami-hpc/venv/bin
	printf '#!/bin/sh\nexec %s "$@"\n' "$(python3 -c 'import sys; print(sys.executable)')" >/usr/lib/hami-hpc/venv/bin/python3
	chmod 755 /usr/lib/hami-hpc/venv/bin/python3
	total=$(python3 -c 'import torch; print(torch.cuda.get_device_properties(0).total_memory >> 20)')
	cat >/etc/hami-hpc/hami-hpc.toml <<EOF
version = 1
[vgpu]
shard_mib = 256
[classes.std]
qos = []
policy = "cap"
[gpu_models.h200]
total_mib = $total
[partitions.gpu]
gpu_models = ["h200"]
EOF
	for stage in prolog epilog; do
		printf '#!/bin/sh\nexec %s/prolog/%s --config /etc/hami-hpc/hami-hpc.toml\n' "$checkout" $stage >/etc/slurm/$stage
		chmod 755 /etc/slurm/$stage
	done
	cat >/etc/slurm/slurm.conf <<EOF
ClusterName=gpu
SlurmctldHost=$here(127.0.0.1)
SlurmUser=root
AuthType=auth/munge
StateSaveLocation=/var/spool/slurmctld
SlurmdSpoolDir=/var/spool/slurmd
SlurmctldLogFile=/var/log/slurmctld.log
SlurmdLogFile=/var/log/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
SwitchType=switch/none
SlurmdParameters=config_overrides
SelectTypeParameters=CR_Core
include /etc/slurm/slurm-hami-hpc.conf
PartitionName=gpu Nodes=$here Default=YES MaxTime=60
EOF
	(cd "$checkout" && python3 -m hami_hpc.cli render --output /etc/slurm --node "$here" \
		--node-parameters "NodeAddr=127.0.0.1 CPUs=16 RealMemory=1024" \
		--plugin-dir /usr/lib/x86_64-linux-gnu/slurm-wlm --spank /usr/lib/x86_64-linux-gnu/slurm-wlm/spank_hami_hpc.so \
		--prolog /etc/slurm/prolog --epilog /etc/slurm/epilog --force)
	sed -i '/^AccountingStorageTRES/d' /etc/slurm/slurm-hami-hpc.conf # there is no slurmdbd here
	# Without systemd nobody has made the slice that slurmd puts its scope into.
	printf 'CgroupPlugin=cgroup/v2\nIgnoreSystemd=yes\n' >/etc/slurm/cgroup.conf
	mkdir -p /sys/fs/cgroup/system.slice
	echo '+cpuset +cpu +memory' >/sys/fs/cgroup/cgroup.subtree_control || true
	echo '+cpuset +cpu +memory' >/sys/fs/cgroup/system.slice/cgroup.subtree_control || true
}

up() {
	head -c 1024 /dev/urandom >/etc/munge.key
	chmod 600 /etc/munge.key
	munged --force --key-file=/etc/munge.key --log-file=/var/log/munged.log --pid-file=/run/munge.pid \
		--seed-file=/var/lib/hami-hpc/munge.seed
	slurmctld
	slurmd
	for _ in $(seq 100); do
		[ "$(sinfo -h -o %T 2>/dev/null)" = idle ] && return
		sleep 0.2
	done
	sinfo || true
	tail -n 40 /var/log/slurmctld.log /var/log/slurmd.log
	exit 1
}

down() {
	pkill -x slurmctld || true
	pkill -x slurmd || true
	pkill -x munged || true
}

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
