/* SPDX-License-Identifier: Apache-2.0 */
#include "watch.h"

static struct {
	volatile int ready;
	uint64_t us[2];
} * board;

static void tenant(void *number)
{
	int me = *(int *)number;
	memset(&watch, 0, sizeof watch);
	open_device();
	CUfunction f = spin_function();
	CHECK(set_timeslice(board->us[me]) == RM_OK);
	__sync_fetch_and_add(&board->ready, 1);
	while (board->ready < 2)
		usleep(100);
	uint64_t start = now_ns();
	while (now_ns() - start < 20000 * MS) /* the queue holds a second of work */
		spin(f, NULL, MS);
	OK(cuCtxSynchronize());
}

/* What a process has had of the GPU so far. */
static unsigned long long busy_ns(pid_t pid)
{
	char command[256], text[64] = "";
	snprintf(command, sizeof command,
		 "%s/sim-state | sed -n 's/.*\"pid\": %d,.*\"busy_ns\": \\([0-9]*\\).*/\\1/p'",
		 getenv("SIM_BIN"), pid);
	FILE *pipe = popen(command, "r");
	CHECK(pipe && fgets(text, sizeof text, pipe));
	pclose(pipe);
	return strtoull(text, NULL, 10);
}

static void run(uint64_t first_us, uint64_t second_us, double wanted)
{
	int numbers[2] = {0, 1};
	pid_t pid[2];
	memset(board, 0, sizeof *board);
	board->us[0] = first_us;
	board->us[1] = second_us;
	for (int i = 0; i < 2; i++)
		pid[i] = start_child(tenant, &numbers[i]);
	while (board->ready < 2)
		usleep(100);
	usleep(50000);
	unsigned long long before[2], after[2];
	for (int i = 0; i < 2; i++)
		before[i] = busy_ns(pid[i]);
	usleep(250000);
	for (int i = 0; i < 2; i++)
		after[i] = busy_ns(pid[i]);
	double ratio = (double)(after[1] - before[1]) / (double)(after[0] - before[0]);
	fprintf(stderr, "slices of %llu and %llu us: shares as 1 : %.2f\n", (unsigned long long)first_us,
		(unsigned long long)second_us, ratio);
	CHECK(ratio > wanted * 0.9 && ratio < wanted * 1.1);
	for (int i = 0; i < 2; i++)
		kill(pid[i], SIGKILL), child_status(pid[i]);
}

int main(void)
{
	make_machine("h200");
	board = shared_memory(sizeof *board);
	run(2048, 2048, 1);
	run(2000, 6000, 3);
	run(10000, 2000, 0.2);
	return 0;
}
