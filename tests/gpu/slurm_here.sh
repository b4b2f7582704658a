# SPDX-License-Identifier: Apache-2.0
#
# A Slurm of Debian's packages (bookworm's, the ones that build/slurm-plugins were built against) on a throw-away GPU
# machine that has none: sourced by slurm_on_gpu.sh and agent_on_gpu.sh. It writes below /etc/slurm, /etc/hami-hpc and
# /usr/lib. Needs `make build` and, in $DEBS, the packages that `tests/gpu/slurm_on_gpu.sh download DIR` fetches with apt.
# $GPUS: Slurm has the first so many of the machine's alone.
# `unpack`, `configure [LINES OF hami-hpc.toml]` and `up` start it, `down` ends it.
checkout=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
here=$(hostname -s)
marker=/var/lib/hami-hpc-gpu-test # these scripts' own Slurm may be used again

say() {
	printf '\n### %s\n' "$1"
}

unpack() {
	local root
	: "${DEBS:?a directory with the packages; make one with: tests/gpu/slurm_on_gpu.sh download DIR}"
	[ ! -e "$marker" ] && command -v slurmctld >/dev/null && {
		echo "this machine has a Slurm of its own; use another" >&2
		exit 1
	}
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
	cp "$checkout"/build/native/libhami-hpc.so "$checkout"/build/native/hami-hpc-watch /usr/lib/hami-hpc/
	cp "$checkout"/build/slurm-plugins/*.so /usr/lib/x86_64-linux-gnu/slurm-wlm/
	cp "$checkout"/slurm-plugins/lua/*.lua /etc/slurm/
	[ -e /etc/ld.so.preload ] || : >/etc/ld.so.preload # as make install does
	# The machine's own Python serves as the installation's.
	mkdir -p /usr/lib/hami-hpc/venv/bin
	printf '#!/bin/sh\nexec %s "$@"\n' "$(python3 -c 'import sys; print(sys.executable)')" >/usr/lib/hami-hpc/venv/bin/python3
	chmod 755 /usr/lib/hami-hpc/venv/bin/python3
	total=$(python3 -c 'import torch; print(torch.cuda.get_device_properties(0).total_memory >> 20)')
	model=$(cd "$checkout" && python3 -c 'import sys; from hami_hpc.render.offer import propose_model; print(propose_model(sys.argv[1]))' \
		"$(nvidia-smi --query-gpu=name --format=csv,noheader -i 0)")
	cat >/etc/hami-hpc/hami-hpc.toml <<EOF
version = 1
[vgpu]
shard_mib = 256
[classes.std]
qos = []
policy = "cap"
[gpu_models.$model]
total_mib = $total
[partitions.gpu]
gpu_models = ["$model"]
${1-}
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
		${GPUS:+--gpus "$model:$GPUS"} --node-parameters "NodeAddr=127.0.0.1 CPUs=16 RealMemory=1024" \
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
