/* SPDX-License-Identifier: Apache-2.0 */
/*
 * hints_mark_requests THREADS COUNT
 *
 * In each of THREADS threads COUNT requests of 2 ms, with deadlines of 1 ms and of 1 s in turn, nested and doubled
 * as it should not be; then a fork in the middle of one. Without the interposer: each call says so. Uses no GPU.
 */
#include <pthread.h>
#include <sys/wait.h>

#include "../../../native/include/hami_hpc.h"
#include "../interposer/check.h"

static int expected; /* 0, or -ENOSYS outside of a job */
static int count;

static void *serve(void *unused)
{
	CHECK(hami_hint_end() == (expected ? expected : -EINVAL));
	for (int i = 0; i < count; i++) {
		CHECK(hami_hint_begin(i % 2 ? 1000 : 1000000) == expected);
		CHECK(hami_hint_begin(1) == (expected ? expected : -EBUSY));
		CHECK(hami_hint_soon() == expected); /* it has no context */
		usleep(2000);
		CHECK(hami_hint_end() == expected);
		CHECK(hami_hint_end() == (expected ? expected : -EINVAL));
	}
	return unused;
}

static int in_a_child(void)
{
	int status;
	pid_t pid = fork();
	CHECK(pid >= 0);
	if (!pid) {
		CHECK(hami_hint_end() ==
		      (expected ? expected : -EINVAL)); /* the parent's is not the child's */
		CHECK(hami_hint_begin(0) == expected);
		_exit(0);
	}
	CHECK(waitpid(pid, &status, 0) == pid);
	return status;
}

int main(int argc, char **argv)
{
	pthread_t threads[64];
	CHECK(argc == 3);
	expected = getenv("HAMI_HPC_LIMITS") ? 0 : -ENOSYS;
	count = atoi(argv[2]);
	int n = atoi(argv[1]);
	CHECK(n <= 64);
	for (int i = 0; i < n; i++)
		CHECK(pthread_create(&threads[i], NULL, serve, NULL) == 0);
	for (int i = 0; i < n; i++)
		CHECK(pthread_join(threads[i], NULL) == 0);
	CHECK(hami_hint_begin(0) == expected);
	CHECK(in_a_child() == 0);
	CHECK(hami_hint_end() == expected);
	return 0;
}
