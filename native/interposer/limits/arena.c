/* SPDX-License-Identifier: Apache-2.0 */
#include "limits/arena.h"

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/log.h"
#include "hami_contract.h"
#include "limits/host_room.h"

/* Ends the page-locks, as far as the driver does. It says so of each: one may have gone with the context in which it was. */
static void unpin(struct hami_arena *arena, const struct real_cuda *real)
{
	for (; arena->pinned; arena->pinned -= HAMI_ARENA_PIECE) {
		const CUresult result =
			real->cuMemHostUnregister(arena->memory + arena->pinned - HAMI_ARENA_PIECE);
		if (result != CUDA_SUCCESS && result != CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED &&
		    result != CUDA_ERROR_INVALID_VALUE)
			return;
	}
}

static bool is_registered(const struct hami_arena *arena, const struct real_cuda *real)
{
	unsigned int type = 0;
	const CUdeviceptr address = (CUdeviceptr)(uintptr_t)arena->memory;
	return real->cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address) ==
		       CUDA_SUCCESS &&
	       type == CU_MEMORYTYPE_HOST;
}

static size_t whole_pieces(size_t bytes)
{
	return bytes / HAMI_ARENA_PIECE * HAMI_ARENA_PIECE;
}

static const char *folder; /* where the program wants it instead of in the host's memory; NULL: nowhere */

void hami_arena_begin(void)
{
	const char *path = secure_getenv(HAMI_ENV_SWAP_DIR);
	folder = path && *path ? strdup(path) : NULL;
}

static void complain(void)
{
	static bool said;
	if (!said)
		hami_log(0, HAMI_ENV_SWAP_DIR "=%.200s holds no device memory (%s); it stays on the GPU\n",
			 folder, strerror(errno));
	said = true;
}

/* All of its blocks are the file's from here on: a disk that is full later is no reason to end the program. */
static void *map_file(size_t room)
{
	const int fd = open(folder, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
	void *memory = MAP_FAILED;
	if (fd >= 0 && !fallocate(fd, 0, 0, (off_t)room))
		memory = mmap(NULL, room, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (memory == MAP_FAILED)
		complain();
	if (fd >= 0)
		close(fd);
	return memory;
}

static bool map(struct hami_arena *arena, size_t room)
{
	void *memory = folder ? map_file(room)
			      : mmap(NULL, room, PROT_READ | PROT_WRITE,
				     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (memory == MAP_FAILED)
		return false;
	if (!folder)
		madvise(memory, room, MADV_HUGEPAGE);
	madvise(memory, room, MADV_DONTFORK);
	madvise(memory, room, MADV_DONTDUMP);
	*arena = (struct hami_arena){.memory = memory, .room = room, .is_file = folder != NULL};
	return true;
}

uint64_t hami_arena_room(const struct hami_arena *arena)
{
	struct statvfs disk;
	if (!folder)
		return hami_host_room() + arena->pinned;
	if (!statvfs(folder, &disk))
		return (uint64_t)disk.f_bavail * disk.f_frsize;
	complain();
	return 0;
}

bool hami_arena_have(struct hami_arena *arena, const struct real_cuda *real, CUcontext context, size_t bytes)
{
	CUcontext before;
	if (arena->pinned && real->cuCtxPushCurrent_v2(context) == CUDA_SUCCESS) {
		if (arena->room < bytes || !is_registered(arena, real))
			unpin(arena, real);
		real->cuCtxPopCurrent_v2(&before);
	}
	if (arena->room >= bytes)
		return true;
	if (arena->pinned)
		return false; /* the driver would go on copying to pages that are nobody's */
	if (arena->memory)
		munmap(arena->memory, arena->room);
	*arena = (struct hami_arena){0};
	const size_t exact = whole_pieces(bytes + HAMI_ARENA_PIECE - 1),
		     ample = whole_pieces(bytes / 2) + exact;
	return (!folder && map(arena, ample)) || map(arena, exact);
}

void hami_arena_pin(struct hami_arena *arena, const struct real_cuda *real, CUcontext context, size_t used,
		    size_t bound)
{
	CUcontext before;
	const size_t pieces = whole_pieces(used + HAMI_ARENA_PIECE - 1);
	const size_t most = whole_pieces(bound < pieces ? bound : pieces);
	if (arena->is_file || arena->pinned >= most || !real->cuMemHostRegister_v2 ||
	    !real->cuMemHostUnregister || !real->cuPointerGetAttribute ||
	    real->cuCtxPushCurrent_v2(context) != CUDA_SUCCESS)
		return;
	while (arena->pinned < most &&
	       real->cuMemHostRegister_v2(arena->memory + arena->pinned, HAMI_ARENA_PIECE, 0) == CUDA_SUCCESS)
		arena->pinned += HAMI_ARENA_PIECE;
	real->cuCtxPopCurrent_v2(&before);
}

void hami_arena_give_back(struct hami_arena *arena)
{
	if (arena->is_file) {
		munmap(arena->memory, arena->room); /* and so the file's blocks */
		*arena = (struct hami_arena){0};
	}
	if (arena->room > arena->pinned)
		madvise(arena->memory + arena->pinned, arena->room - arena->pinned, MADV_FREE);
}
