/* SPDX-License-Identifier: Apache-2.0 */
#include "swap.h"

static const size_t SIZE = 16 * MIB;

/* The memory leaves and comes back in the middle of a kernel, with its bytes. */
int main(void)
{
	CUdeviceptr address;
	CUstream compute, copies;
	unsigned *host;
	make_machine("h200");
	watch_memory = hold;
	open_device();
	CUfunction f = spin_function();
	OK(cuStreamCreate(&compute, CU_STREAM_DEFAULT));
	OK(cuStreamCreate(&copies, CU_STREAM_NON_BLOCKING));
	OK(cuMemAlloc(&address, SIZE));
	OK(cuMemsetD32(address, 77, SIZE / sizeof *host));
	OK(cuCtxSynchronize());
	spin(f, compute, 100 * MS);
	CHECK(set_disabled(true) == RM_OK);
	OK(cuMemHostAlloc((void **)&host, SIZE, 0));
	uint64_t start = now_ns();
	OK(cuMemcpyDtoHAsync(host, address, SIZE, copies));
	OK(cuStreamSynchronize(copies));
	CHECK(host[0] == 77 && host[SIZE / sizeof *host - 1] == 77);
	struct held *h = held_at(address);
	take_away(h);
	give_back(h);
	OK(cuMemcpyHtoDAsync(address, host, SIZE, copies));
	OK(cuStreamSynchronize(copies));
	CHECK(now_ns() - start < 2000 * MS);
	usleep(150000);
	GIVES(CUDA_ERROR_NOT_READY, cuStreamQuery(compute)); /* it was paused all the time */
	CHECK(set_disabled(false) == RM_OK);
	OK(cuStreamSynchronize(compute));
	memset(host, 0, SIZE);
	OK(cuMemcpyDtoH(host, address, SIZE));
	CHECK(host[0] == 77 && host[SIZE / sizeof *host - 1] == 77);
	return 0;
}
