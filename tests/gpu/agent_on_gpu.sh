#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# The agent beside a real Slurm and a real GPU: honest programs under its strictest settings, each evading program of
# tests/native/evaders beside a neighbour, an error of the GPU, a job with the whole GPU, the node's own figures, and what
# the commands show of all that. As root, on a machine that nobody else uses; slurm_here.sh says what it writes and needs.
# $HAMI_BENCH_WORK is tests/gpu/work.cu, built (see bench_time.py).
set -eu -o pipefail
# shellcheck source=tests/gpu/slurm_here.sh
. "$(dirname "$0")/slurm_here.sh"
user=researcher
programs=/tmp/hami-programs
log=/tmp/agent.log
actions='memory_over uncounted no_interposer wrong_gpu'

hami() {
	(cd "$checkout" && timeout 60 python3 -m hami_hpc.cli "$@")
}

# agent ACTION TIME_OVER'S: (re)starts the agent with these actions.
agent() {
	pkill -f 'hami_hpc.cli agent' && sleep 1
	sed -i '/^\[agent.actions\]/,$d' /etc/hami-hpc/hami-hpc.toml
	{
		echo '[agent.actions]'
		for kind in $actions; do echo "$kind = \"$1\""; done
		echo "time_over = \"$2\""
	} >>/etc/hami-hpc/hami-hpc.toml
	(cd "$checkout" && exec python3 -m hami_hpc.cli agent --node "$here" >>$log 2>&1) &
	sleep 2
}

# submit NAME GRES COMMAND: as the user; its output is /tmp/out/NAME.
submit() {
	printf '#!/bin/bash\ncd /tmp/out\n%s\necho "$(date +%%s.%%N) status $?"\n' "$3" >/tmp/out/"$1".sh
	chmod 755 /tmp/out/"$1".sh
	(cd /tmp/out && setpriv --reuid=$user --regid=$user --clear-groups env HOME=/tmp/out USER=$user \
		sbatch --parsable --job-name="$1" --gres="$2" --output=/tmp/out/"$1" /tmp/out/"$1".sh)
}

# ended SECONDS JOB...: waits for them
ended() {
	local most=$1 state
	shift
	for _ in $(seq $((most * 5))); do
		state=$(squeue -h -j "$(IFS=,; echo "$*")" -o %T 2>/dev/null || true)
		[ -z "$state" ] && return
		sleep 0.2
	done
	squeue
	echo "jobs $* did not end" >&2
}

findings() { # of the log after line $1
	tail -n +"$1" $log | python3 -c '
import json, sys
for line in sys.stdin:
    try:
        event = json.loads(line)
    except ValueError:
        print("  agent:", line.strip())
        continue
    if not any(word in str(event) for word in ("settings", "agent_start")):
        print("  ", json.dumps(event)[:400])'
}

lines() {
	echo $(($(wc -l <$log) + 1))
}

