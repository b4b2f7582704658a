/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A hint launches a placeholder, and one kernel behind it, in a stream of their own; the next launch's stream, when it comes
 * to it, or the end of the request ends it (limits/placeholder.h). With a libcuda of the test's own.
 */
#include "../../../native/interposer/limits/placeholder.c"

#include <string.h>
#include <sys/wait.h>

#include "check.h"

static struct hami_limits limits;
static struct hami_region region = {.job = &limits, .step = &limits};
static unsigned long long current_id = 7; /* of the current context; 0: none is current */
static CUresult refusal;                  /* of what a context has to be prepared by */
static bool refuses_launches;
static int modules, streams, registered, launches, relaxed, inside;
static struct {
	CUfunction function;
	CUstream stream;
	_Atomic uint32_t *flag;
	uint32_t number;
	uint64_t most;
} last;

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
	CHECK(size >= sizeof(uint32_t) && flags == CU_MEMHOSTREGISTER_DEVICEMAP);
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
	last.flag = (_Atomic uint32_t *)(uintptr_t) * (CUdeviceptr *)params[0];
	last.number = *(uint32_t *)params[1];
	last.most = *(uint64_t *)params[2];
	CHECK((int32_t)(*last.flag - last.number) < 0); /* else it ends as it begins */
	return CUDA_SUCCESS;
}

