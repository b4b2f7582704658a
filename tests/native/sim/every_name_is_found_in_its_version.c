/* SPDX-License-Identifier: Apache-2.0 */
#include "check.h"

#include <dlfcn.h>

static void *library;

/* cuGetProcAddress and dlsym agree, and a version too low is told from an unknown name. */
static void check_row(const char *base, const char *symbol, int version, const char *suffix)
{
	char per_thread[128];
	void *function, *expected = dlsym(library, symbol);
	CUdriverProcAddressQueryResult status;
	CHECK(expected);
	OK(cuGetProcAddress(base, &function, version, CU_GET_PROC_ADDRESS_LEGACY_STREAM, &status));
	CHECK(function == expected && status == CU_GET_PROC_ADDRESS_SUCCESS);
	snprintf(per_thread, sizeof per_thread, "%s%s", symbol, suffix);
	int since = version > 7000 ? version : 7000;
	void *newest;
	OK(cuGetProcAddress(base, &newest, since, CU_GET_PROC_ADDRESS_LEGACY_STREAM, &status));
	if (newest != expected)
		return; /* a newer version had come by then */
	OK(cuGetProcAddress(base, &function, since, CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM, &status));
	CHECK(function == dlsym(library, per_thread));
}

static void check_missing(void)
{
	void *function = (void *)1;
	CUdriverProcAddressQueryResult status;
	OK(cuGetProcAddress("cuNoSuchThing", &function, 13000, 0, &status));
	CHECK(!function && status == CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND);
	OK(cuGetProcAddress("cuMemAllocAsync", &function, 11010, 0, &status));
	CHECK(!function && status == CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT);
	CUresult (*first_version)(const char *, void **, int, cuuint64_t);
	OK(cuGetProcAddress("cuGetProcAddress", (void **)&first_version, 11030, 0, &status));
	GIVES(CUDA_ERROR_NOT_FOUND, first_version("cuNoSuchThing", &function, 11030, 0));
	OK(first_version("cuInit", &function, 11030, 0));
	GIVES(CUDA_ERROR_INVALID_VALUE, cuGetProcAddress("cuInit", &function, 14000, 0, &status));
	GIVES(CUDA_ERROR_INVALID_VALUE, cuGetProcAddress(NULL, &function, 13000, 0, &status));
	OK(cuGetProcAddress("cuArrayCreate", &function, 13000, 0, &status));
	CHECK(status == CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND); /* by the faults of this test */
	CHECK(dlsym(library, "cuArrayCreate_v2"));
}

int main(void)
{
	make_machine("h200");
	setenv("HAMI_SIM_FAULTS", "missing=cuArrayCreate", 1);
	library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
	CHECK(library);
	int rows = 0;
#define API(base, symbol, version) check_row(#base, #symbol, version, ""), rows++;
#define API_STREAM(base, symbol, version, suffix) check_row(#base, #symbol, version, #suffix), rows++;
#define API_ALIAS(base, symbol, version) check_row(#base, #symbol, version, ""), rows++;
#include "../../../native/sim/cuda/api.def"
	CHECK(rows > 150);
	OK(cuInit(0));
	check_missing();
	return 0;
}
