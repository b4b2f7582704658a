/* SPDX-License-Identifier: Apache-2.0 */
#include "limits/placeholder.h"

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/mman.h>
#include <unistd.h>

#include "arbitration/terms.h"
#include "base/log.h"
#include "driver/access.h"
#include "driver/rm_objects.h"
#include "limits/hold.h"
#include "limits/outstanding.h"
#include "region/process.h"

#define CONTEXTS                                                                                             \
	16 /* alive at once, of one process, that have placeholders; a later one takes the place of one that is gone */

/* For launches behind the one that ends it: one kernel alone leaves the GPU nothing to read, and it goes to others after it. */
#define AFTER_NS 20000

/*
 * The first ends `after` ns after both words of `flag` have reached `number`, or `most` ns after it began. The second waits
 * behind it in its stream, so that a command of this program is left to read: without one a launch that comes while the first
 * runs waits until others have had their turn, in some programs (docs/adr/104).
 */
static const char program[] =
	".version 6.0\n"
	".target sm_50\n"
	".address_size 64\n"
	".visible .entry hami_placeholder(.param .u64 flag, .param .u32 number, .param .u64 most,\n"
	" .param .u64 after)\n"
	"{\n"
	".reg .pred %p<3>;\n"
	".reg .s32 %r<6>;\n"
	".reg .u64 %d<6>;\n"
	"ld.param.u64 %d1, [flag];\n"
	"ld.param.s32 %r1, [number];\n"
	"ld.param.u64 %d2, [most];\n"
	"mov.u64 %d3, %globaltimer;\n"
	"LOOK:\n"
	"ld.volatile.v2.s32 {%r2, %r3}, [%d1];\n"
	"sub.s32 %r4, %r2, %r1;\n"
	"sub.s32 %r5, %r3, %r1;\n"
	"min.s32 %r4, %r4, %r5;\n"
	"setp.ge.s32 %p1, %r4, 0;\n"
	"@%p1 bra SEEN;\n"
	"mov.u64 %d4, %globaltimer;\n"
	"sub.u64 %d5, %d4, %d3;\n"
	"setp.lt.u64 %p2, %d5, %d2;\n"
	"@%p2 bra LOOK;\n"
	"ret;\n"
	"SEEN:\n"
	"ld.param.u64 %d2, [after];\n"
	"mov.u64 %d3, %globaltimer;\n"
	"WAIT:\n"
	"mov.u64 %d4, %globaltimer;\n"
	"sub.u64 %d5, %d4, %d3;\n"
	"setp.lt.u64 %p1, %d5, %d2;\n"
	"@%p1 bra WAIT;\n"
	"ret;\n"
	"}\n"
	".visible .entry hami_placeholder_behind()\n"
	"{\n"
	"ret;\n"
	"}\n";

/* What the launch that ends a placeholder writes its number into: both, or it goes on. */
struct flag {
	_Atomic uint32_t reached;   /* by the launch's stream: what is before the launch there is done */
	_Atomic uint32_t submitted; /* by the launch's thread: the GPU need not wait for it */
};
_Static_assert(sizeof(struct flag) == 8, "the kernel reads it as two words");

/* What a context needs for it. The flag is memory of this process that stays when the context goes. */
struct place {
	_Atomic unsigned long long context; /* its id, which no other context has; 0: none */
	CUstream stream;                    /* NULL: the driver refused something */
	CUfunction spins, behind;
	struct flag *flag;
	_Atomic CUdeviceptr flag_address;
	_Atomic uint32_t number;      /* of its last placeholder */
	_Atomic uint32_t handed_over; /* of the last one that a stream was told to write */
};

static struct {
	_Atomic bool busy; /* a thread is inside hami_placeholder_begin() */
	unsigned int prepared;
	struct place places[CONTEXTS];
	struct place *_Atomic open; /* whose placeholder nothing has ended */
} placeholder;

