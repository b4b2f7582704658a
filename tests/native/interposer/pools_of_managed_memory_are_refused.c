/* SPDX-License-Identifier: Apache-2.0 */
/* CUDA 13's pools of managed memory would pass the limit by; pools of device memory are not affected. */
#include <dlfcn.h>

#include "check.h"

typedef CUresult get_pool(CUmemoryPool *, CUmemLocation *, CUmemAllocationType);

int main(void)
{
	static const char *const getters[] = {"cuMemGetMemPool", "cuMemGetDefaultMemPool"};
	CUdevice device = start();
	CUmemLocation here = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device};
	CUmemPoolProps properties = {.allocType = CU_MEM_ALLOCATION_TYPE_MANAGED, .location = here};
	CUmemoryPool pool;
	GIVES(CUDA_ERROR_NOT_SUPPORTED, cuMemPoolCreate(&pool, &properties));
	for (int i = 0; i < 2; i++) {
		get_pool *get = (get_pool *)dlsym(RTLD_DEFAULT, getters[i]);
		CHECK(get != NULL);
		GIVES(CUDA_ERROR_NOT_SUPPORTED, get(&pool, &here, CU_MEM_ALLOCATION_TYPE_MANAGED));
	}
	properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
	OK(cuMemPoolCreate(&pool, &properties));
	OK(cuMemPoolDestroy(pool));
	return 0;
}
