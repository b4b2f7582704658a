/* SPDX-License-Identifier: Apache-2.0 */
/* Forks while other threads change the table: the child finds it empty and no lock held. */
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/table.h"
#include "check.h"

#define FORKS 300
#define KEYS 256u /* some for each shard */

static _Atomic int stop;

static void *change(void *number)
{
	uint64_t base = (uint64_t)(uintptr_t)number << 40;
	while (!stop) {
		for (uint64_t i = 1; i <= KEYS; i++)
			CHECK(hami_table_put((struct hami_entry){.key = base + i * 512, .bytes = i}));
		for (uint64_t i = 1; i <= KEYS; i++)
			CHECK(hami_table_take(base + i * 512).bytes == i);
	}
	return NULL;
}

static void use_in_child(void)
{
	alarm(10); /* a lock that stays held ends the child by SIGALRM */
	hami_table_forked();
	for (uint64_t i = 1; i <= KEYS; i++) {
		CHECK(hami_table_take((1ull << 40) + i * 512).key == 0);
		CHECK(hami_table_take((2ull << 40) + i * 512).key == 0);
	}
	for (uint64_t i = 1; i <= KEYS; i++)
		CHECK(hami_table_put((struct hami_entry){.key = i * 512, .bytes = i}));
	for (uint64_t i = 1; i <= KEYS; i++)
		CHECK(hami_table_take(i * 512).bytes == i);
	_exit(0);
}

int main(void)
{
	pthread_t threads[2];
	for (uintptr_t i = 0; i < 2; i++)
		CHECK(pthread_create(&threads[i], NULL, change, (void *)(i + 1)) == 0);
	for (int n = 0; n < FORKS; n++) {
		int status;
		pid_t child = fork();
		CHECK(child >= 0);
		if (!child)
			use_in_child();
		CHECK(waitpid(child, &status, 0) == child);
		CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
	}
	stop = 1;
	for (int i = 0; i < 2; i++)
		CHECK(pthread_join(threads[i], NULL) == 0);
	return 0;
}
