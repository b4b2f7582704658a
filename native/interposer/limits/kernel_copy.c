/* SPDX-License-Identifier: Apache-2.0 */
#include "limits/kernel_copy.h"

#include <stdint.h>

#include "base/log.h"

enum { BLOCKS = 64, THREADS = 256 };

/* Each thread copies a unit of 16 bytes, and then the one that is as many units on as there are threads. */
static const char program[] =
	".version 6.0\n"
	".target sm_50\n"
	".address_size 64\n"
	".visible .entry hami_kernel_copy(.param .u64 to, .param .u64 from, .param .u64 count)\n"
	"{\n"
	".reg .pred %p<2>;\n"
	".reg .b32 %r<9>;\n"
	".reg .b64 %d<10>;\n"
	"ld.param.u64 %d1, [to];\n"
	"ld.param.u64 %d2, [from];\n"
	"ld.param.u64 %d3, [count];\n"
	"cvta.to.global.u64 %d1, %d1;\n"
	"cvta.to.global.u64 %d2, %d2;\n"
	"mov.u32 %r1, %ctaid.x;\n"
	"mov.u32 %r2, %ntid.x;\n"
	"mov.u32 %r3, %tid.x;\n"
	"mov.u32 %r4, %nctaid.x;\n"
	"cvt.u64.u32 %d5, %r3;\n"
	"mad.wide.u32 %d4, %r1, %r2, %d5;\n"
	"mul.wide.u32 %d6, %r4, %r2;\n"
	"NEXT:\n"
	"setp.ge.u64 %p1, %d4, %d3;\n"
	"@%p1 bra DONE;\n"
	"shl.b64 %d7, %d4, 4;\n"
	"add.u64 %d8, %d2, %d7;\n"
	"add.u64 %d9, %d1, %d7;\n"
	"ld.global.v4.u32 {%r5, %r6, %r7, %r8}, [%d8];\n"
	"st.global.v4.u32 [%d9], {%r5, %r6, %r7, %r8};\n"
	"add.u64 %d4, %d4, %d6;\n"
	"bra NEXT;\n"
	"DONE:\n"
	"ret;\n"
	"}\n";

static struct {
	unsigned long long context; /* its id, which no other context has; 0: none */
	CUfunction function;
} copier;

static bool has_all(const struct real_cuda *real)
{
	return real->cuCtxGetId && real->cuCtxGetCurrent && real->cuModuleLoadData && real->cuModuleUnload &&
	       real->cuModuleGetFunction && real->cuMemHostGetDevicePointer_v2 &&
	       real->cuThreadExchangeStreamCaptureMode && real->cuLaunchKernel;
}

CUstreamCaptureMode hami_kernel_copy_enter(const struct real_cuda *real)
{
	CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
	real->cuThreadExchangeStreamCaptureMode(&mode);
	return mode;
}

void hami_kernel_copy_leave(const struct real_cuda *real, CUstreamCaptureMode mode)
{
	real->cuThreadExchangeStreamCaptureMode(&mode);
}

static CUresult load(const struct real_cuda *real, CUfunction *function)
{
	CUmodule module;
	CUresult result = real->cuModuleLoadData(&module, program);
	if (result != CUDA_SUCCESS)
		return result;
	result = real->cuModuleGetFunction(function, module, "hami_kernel_copy");
	if (result != CUDA_SUCCESS)
		real->cuModuleUnload(module);
	return result;
}

CUresult hami_kernel_copy_prepare(const struct real_cuda *real)
{
	CUcontext context;
	unsigned long long id;
	if (!has_all(real) || real->cuCtxGetCurrent(&context) != CUDA_SUCCESS ||
	    real->cuCtxGetId(context, &id) != CUDA_SUCCESS)
		return CUDA_ERROR_NOT_SUPPORTED;
	if (copier.context == id)
		return CUDA_SUCCESS;
	const CUstreamCaptureMode mode = hami_kernel_copy_enter(real);
	const CUresult result = load(real, &copier.function);
	hami_kernel_copy_leave(real, mode);
	copier.context = result == CUDA_SUCCESS ? id : 0;
	if (result != CUDA_SUCCESS)
		hami_log(1, "no kernel that copies (error %d): some of the memory stays on the GPU\n",
			 (int)result);
	return result;
}

CUresult hami_kernel_copy(const struct real_cuda *real, CUdeviceptr device, char *host, size_t bytes,
			  bool to_host, CUstream stream)
{
	CUdeviceptr reached;
	const CUresult result = real->cuMemHostGetDevicePointer_v2(&reached, host, 0);
	if (result != CUDA_SUCCESS)
		return result;
	uint64_t count = bytes / HAMI_KERNEL_UNIT;
	void *arguments[] = {to_host ? &reached : &device, to_host ? &device : &reached, &count};
	if ((bytes | device | reached) % HAMI_KERNEL_UNIT)
		return CUDA_ERROR_INVALID_VALUE;
	return real->cuLaunchKernel(copier.function, BLOCKS, 1, 1, THREADS, 1, 1, 0, stream, arguments, NULL);
}

void hami_kernel_copy_forked(void)
{
	if (copier.context)
		copier.context = 0;
}
