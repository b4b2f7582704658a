/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Linked, found by dlsym in three ways, or asked of cuGetProcAddress with any version and flag: the function
 * obeys the limit. What the driver would answer to a lookup that fails stays as it is.
 */
#include <dlfcn.h>
#include <string.h>

#include "check.h"

typedef CUresult allocate_fn(CUdeviceptr *, size_t);
typedef CUresult allocate_async_fn(CUdeviceptr *, size_t, CUstream);

static void obeys(void *function)
{
	CUdeviceptr a;
	allocate_fn *allocate = (allocate_fn *)function;
	CHECK(allocate != NULL);
	size_t before = free_bytes();
	OK(allocate(&a, 4 * MIB));
	CHECK(before - free_bytes() == 4 * MIB);
	OK(cuMemFree(a));
	GIVES(CUDA_ERROR_OUT_OF_MEMORY, allocate(&a, limit_bytes()));
}

static void by_dlsym(void)
{
	Dl_info info;
	void *by_name = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL);
	CHECK(by_name != NULL);
	void *plain =
		dlsym(by_name, "cuDeviceGetName"); /* not hooked: the driver's own, which names its file */
	CHECK(plain && dladdr(plain, &info) && strstr(info.dli_fname, "libcuda.so"));
	void *by_path = dlopen(info.dli_fname, RTLD_NOW);
	CHECK(by_path != NULL);
	obeys(dlsym(by_name, "cuMemAlloc_v2"));
	obeys(dlsym(by_path, "cuMemAlloc_v2"));
	obeys(dlsym(RTLD_DEFAULT, "cuMemAlloc_v2"));
	obeys(dlsym(RTLD_NEXT, "cuMemAlloc_v2"));
	CHECK(dlsym(by_name, "cuNoSuchFunction") == NULL);
	CHECK(strstr(dlerror(), "cuNoSuchFunction") != NULL);
	CHECK(dlsym(RTLD_NEXT, "main") == NULL); /* relative to this program, not to the interposer */
	CHECK(dlsym(RTLD_DEFAULT, "printf") == (void *)printf);
}

static void by_cuda(void)
{
	static const int versions[] = {3020, 11020, 12000, 13000};
	static const cuuint64_t flags[] = {CU_GET_PROC_ADDRESS_DEFAULT, CU_GET_PROC_ADDRESS_LEGACY_STREAM,
					   CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM};
	CUdriverProcAddressQueryResult status;
	void *function;
	for (size_t v = 0; v < sizeof versions / sizeof *versions; v++) {
		for (size_t f = 0; f < sizeof flags / sizeof *flags; f++) {
			OK(cuGetProcAddress("cuMemAlloc", &function, versions[v], flags[f], &status));
			CHECK(status == CU_GET_PROC_ADDRESS_SUCCESS);
			obeys(function);
			if (versions[v] < 11020)
				continue;
			OK(cuGetProcAddress("cuMemAllocAsync", &function, versions[v], flags[f], &status));
			allocate_async_fn *allocate = (allocate_async_fn *)function;
			CUdeviceptr a;
			GIVES(CUDA_ERROR_OUT_OF_MEMORY, allocate(&a, limit_bytes(), NULL));
		}
	}
	/* cuGetProcAddress found through itself leads to hooks as well. */
	OK(cuGetProcAddress("cuGetProcAddress", &function, 12000, 0, &status));
	CUresult (*again)(const char *, void **, int, cuuint64_t, CUdriverProcAddressQueryResult *) =
		(__typeof__(again))function;
	OK(again("cuMemAlloc", &function, 12000, 0, &status));
	obeys(function);
	OK(cuGetProcAddress("cuMemAllocAsync", &function, 11000, 0, &status));
	CHECK(function == NULL && status == CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT);
	OK(cuGetProcAddress("cuNoSuchFunction", &function, 12000, 0, &status));
	CHECK(function == NULL && status == CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND);
}

int main(void)
{
	start();
	obeys((void *)cuMemAlloc);
	by_dlsym();
	by_cuda();
	return 0;
}
