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

/* What the two have had of the GPU so far, from one look at the state. */
static void busy_ns(const pid_t pid[2], unsigned long long out[2])
{
	char command[256], line[1024];
	int processes = 0;
	snprintf(command, sizeof command, "%s/sim-state", getenv("SIM_BIN"));
	FILE *pipe = popen(command, "r");
	CHECK(pipe);
	while (fgets(line, sizeof line, pipe))
		for (int i = 0; i < 2; i++) {
			char key[32];
			snprintf(key, sizeof key, "{\"pid\": %d,", pid[i]);
			char *at = strstr(line, key);
			if (!at)
				continue;
			CHECK((at = strstr(at, "\"busy_ns\": ")));
			out[i] = strtoull(at + 11, NULL, 10);
			processes++;
		}
	CHECK(pclose(pipe) == 0 && processes == 2);
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
	busy_ns(pid, before);
	usleep(500000);
	busy_ns(pid, after);
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
