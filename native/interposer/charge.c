/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>

#include "interposer.h"
#include "table.h"

#define MIB (1ull << 20)

/*
 * Driver 580.159 on an H200 (cuMemGetInfo before and after 64 allocations of a size): requests up to 1 MiB
 * share 2 MiB blocks at 512-byte steps, larger ones take whole 2 MiB blocks.
 */
uint64_t hami_footprint(uint64_t bytes)
{
	uint64_t step = bytes > MIB ? 2 * MIB : 512;
	return bytes > UINT64_MAX - step ? UINT64_MAX : (bytes + step - 1) / step * step;
}

CUresult hami_take(uint64_t bytes)
{
	int rc = hami_region_charge(hami_region(), HAMI_KIND_DATA, bytes);
	if (!rc)
		return CUDA_SUCCESS;
	if (rc != -ENOMEM)
		hami_log(0, "device memory cannot be accounted for (error %d), so the request is refused\n",
			 -rc);
	else
		hami_log(2, "a request for %llu bytes does not fit the limit\n", (unsigned long long)bytes);
	return CUDA_ERROR_OUT_OF_MEMORY;
}

static void *current_context(void)
{
	CUcontext context = NULL;
	const struct real_cuda *real = hami_cuda();
	return real && real->cuCtxGetCurrent(&context) == CUDA_SUCCESS ? (void *)context : NULL;
}

CUresult hami_settle(CUresult result, CUdeviceptr address, uint64_t bytes)
{
	if (result != CUDA_SUCCESS)
		hami_region_release(hami_region(), HAMI_KIND_DATA, bytes);
	else if (!hami_table_put(
			 (struct hami_entry){.key = address, .bytes = bytes, .owner = current_context()}))
		hami_log(0, "no memory to remember an allocation; it stays charged until the process ends\n");
	return result;
}

uint64_t hami_forget(CUdeviceptr address)
{
	return address ? hami_table_take(address).bytes : 0;
}

CUresult hami_freed(CUresult result, CUdeviceptr address, uint64_t bytes)
{
	if (!bytes)
		return result;
	if (result == CUDA_SUCCESS)
		hami_region_release(hami_region(), HAMI_KIND_DATA, bytes);
	else
		hami_table_put(
			(struct hami_entry){.key = address, .bytes = bytes, .owner = current_context()});
	return result;
}
