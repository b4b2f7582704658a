/* SPDX-License-Identifier: Apache-2.0 */
#include "watch.h"

static struct {
	volatile int ready, stop;
	uint64_t us[2], done[2];
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
	while (now_ns() - start < 400 * MS) {
		for (int i = 0; i < 20; i++) /* enough to have always something waiting */
			spin(f, NULL, MS);
		board->done[me] += 20;
	}
	OK(cuCtxSynchronize());
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
	usleep(350000);
	/* From the state, while both still run: what each has had of the GPU. */
	char command[256];
	unsigned long long busy[2] = {0, 0};
	snprintf(command, sizeof command,
		 "%s/sim-state | grep -o '\"pid\": [0-9]*\\|\"busy_ns\": [0-9]*' | tr '\\n' ' '",
		 getenv("SIM_BIN"));
	FILE *pipe = popen(command, "r");
	char text[512] = "";
	CHECK(pipe && fgets(text, sizeof text, pipe));
	pclose(pipe);
	for (int i = 0; i < 2; i++) {
		char key[32];
		snprintf(key, sizeof key, "\"pid\": %d ", pid[i]);
		char *at = strstr(text, key);
		CHECK(at && (at = strstr(at, "busy_ns")));
		busy[i] = strtoull(at + 10, NULL, 10);
	}
	double ratio = (double)busy[1] / (double)busy[0];
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
