/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A placeholder of the program's own (docs/adr/104): a kernel of one thread, in a stream of its own, that ends when its flag
 * has a number, or after 2 ms, and what waits behind it: so many empty kernels, then so many values written.
 */
#include <vector>

__global__ void hold(volatile unsigned int *flag, unsigned int number)
{
	unsigned long long begin, at;
	asm volatile("mov.u64 %0, %globaltimer;" : "=l"(begin));
	do
		asm volatile("mov.u64 %0, %globaltimer;" : "=l"(at));
	while (*flag != number && at - begin < 2000000);
}

__global__ void nothing()
{
}

struct Placeholder {
	int kernels, writes;
	unsigned int *flag = nullptr, number = 0;
	CUdeviceptr address = 0;
	cudaStream_t stream = nullptr;

	Placeholder(int kernels, int writes) : kernels(kernels), writes(writes)
	{
		int least, greatest;
		OK(cudaHostAlloc((void **)&flag, 128, cudaHostAllocMapped));
		memset(flag, 0, 128);
		OK(cudaHostGetDevicePointer((void **)&address, flag, 0));
		OK(cudaDeviceGetStreamPriorityRange(&least, &greatest));
		OK(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, greatest));
	}

	void begin()
	{
		hold<<<1, 1, 0, stream>>>((volatile unsigned int *)address, ++number);
		for (int i = 0; i < kernels; i++)
			nothing<<<1, 1, 0, stream>>>();
		std::vector<CUstreamBatchMemOpParams> list(writes);
		for (auto &one : list) {
			one.writeValue = {CU_STREAM_MEM_OP_WRITE_VALUE_32, address + 64, {number}, 0, 0};
			one.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
		}
		if (writes && cuStreamBatchMemOp((CUstream)stream, writes, list.data(), 0) != CUDA_SUCCESS)
			abort();
	}

	void end()
	{
		*(volatile unsigned int *)flag = number;
	}
};
