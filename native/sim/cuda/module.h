/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SIM_MODULE_H
#define SIM_MODULE_H
#include "sim_cuda.h"

enum { SIM_MODULE_MAGIC = 0x4d4f4455, SIM_FUNCTION_MAGIC = 0x46554e43 };

/* Also what a CUlibrary points to. */
struct CUmod_st {
	uint32_t magic;
	struct CUfunc_st *functions;
	char *text; /* of PTX; NULL: another image */
};

/* Also what a CUkernel points to. */
struct CUfunc_st {
	uint32_t magic;
	bool spins;  /* sim_spin_ns */
	bool works;  /* hami_hpc_work */
	bool copies; /* hami_kernel_copy */
	int max_dynamic_shared, shared_carveout;
	struct CUmod_st *module;
	struct CUfunc_st *next;
	char name[512];
};

bool sim_function_valid(const struct CUfunc_st *function);

/* How long a launch of function with these arguments (either form may be NULL) takes on device. */
CUresult sim_kernel_ns(const struct CUfunc_st *function, uint32_t device, void **parameters, void **extra,
		       uint64_t *out);
#endif
