/* SPDX-License-Identifier: Apache-2.0 */
/* How functions are found: cuGetProcAddress over the table in api.def. */
#include "sim_cuda.h"

#include <string.h>

enum { PER_THREAD_SINCE = 7000 };

struct entry {
	const char *base;
	int version;
	void *legacy, *per_thread;
};

#define ADDRESS(symbol) ((void *)(uintptr_t)&symbol)
static const struct entry entries[] = {
#define API(base, symbol, version) {#base, version, ADDRESS(symbol), ADDRESS(symbol)},
#define API_STREAM(base, symbol, version, suffix) {#base, version, ADDRESS(symbol), ADDRESS(symbol##suffix)},
#define API_ALIAS(base, symbol, version) API(base, symbol, version)
#include "api.def"
#undef API
#undef API_STREAM
#undef API_ALIAS
};

static CUresult find(const char *symbol, void **out, int version, cuuint64_t flags,
		     CUdriverProcAddressQueryResult *status)
{
	const struct entry *best = NULL;
	bool known = false;
	if (!symbol || !out || version > (int)(sim.opened ? sim.view.machine.cuda_version : CUDA_VERSION) ||
	    flags > CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM)
		return CUDA_ERROR_INVALID_VALUE;
	for (size_t i = 0; i < sizeof entries / sizeof *entries; i++) {
		if (strcmp(entries[i].base, symbol) != 0 || faults_missing(&sim.faults, symbol))
			continue;
		known = true;
		if (entries[i].version <= version && (!best || entries[i].version > best->version))
			best = &entries[i];
	}
	*out = NULL;
	if (best)
		*out = flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM ? best->per_thread
									     : best->legacy;
	if (status)
		*status = best    ? CU_GET_PROC_ADDRESS_SUCCESS
			  : known ? CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT
				  : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
	return best || status ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND; /* as driver 580 does */
}

CUresult cuGetProcAddress(const char *symbol, void **out, int version, cuuint64_t flags)
{
	SIM_CHECK(find(symbol, out, version, flags, NULL));
	return *out ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND; /* so documented up to 11.8 */
}

/* A name that is not found is no error since 12.0: the status says it. */
CUresult cuGetProcAddress_v2(const char *symbol, void **out, int version, cuuint64_t flags,
			     CUdriverProcAddressQueryResult *status)
{
	return find(symbol, out, version, flags, status);
}

/* Tables that only NVIDIA's own libraries know how to use. */
CUresult cuGetExportTable(const void **table, const CUuuid *id)
{
	if (!table || !id)
		return CUDA_ERROR_INVALID_VALUE;
	*table = NULL;
	return CUDA_ERROR_NOT_FOUND;
}