prepare() {
	id $user >/dev/null 2>&1 || {
		echo "$user:x:4321:4321::/tmp/out:/bin/bash" >>/etc/passwd
		echo "$user:x:4321:" >>/etc/group
	}
	rm -rf /tmp/out $programs
	mkdir -p /tmp/out $programs
	chown $user:$user /tmp/out
	cp "$checkout"/build/native/evaders/* "$HAMI_BENCH_WORK" "$checkout"/tests/gpu/*.py $programs/
	chmod -R a+rX $programs
	: >$log
	loops=$("$HAMI_BENCH_WORK" calibrate | python3 -c 'import json, sys; print(json.load(sys.stdin)["loops_per_us"])')
	work="$programs/$(basename "$HAMI_BENCH_WORK")"
	python=$(command -v python3)
}

figures() {
	say "hami-hpc baseline record, then check"
	hami baseline record || true
	hami baseline check || true
}

honest() {
	say "Honest programs under the strictest settings (time_over is logged): no finding is right"
	agent kill log
	local from a b c d
	from=$(lines)
	a=$(submit kernels vgpu:mem=4G,cores=20 "$work kernels 12 $loops")
	b=$(submit persistent vgpu:mem=4G,cores=20 "$work persistent 12 $loops")
	c=$(submit train vgpu:mem=8G,cores=20 "$python $programs/train.py 10")
	d=$(submit infer vgpu:mem=8G,cores=20 "$python $programs/infer.py 8")
	sleep 9
	hami ps || true
	hami top --once || true
	ended 40 "$a" "$b" "$c" "$d"
	a=$(submit copies vgpu:mem=4G,cores=25 "$work copies 8 $loops")
	b=$(submit churn vgpu:mem=8G,cores=25 "for i in 1 2 3 4; do $python -c 'import cupy; x = cupy.ones((4000, 4000)); [x @ x for _ in range(20)]; cupy.cuda.Device().synchronize()'; done")
	c=$(submit light vgpu:mem=4G,cores=25 "$work requests 8 $loops us=13 every=1000")
	d=$(submit honest vgpu:mem=4G,cores=25 "$programs/honest 3000 8")
	ended 60 "$a" "$b" "$c" "$d"
	tail -n 2 /tmp/out/{kernels,persistent,train,infer,copies,churn,light,honest}
	echo "findings:"
	findings "$from"
	for job in "$a" "$b"; do
		cat /var/lib/hami-hpc/usage/"$job".json
		echo
	done
	hami trace "$b" || true
}

evaders() {
	say "Each evading program, 3000 MiB in a job of 2048, beside a neighbour: killed"
	local neighbour from name mib job
	agent kill kill
	neighbour=$(submit neighbour vgpu:mem=8G,cores=50 "$python $programs/train.py 55")
	for name in own_loader preloaded_first dlmopen edited_counters raw; do
		mib=3000
		[ $name = raw ] && mib=1000
		from=$(lines)
		job=$(submit $name vgpu:mem=2G,cores=10 "$programs/$name $mib 15 2>&1 | while read -r line; do echo \$(date +%s.%N) \$line; done; (exit \${PIPESTATUS[0]})")
		ended 30 "$job"
		echo "$name:"
		sed 's/^/    /' /tmp/out/$name
		findings "$from"
	done
	ended 90 "$neighbour"
	echo "the neighbour:"
	tail -n 2 /tmp/out/neighbour
	cat /var/lib/hami-hpc/usage/"$neighbour".json
	echo
}

alone() {
	say "Time: a program without the interposer in a job of 25 cores, alone on the GPU; time_over kills"
	local from job
	agent ignore kill
	from=$(lines)
	job=$(submit time vgpu:mem=2G,cores=25 "$programs/own_loader 200 15 100 2>&1 | while read -r line; do echo \$(date +%s.%N) \$line; done; (exit \${PIPESTATUS[0]})")
	ended 30 "$job"
	sed 's/^/    /' /tmp/out/time
	findings "$from"
}

whole() {
	say "A job with the whole GPU that copies 64 MiB pieces to it and back, and an error of the GPU"
	agent warn log
	local from job fault
	from=$(lines)
	job=$(submit whole gpu:1 "$python -c '
import time, torch
host = torch.empty(64 << 20, dtype=torch.uint8).pin_memory(); device = torch.empty_like(host, device=\"cuda\")
end = time.time() + 6; n = 0
while time.time() < end:
    device.copy_(host); host.copy_(device); n += 2
print(n * 64, \"MiB over PCIe\")'")
	ended 40 "$job"
	cat /tmp/out/whole
	sleep 1
	cat /var/lib/hami-hpc/usage/"$job".json
	echo
	fault=$(submit fault vgpu:mem=4G,cores=25 "$python -c '
import cupy
cupy.RawKernel(\"extern \\\"C\\\" __global__ void f(int *p) { *p = 1; }\", \"f\")((1,), (1,), (8,))
cupy.cuda.Device().synchronize()' 2>&1 | tail -1")
	ended 40 "$fault"
	sleep 2
	cat /tmp/out/fault
	findings "$from"
	hami gpu list || true
	hami usage "$job" --history || true
	hami events --since 1h | tail -n 15 || true
	hami pool || true
}

unpack
configure '[agent]
period_ms = 1000
[agent.actions]'
trap 'pkill -f "hami_hpc.cli agent"; down' EXIT
up
prepare
say "$(nvidia-smi --query-gpu=name,driver_version --format=csv,noheader), Slurm $(sinfo --version | cut -d' ' -f2), $(date +%F)"
[ $# -gt 0 ] || set -- figures honest evaders alone whole
for part in "$@"; do
	say "($part, $SECONDS s)"
	$part || echo "$part failed"
done
