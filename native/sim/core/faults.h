/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Faults on demand: $HAMI_SIM/faults, one a line, and $HAMI_SIM_FAULTS, separated by ';'. Read at init.
 *
 *	NAME=CODE[:after=N][:times=N][:delay_us=N][:gpu=N]
 *	                                              NAME returns CODE; 0 is success, for a delay alone
 *	missing=NAME                                  cuGetProcAddress does not know NAME; dlsym still does, as
 *	                                              an exported symbol cannot vanish from a loaded library
 *
 * NAME is a driver function without its version (cuMemAlloc stands for cuMemAlloc_v2 too), an NVML function,
 * rm_XXXXXXXX, a control of the simulated kernel in hexadecimal, or sim_context_made: where a context has its
 * channels and is not the application's yet (libcuda spends some 40 ms there on an H200). `after` calls pass before the first
 * fault, and `times` faults happen (default: for ever). CODE is decimal or 0x hexadecimal. `gpu` is for NVML
 * functions with a device and for controls: only the calls for that GPU of the machine (0 is the first) count and fail.
 */
#ifndef SIM_FAULTS_H
#define SIM_FAULTS_H
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

enum { FAULTS_MAX = 32, FAULT_ANY_GPU = -1 };

struct fault {
	char name[64];
	bool missing;
	int code;
	int gpu; /* or FAULT_ANY_GPU */
	uint64_t after, times;
	unsigned delay_us;
	_Atomic uint64_t calls;
};

struct faults {
	unsigned count;
	struct fault fault[FAULTS_MAX];
};

/* Reads both places. 0, or -EINVAL with one line on stderr. */
int faults_read(struct faults *out, const char *dir);

/*
 * True when a fault of no particular GPU names `name`; *code is then what to return, 0 for none. Sleeps the
 * delay asked for.
 */
bool faults_hit(struct faults *faults, const char *name, int *code);

/* The same, for the faults of GPU `gpu` alone. */
bool faults_hit_gpu(struct faults *faults, const char *name, uint32_t gpu, int *code);

bool faults_missing(const struct faults *faults, const char *name);
#endif
