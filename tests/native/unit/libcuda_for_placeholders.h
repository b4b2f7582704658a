/* SPDX-License-Identifier: Apache-2.0 */
/* For a_hint_holds_the_gpu_until_the_next_launch.c, which includes limits/placeholder.c: what that calls, and what it saw. */
#ifndef LIBCUDA_FOR_PLACEHOLDERS_H
#define LIBCUDA_FOR_PLACEHOLDERS_H

static struct hami_limits limits;
static struct hami_region region = {.job = &limits, .step = &limits};
static unsigned long long current_id = 7; /* of the current context; 0: none is current */
static CUresult refusal;                  /* of what a context has to be prepared by */
static bool refuses_launches;
static int modules, streams, registered, launches, relaxed, inside;
static struct {
	CUfunction function;
	CUstream stream;
	struct flag *flag;
	uint32_t number;
	uint64_t most;
} last;

/* Whether a placeholder goes on whose flag and number these are; whether the last one does. */
static bool goes_on(struct flag *flag, uint32_t number)
{
	return (int32_t)(flag->reached - number) < 0 || (int32_t)(flag->submitted - number) < 0;
}

static bool spins(void)
{
	return goes_on(last.flag, last.number);
}

static CUresult get_current(CUcontext *context)
{
	*context = (CUcontext)(uintptr_t)current_id;
	return CUDA_SUCCESS;
}

static CUresult get_id(CUcontext context, unsigned long long *id)
{
	*id = (unsigned long long)(uintptr_t)context;
	return CUDA_SUCCESS;
}

static CUresult load(CUmodule *module, const void *image)
{
	CHECK(relaxed == 1 && inside == 1 && strstr(image, ".entry hami_placeholder_behind()"));
	*module = (CUmodule)(uintptr_t)++modules;
	return refusal;
}

static CUresult get_function(CUfunction *function, CUmodule module, const char *name)
{
	*function = (CUfunction)(uintptr_t)((uintptr_t)module * 2 + !strcmp(name, "hami_placeholder_behind"));
	return CUDA_SUCCESS;
}

static CUresult priorities(int *least, int *greatest)
{
	*least = 0, *greatest = -5;
	return CUDA_SUCCESS;
}

static CUresult make_it(CUstream *stream, unsigned int flags, int priority)
{
	CHECK(flags == CU_STREAM_NON_BLOCKING && priority == -5);
	*stream = (CUstream)(uintptr_t)++streams;
	return CUDA_SUCCESS;
}

static void *kept; /* the page of a context that stays */
static bool all_stay;

static CUresult lock_pages(void *memory, size_t size, unsigned int flags)
{
	if (memory == kept || (all_stay && memory))
		return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
	CHECK(size >= sizeof(struct flag) && flags == CU_MEMHOSTREGISTER_DEVICEMAP);
	registered++;
	return CUDA_SUCCESS;
}

static CUresult get_pointer(CUdeviceptr *pointer, void *memory, unsigned int flags)
{
	CHECK(!flags);
	*pointer = (CUdeviceptr)(uintptr_t)memory;
	return CUDA_SUCCESS;
}

static CUresult exchange(CUstreamCaptureMode *mode)
{
	relaxed += *mode == CU_STREAM_CAPTURE_MODE_RELAXED ? 1 : -1;
	*mode = *mode == CU_STREAM_CAPTURE_MODE_RELAXED ? CU_STREAM_CAPTURE_MODE_GLOBAL
							: CU_STREAM_CAPTURE_MODE_RELAXED;
	return CUDA_SUCCESS;
}

static CUresult launch_it(CUfunction f, unsigned int gx, unsigned int gy, unsigned int gz, unsigned int bx,
			  unsigned int by, unsigned int bz, unsigned int shared, CUstream stream,
			  void **params, void **extra)
{
	CHECK(gx * gy * gz * bx * by * bz == 1 && !shared && !extra && relaxed == 1 && inside == 1);
	if (refuses_launches)
		return CUDA_ERROR_LAUNCH_FAILED;
	launches++;
	if ((uintptr_t)f & 1) { /* what waits behind the placeholder, in its stream */
		CHECK((uintptr_t)f == (uintptr_t)last.function + 1 && stream == last.stream);
		return CUDA_SUCCESS;
	}
	last.function = f;
	last.stream = stream;
	last.flag = (struct flag *)(uintptr_t) * (CUdeviceptr *)params[0];
	last.number = *(uint32_t *)params[1];
	last.most = *(uint64_t *)params[2];
	CHECK(*(uint64_t *)params[3] == AFTER_NS);
	CHECK(spins()); /* else it ends as it begins */
	return CUDA_SUCCESS;
}

/* Of the program's stream: whether it is being captured, and the context that it is of. */
static CUstreamCaptureStatus capturing;
static CUresult capture_answer;
static unsigned long long stream_id = 7;
static struct {
	CUstream stream;
	_Atomic uint32_t *word;
	uint32_t number;
} written;
static CUresult write_refusal;

static CUresult is_capturing(CUstream stream, CUstreamCaptureStatus *status)
{
	CHECK(stream);
	*status = capturing;
	return capture_answer;
}

static CUresult context_of(CUstream stream, CUcontext *context)
{
	CHECK(stream);
	*context = (CUcontext)(uintptr_t)stream_id;
	return CUDA_SUCCESS;
}

static CUresult write_value(CUstream stream, CUdeviceptr address, cuuint32_t value, unsigned int flags)
{
	CHECK(!flags);
	written.stream = stream;
	written.word = (_Atomic uint32_t *)(uintptr_t)address;
	written.number = value;
	return write_refusal;
}

static struct real_cuda real = {.cuStreamIsCapturing = is_capturing,
				.cuStreamGetCtx = context_of,
				.cuStreamWriteValue32_v2 = write_value,
				.cuCtxGetCurrent = get_current,
				.cuCtxGetId = get_id,
				.cuModuleLoadData = load,
				.cuModuleGetFunction = get_function,
				.cuCtxGetStreamPriorityRange = priorities,
				.cuStreamCreateWithPriority = make_it,
				.cuMemHostRegister_v2 = lock_pages,
				.cuMemHostGetDevicePointer_v2 = get_pointer,
				.cuThreadExchangeStreamCaptureMode = exchange,
				.cuLaunchKernel = launch_it};

const struct real_cuda *hami_resolved_cuda(void)
{
	return &real;
}

int hami_current_slice(const struct real_cuda *cuda)
{
	(void)cuda;
	return 0;
}

struct hami_region *hami_slice_region(unsigned int slice)
{
	CHECK(slice == 0);
	return &region;
}

void hami_hold_enter(enum hami_hold what)
{
	CHECK(what == HAMI_HOLD_WORK);
	inside++;
}

void hami_hold_leave(enum hami_hold what)
{
	(void)what;
	inside--;
}

static enum hami_outstanding work = HAMI_NOTHING_OUTSTANDING; /* of the program's */

enum hami_outstanding hami_outstanding_glance(unsigned int slice, int groups)
{
	CHECK(slice == 0 && groups == 3);
	return work;
}

int hami_objects_started(unsigned int slice)
{
	CHECK(slice == 0);
	return 3;
}

void hami_log(int level, const char *format, ...)
{
	CHECK(level == 1 && strstr(format, "placeholder"));
}

#endif
