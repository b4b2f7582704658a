/* SPDX-License-Identifier: Apache-2.0 */
#include "base/map.h"

#include <errno.h>
#include <sys/mman.h>

void *hami_map(size_t bytes, int flags, int fd)
{
	void *memory = mmap(NULL, bytes, PROT_NONE, flags, fd, 0); /* so that no page is found yet */
	if (memory == MAP_FAILED)
		return NULL;
	munlock(memory, bytes);
	if (!mprotect(memory, bytes, PROT_READ | PROT_WRITE))
		return memory;
	const int reason = errno;
	munmap(memory, bytes);
	errno = reason;
	return NULL;
}