/* Of the program's stream: whether it is being captured, and the context that it is of. */
static CUstreamCaptureStatus capturing;
static CUresult capture_answer;
static unsigned long long stream_id = 7;
static struct {
	CUstream stream;
	_Atomic uint32_t *flag;
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
	written.flag = (_Atomic uint32_t *)(uintptr_t)address;
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

/* Hints, and returns how many kernels were launched. */
static int hint(void)
{
	const int before = launches;
	const bool launched = hami_placeholder_begin(HAMI_PLACEHOLDER_NS, true);
	CHECK(!relaxed && !inside && launched == (launches > before));
	return launches - before;
}

static bool spins(void)
{
	return (int32_t)(*last.flag - last.number) < 0;
}

static void nobody_has_to_give_way(void)
{
	limits.latency = 1;
	CHECK(hint() == 0); /* alone on the GPU */
	limits.latency = 0;
	limits.others_least_cores = 50;
	CHECK(hint() == 0); /* no class to give way to */
	limits.latency = 1;
	limits.mode = HAMI_MODE_MPS;
	CHECK(hint() == 0);
	limits.mode = HAMI_MODE_SHARE;
	current_id = 0;
	CHECK(hint() == 0 && !modules);
	current_id = 7;
	real.cuCtxGetId = NULL; /* a driver before CUDA 12 */
	CHECK(hint() == 0 && !modules);
	real.cuCtxGetId = get_id;
}

/* To load a module may wait for a kernel that waits for the program: it is done when there is none. */
static void not_prepared_while_the_program_has_work(void)
{
	const int before = modules;
	current_id = 9000;
	work = HAMI_SOMETHING_OUTSTANDING;
	CHECK(hint() == 0 && modules == before);
	work = HAMI_OUTSTANDING_UNKNOWN; /* a capture */
	CHECK(hint() == 2 && modules == before + 1);
	work = HAMI_SOMETHING_OUTSTANDING;
	CHECK(hint() == 2 && modules == before + 1); /* what is prepared is used */
	work = HAMI_NOTHING_OUTSTANDING;
	hami_placeholder_end();
}

static void until_the_next_launch(void)
{
	CHECK(!hami_placeholder_begin(0, false) && modules == 1 && !launches); /* prepared, and no more */
	CHECK(hint() == 2 && modules == 1 && streams == 1 && registered == 1);
	CHECK(last.most == HAMI_PLACEHOLDER_NS && spins());
	hami_placeholder_end();
	CHECK(!spins());
	hami_placeholder_end();
	for (int i = 0; i < 1000; i++) {
		CHECK(hint() == 2 && spins());
		uint32_t number = last.number;
		_Atomic uint32_t *flag = last.flag;
		if (i % 2)
			hami_placeholder_end();
		else
			CHECK(hint() == 2 && (int32_t)(*flag - number) >= 0); /* the next one ends it */
	}
	CHECK(modules == 1 && streams == 1 && registered == 1);
	atomic_store(&placeholder.places[0].number, UINT32_MAX - 1);
	atomic_store(last.flag, UINT32_MAX - 1);
	for (int i = 0; i < 4; i++) { /* numbers begin anew */
		CHECK(hint() == 2 && spins());
		hami_placeholder_end();
		CHECK(!spins());
	}
}

static void in_many_contexts(void)
{
	CHECK(hint() == 2);
	_Atomic uint32_t *first = last.flag;
	const uint32_t number = last.number;
	for (current_id = 100; current_id < 100 + 3 * CONTEXTS; current_id++)
		CHECK(hint() == 2 && spins());
	CHECK((int32_t)(*first - number) >= 0);
	hami_placeholder_end();
	current_id = 99 + 3 * CONTEXTS;
	const int before = modules;
	CHECK(hint() == 2 && modules == before);
	refusal = CUDA_ERROR_INVALID_PTX;
	current_id = 500;
	CHECK(hint() == 0 && modules == before + 1);
	CHECK(hint() == 0 && modules == before + 1); /* asked once */
	refusal = CUDA_SUCCESS;
	current_id = 501;
	refuses_launches = true; /* as after an error of the program's own kernel */
	CHECK(hint() == 0);
	refuses_launches = false;
	CHECK(hint() == 2);
}

/* A context that is alive keeps what it has, whatever comes and goes beside it. */
static void a_context_that_stays(void)
{
	current_id = 600;
	CHECK(hint() == 2);
	_Atomic uint32_t *own = last.flag;
	const int before = modules;
	kept = (void *)own;
	for (current_id = 1000; current_id < 1000 + 3 * CONTEXTS; current_id++)
		CHECK(hint() == 2 && last.flag != own);
	CHECK(modules == before + 3 * CONTEXTS);
	current_id = 600;
	CHECK(hint() == 2 && last.flag == own && modules == before + 3 * CONTEXTS);
	all_stay = true;
	current_id = 2000;
	CHECK(hint() == 0 && spins()); /* one too many: nor does it end another's */
	all_stay = false;
	CHECK(hint() == 2 && last.flag != own);
	kept = NULL;
}

static void not_in_a_child(void)
{
	int status;
	CHECK(hint() == 2);
	const pid_t pid = fork();
	CHECK(pid >= 0);
	if (!pid) {
		hami_placeholder_forked();
		hami_placeholder_end(); /* the parent's flag is not the child's: it would be SIGSEGV */
		modules = 0;
		CHECK(hint() == 2 && modules == 1);
		exit(0);
	}
	CHECK(waitpid(pid, &status, 0) == pid && status == 0);
	CHECK(spins());
	hami_placeholder_end();
}

/* The launch's own stream ends it, when it comes to the launch; the process goes on meanwhile. */
static void when_the_launch_begins(void)
{
	const CUstream own = (CUstream)(uintptr_t)77;
	current_id = stream_id = 7;
	CHECK(!hami_placeholder_hand_over(own, false)); /* there is none */
	CHECK(hint() == 2 && spins());
	CHECK(hami_placeholder_hand_over(own, false));
	CHECK(written.stream == own && written.flag == last.flag && spins());
	*written.flag = written.number;
	CHECK(!spins());
	CHECK(hint() == 2 && hami_placeholder_hand_over(NULL, false) && written.stream == CU_STREAM_LEGACY);
	CHECK(hint() == 2 && hami_placeholder_hand_over(NULL, true) &&
	      written.stream == CU_STREAM_PER_THREAD);
	hami_placeholder_end(); /* the request is over before its launch begins: it was a copy */
	CHECK(!spins());
	/* Whatever the stream cannot do, the launch does as it returns. */
	CHECK(hint() == 2);
	written.stream = NULL;
	capturing = CU_STREAM_CAPTURE_STATUS_ACTIVE;
	CHECK(!hami_placeholder_hand_over(own, false) && !written.stream);
	capturing = CU_STREAM_CAPTURE_STATUS_NONE;
	capture_answer = CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
	CHECK(!hami_placeholder_hand_over(NULL, false) && !written.stream);
	capture_answer = CUDA_SUCCESS;
	stream_id =
		8; /* the flag is not mapped in another context: the write would be an error of the program's */
	CHECK(!hami_placeholder_hand_over(own, false) && !written.stream);
	stream_id = 7;
	real.cuStreamGetCtx = NULL;
	CHECK(!hami_placeholder_hand_over(own, false) && !written.stream);
	real.cuStreamGetCtx = context_of;
	real.cuStreamWriteValue32_v2 = NULL;
	CHECK(!hami_placeholder_hand_over(own, false));
	real.cuStreamWriteValue32_v2 = write_value;
	write_refusal = CUDA_ERROR_NOT_SUPPORTED;
	CHECK(!hami_placeholder_hand_over(own, false) && spins());
	write_refusal = CUDA_SUCCESS;
	hami_placeholder_end();
	/* A word that comes late, after another placeholder has begun, ends none but its own. */
	CHECK(hint() == 2 && hami_placeholder_hand_over(own, false));
	CHECK(hint() == 2 && spins());
	*written.flag = written.number;
	CHECK(spins());
	hami_placeholder_end();
	CHECK(!spins());
}

int main(void)
{
	limits.cores_percent = 40;
	nobody_has_to_give_way();
	until_the_next_launch();
	when_the_launch_begins();
	in_many_contexts();
	a_context_that_stays();
	not_prepared_while_the_program_has_work();
	not_in_a_child();
	return 0;
}
