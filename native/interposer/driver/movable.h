/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What it takes to free an object of this process's device memory and to make it again, with the same handle at the same
 * addresses, without the application noticing (docs/adr/077): the request that made it, as libcuda wrote it, and how
 * UVM maps it. An object that anything else was done with (mapped for the CPU, given a second handle, mapped twice or in
 * part) is fixed: it stays where it is.
 *
 * Where a machine has several GPUs, libcuda gives each large object (of 1 GiB; not of 64 MiB) a second handle by which they
 * could reach it over NVLink (RM_CLASS_FABRIC). The memory lives for as long as either is there, so that one is freed and made again, too.
 * Until anything is done with it nobody knows its address, which is another one then.
 *
 * Nothing is kept before hami_movable_track(). Thread-safe, not async-signal-safe: one lock, held over no call. A forked
 * child starts with none.
 */
#ifndef HAMI_MOVABLE_H
#define HAMI_MOVABLE_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "rm_abi.h"
#include "uvm_abi.h"

/* What is in an object, where that is certain. */
enum hami_holds {
	HAMI_HOLDS_ANYTHING,
	HAMI_HOLDS_POOL, /* of a stream-ordered pool a segment: the program's alone, of whole pages, where not all is allocated */
	HAMI_HOLDS_ARRAYS, /* CUDA arrays and nothing of libcuda's */
	HAMI_HOLDS_ONE,    /* a single allocation of the program, at its beginning */
	HAMI_HOLDS_SMALL, /* allocations of the program that are smaller than a page, and nothing of libcuda's */
};

/* A request for a handle of that kind; its object is 0 where the memory has none. */
struct hami_fabric {
	struct rm_alloc request;
	struct rm_fabric params;
};

struct hami_movable {
	uint64_t serial; /* no other has it: an object of the same handle may follow */
	int fd;          /* owns the client */
	struct rm_alloc request;
	struct rm_memory_params params;
	struct hami_fabric fabric;
	int uvm_fd, control_fd;
	uint64_t base, length;
	enum hami_holds holds;
	uint64_t allocated; /* one: so much of its beginning libcuda copies; 0: all of it */
	struct uvm_attributes gpu;
};

/* Returns whether this is a handle of the object, either of the two. */
bool hami_movable_has(const struct hami_movable *movable, uint32_t client, uint32_t handle);

/* From now on; return whether. */
void hami_movable_track(void);
bool hami_movable_tracked(void);

/* Copies what a request for device memory asks for, before it is made. False: it is of a form that is not kept. */
bool hami_movable_read(unsigned long number, const void *argument, struct hami_movable *out);
/* The request was answered: the object has this handle. */
void hami_movable_made(int fd, uint32_t handle, const struct hami_movable *asked);
/* Begins a call of this thread: the objects that it makes from now on hold that. */
void hami_movable_making(enum hami_holds holds);
/* Adds up the bytes of what hami_movable_list() leaves out, small and fixed (mapped for the CPU or shared), and of all others. */
void hami_movable_stays(uint64_t least, uint64_t *small, uint64_t *fixed, uint64_t *others);
/* Returns a number that grows with each object that is made, or mapped. */
uint64_t hami_movable_last(void);
/* A pool gave these addresses to the program: the objects that they are in are its segments. */
void hami_movable_pool(uint64_t address, uint64_t bytes);
/* The call gave the program these addresses: an object that it made for them holds one allocation, or small ones. */
void hami_movable_allocated(uint64_t address, uint64_t bytes);
/*
 * A request, which succeeded, gave an object a handle by which other GPUs reach it. False: it is of a form that is not kept,
 * of whichever object it is.
 */
bool hami_movable_reached(unsigned long number, const void *argument, const struct rm_fabric *params);
/* Something was done with the object, by either handle, that a new one would not know of. */
void hami_movable_fix(uint32_t client, uint32_t handle);
/* The object is no more; `handle` may be its client, its parent, or any other object. */
void hami_movable_gone(uint32_t client, uint32_t handle);

/* UVM mapped, or unmapped. `argument` as in the ioctl, which succeeded. */
void hami_movable_mapped(int uvm_fd, const void *argument);
void hami_movable_unmapped(uint64_t base, uint64_t length);

/*
 * Returns copies of all objects that can be moved and are at least that large, or are known to hold nothing of libcuda's;
 * NULL when there is none, or no memory for it. The caller frees them.
 */
struct hami_movable *hami_movable_list(uint64_t least, size_t *count);
/* Returns whether the object is still there, and still as it was. */
bool hami_movable_same(const struct hami_movable *movable);

/* In a forked child. */
void hami_movable_forked(void);

#endif
