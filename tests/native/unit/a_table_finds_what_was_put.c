/* SPDX-License-Identifier: Apache-2.0 */
/* Against a plain array, with keys that collide; then by many threads at once. */
#include <pthread.h>
#include <string.h>

#include "base/table.h"
#include "check.h"

#define KEYS 5000

static struct hami_entry model[KEYS];

static uint64_t key_of(unsigned int i)
{
	return 0x7f0000000000ull + (uint64_t)i * 0x200000; /* like addresses of blocks */
}

static void against_a_model(void)
{
	unsigned int seed = 3;
	const uint64_t owners[4] = {1, 2, 3, 4};
	for (int n = 0; n < 400000; n++) {
		unsigned int i = (unsigned int)rand_r(&seed) % KEYS;
		if (rand_r(&seed) % 3) {
			model[i] = (struct hami_entry){.key = key_of(i),
						       .bytes = (uint64_t)rand_r(&seed),
						       .owner = owners[rand_r(&seed) % 4],
						       .slices = (uint64_t)rand_r(&seed) & 0xffff};
			CHECK(hami_table_put(model[i]));
		} else {
			struct hami_entry got = hami_table_take(key_of(i));
			CHECK(memcmp(&got, &model[i], sizeof got) == 0);
			model[i] = (struct hami_entry){0};
		}
		if (n % 50000 == 0) {
			struct hami_sums sums = {0}, taken = {0};
			for (unsigned int k = 0; k < KEYS; k++)
				if (model[k].key && model[k].owner == owners[1]) {
					for (unsigned int s = 0; s < HAMI_SLICES; s++)
						sums.bytes[s] +=
							model[k].slices >> s & 1 ? model[k].bytes : 0;
					model[k] = (struct hami_entry){0};
				}
			hami_table_take_owner(owners[1], &taken);
			CHECK(memcmp(&sums, &taken, sizeof sums) == 0);
		}
	}
	for (unsigned int i = 0; i < KEYS; i++)
		CHECK(hami_table_take(key_of(i)).key == model[i].key);
}

static void *work(void *number)
{
	uint64_t base = (uint64_t)(uintptr_t)number << 40;
	for (int round = 0; round < 20; round++) {
		for (uint64_t i = 1; i <= 1000; i++)
			CHECK(hami_table_put((struct hami_entry){.key = base + i * 512,
								 .bytes = i,
								 .owner = (uint64_t)(uintptr_t)number,
								 .slices = 1}));
		for (uint64_t i = 1; i <= 1000; i++)
			CHECK(hami_table_take(base + i * 512).bytes == i);
	}
	struct hami_sums sums = {0};
	hami_table_take_owner((uint64_t)(uintptr_t)number, &sums);
	CHECK(sums.bytes[0] == 0);
	return NULL;
}

int main(void)
{
	pthread_t threads[8];
	against_a_model();
	for (uintptr_t i = 0; i < 8; i++)
		CHECK(pthread_create(&threads[i], NULL, work, (void *)(i + 1)) == 0);
	for (int i = 0; i < 8; i++)
		pthread_join(threads[i], NULL);
	return 0;
}