static bool has_all(const struct real_cuda *real)
{
	return real->cuCtxGetId && real->cuCtxGetCurrent && real->cuModuleLoadData &&
	       real->cuModuleGetFunction && real->cuStreamCreateWithPriority &&
	       real->cuCtxGetStreamPriorityRange && real->cuMemHostRegister_v2 &&
	       real->cuMemHostGetDevicePointer_v2 && real->cuThreadExchangeStreamCaptureMode &&
	       real->cuLaunchKernel;
}

/* Returns whether others on the slice's GPU give way to this job. Clients of an MPS server are on it at once. */
static bool has_to_be_given_way(unsigned int slice)
{
	const struct hami_region *region = hami_slice_region(slice);
	const struct hami_terms terms = hami_terms_read(region->job, region->step);
	return region->step->mode == HAMI_MODE_SHARE && terms.latency && terms.others_least_percent;
}

/* Locks its page; that of a context that is alive is locked already, and the driver says so. */
static CUresult make_flag(const struct real_cuda *real, struct place *p)
{
	CUdeviceptr address;
	const size_t page = (size_t)sysconf(_SC_PAGESIZE);
	if (!p->flag) {
		void *memory = mmap(NULL, page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		if (memory == MAP_FAILED)
			return CUDA_ERROR_OUT_OF_MEMORY;
		madvise(memory, page,
			MADV_DONTFORK); /* after a fork this process could write to another page than the GPU's */
		p->flag = memory;
	}
	CUresult result = real->cuMemHostRegister_v2((void *)p->flag, page, CU_MEMHOSTREGISTER_DEVICEMAP);
	if (result == CUDA_SUCCESS)
		result = real->cuMemHostGetDevicePointer_v2(&address, (void *)p->flag, 0);
	if (result == CUDA_SUCCESS)
		p->flag_address = address;
	return result;
}

static bool make_stream(const struct real_cuda *real, struct place *p)
{
	CUmodule module;
	int least, greatest;
	return real->cuModuleLoadData(&module, program) == CUDA_SUCCESS &&
	       real->cuModuleGetFunction(&p->spins, module, "hami_placeholder") == CUDA_SUCCESS &&
	       real->cuModuleGetFunction(&p->behind, module, "hami_placeholder_behind") == CUDA_SUCCESS &&
	       real->cuCtxGetStreamPriorityRange(&least, &greatest) == CUDA_SUCCESS &&
	       real->cuStreamCreateWithPriority(&p->stream, CU_STREAM_NON_BLOCKING, greatest) == CUDA_SUCCESS;
}

static struct place *find(unsigned long long context)
{
	for (unsigned int i = 0; i < CONTEXTS; i++)
		if (placeholder.places[i].context == context)
			return &placeholder.places[i];
	return NULL;
}

/* Returns what the current context has for it from now on; NULL: nothing, as so many others are alive. */
static struct place *prepare(const struct real_cuda *real, unsigned long long context)
{
	for (unsigned int i = 0; i < CONTEXTS; i++) {
		struct place *p = &placeholder.places[placeholder.prepared++ % CONTEXTS];
		const CUresult result = make_flag(real, p);
		if (result == CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED)
			continue;
		hami_placeholder_end(); /* it may be that of the context that is gone */
		p->context = context;
		p->stream = NULL;
		if (result != CUDA_SUCCESS || !make_stream(real, p)) {
			p->stream = NULL;
			hami_log(1, "no placeholder in this context: hints only measure requests\n");
		}
		return p;
	}
	return NULL;
}

/* Returns whether there is one now. */
static bool launch(const struct real_cuda *real, struct place *p, uint64_t most)
{
	uint32_t number = atomic_load(&p->number) + 1;
	CUdeviceptr flag = p->flag_address;
	uint64_t after = AFTER_NS;
	void *arguments[] = {&flag, &number, &most, &after};
	hami_placeholder_end();
	atomic_store(&p->number, number);
	if (real->cuLaunchKernel(p->spins, 1, 1, 1, 1, 1, 1, 0, p->stream, arguments, NULL) != CUDA_SUCCESS)
		return false;
	real->cuLaunchKernel(p->behind, 1, 1, 1, 1, 1, 1, 0, p->stream, NULL, NULL);
	atomic_store(&placeholder.open, p);
	return true;
}

static bool has_work(unsigned int slice)
{
	return hami_outstanding_glance(slice, hami_objects_started(slice)) == HAMI_SOMETHING_OUTSTANDING;
}

bool hami_placeholder_begin(uint64_t most_ns, bool idle)
{
	const struct real_cuda *real = hami_resolved_cuda();
	CUcontext context;
	unsigned long long id;
	const int slice = real ? hami_current_slice(real) : -1;
	if (slice < 0 || !has_all(real) || !has_to_be_given_way((unsigned int)slice) ||
	    real->cuCtxGetCurrent(&context) != CUDA_SUCCESS || !context ||
	    real->cuCtxGetId(context, &id) != CUDA_SUCCESS || atomic_exchange(&placeholder.busy, true))
		return false;
	hami_hold_enter(HAMI_HOLD_WORK);
	CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED; /* no capture of the program is spoilt */
	real->cuThreadExchangeStreamCaptureMode(&mode);
	struct place *p = find(id);
	if (!p && !(idle && has_work((unsigned int)slice)))
		p = prepare(real, id);
	const bool launched = p && p->stream && most_ns && launch(real, p, most_ns);
	real->cuThreadExchangeStreamCaptureMode(&mode);
	hami_hold_leave(HAMI_HOLD_WORK);
	atomic_store(&placeholder.busy, false);
	return launched;
}

/* Lets the launch's stream write that it has come to the launch. Returns whether it will. */
static bool hand_over(const struct real_cuda *real, const struct place *p, CUstream stream, uint32_t number)
{
	CUstreamCaptureStatus capture;
	CUcontext context;
	unsigned long long id;
	return real->cuStreamWriteValue32_v2 && real->cuStreamGetCtx &&
	       real->cuStreamIsCapturing(stream, &capture) == CUDA_SUCCESS &&
	       capture == CU_STREAM_CAPTURE_STATUS_NONE &&
	       real->cuStreamGetCtx(stream, &context) == CUDA_SUCCESS &&
	       real->cuCtxGetId(context, &id) == CUDA_SUCCESS && id == p->context &&
	       real->cuStreamWriteValue32_v2(stream, p->flag_address + offsetof(struct flag, reached), number,
					     0) == CUDA_SUCCESS;
}

void hami_placeholder_launching(void *stream, bool per_thread)
{
	const struct real_cuda *real = hami_resolved_cuda();
	struct place *p = atomic_load(&placeholder.open);
	const CUstream its = stream ? stream : per_thread ? CU_STREAM_PER_THREAD : CU_STREAM_LEGACY;
	if (!p || !real)
		return;
	const uint32_t number = atomic_load(&p->number);
	if (hand_over(real, p, its, number))
		atomic_store(&p->handed_over, number);
}

void hami_placeholder_launched(void)
{
	const struct place *p = atomic_load(&placeholder.open);
	if (p && atomic_load(&p->handed_over) == atomic_load(&p->number))
		atomic_store(&p->flag->submitted, atomic_load(&p->number));
	else
		hami_placeholder_end();
}

void hami_placeholder_end(void)
{
	struct place *p = atomic_load(&placeholder.open);
	if (!p || !atomic_compare_exchange_strong(&placeholder.open, &p, NULL))
		return;
	const uint32_t number = atomic_load(&p->number);
	atomic_store(&p->flag->reached, number);
	atomic_store(&p->flag->submitted, number);
}

void hami_placeholder_forked(void)
{
	if (!placeholder.prepared && !atomic_load(&placeholder.busy))
		return;
	placeholder.prepared = 0;
	for (unsigned int i = 0; i < CONTEXTS; i++)
		placeholder.places[i] = (struct place){.flag = NULL};
	atomic_store(&placeholder.open, NULL);
	atomic_store(&placeholder.busy, false);
}
