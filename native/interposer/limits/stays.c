/* SPDX-License-Identifier: Apache-2.0 */
#include "limits/stays.h"

#include "base/log.h"
#include "driver/movable.h"
#include "region/process.h"

#define MIB(bytes) ((unsigned long long)(bytes) >> 20)

void hami_stays_log(uint64_t least, uint64_t moved, uint64_t stack)
{
	const struct hami_region *region = hami_slice_region(0);
	const int32_t slot = __atomic_load_n(&region->slot, __ATOMIC_ACQUIRE);
	uint64_t small, fixed, others;
	if (slot < 0)
		return;
	const uint64_t held = __atomic_load_n(&region->usage->slots[slot].used_bytes, __ATOMIC_RELAXED);
	const uint64_t away = moved + stack, stays = held > away ? held - away : 0;
	hami_movable_stays(least, &small, &fixed, &others);
	const uint64_t own = others > moved ? others - moved : 0, known = own + small + fixed;
	hami_log(1,
		 "%llu MiB stay on the GPU: %llu are libcuda's own, %llu in objects below %llu MiB, "
		 "%llu mapped for the CPU or shared, %llu of other kinds (managed memory)\n",
		 MIB(stays), MIB(own), MIB(small), MIB(least), MIB(fixed),
		 MIB(stays > known ? stays - known : 0));
}
