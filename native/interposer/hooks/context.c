/* SPDX-License-Identifier: Apache-2.0 */
/* Hooks of initialisation, device size, and contexts: only the GPUs of the slices take a context. */
#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>

#include "base/log.h"
#include "base/secure.h"
#include "base/table.h"
#include "driver/access.h"
#include "hooks/capture.h"
#include "hooks/mps.h"
#include "limits/charge.h"
#include "limits/ending.h"
#include "limits/gate.h"
#include "limits/hold.h"
#include "limits/outstanding.h"
#include "limits/swap.h"
#include "limits/trim.h"
#include "region/glance.h"
#include "region/process.h"
#include "region/times.h"

static pthread_once_t end = PTHREAD_ONCE_INIT;

static void at_end(void)
{
	hami_swap_end();
	hami_ending();
	hami_outstanding_end();
}

/*
 * Registers after libcuda's own handlers, so that ours runs before them. And libcuda stays in memory, though the
 * application closes its handle: the keeper calls it.
 */
static void watch_end(void)
{
	dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD | RTLD_NODELETE);
	atexit(at_end);
}

CUresult CUDAAPI cuInit(unsigned int flags)
{
	const struct real_cuda *real = hami_cuda();
	if (!real)
		return HAMI_REFUSED;
	hami_process_before_driver();
	hami_swap_prepare();
	CUresult result = real->cuInit(flags);
	if (result == CUDA_SUCCESS) {
		hami_find_devices(real);
		pthread_once(&end, watch_end);
	}
	return result;
}

CUresult CUDAAPI cuDeviceTotalMem_v2(size_t *bytes, CUdevice device)
{
	const struct real_cuda *real = hami_cuda();
	if (!real)
		return HAMI_REFUSED;
	CUresult result = real->cuDeviceTotalMem_v2(bytes, device);
	int slice = hami_slice_of_device(device);
	if (result == CUDA_SUCCESS && slice >= 0) {
		struct hami_view view;
		hami_region_view(hami_slice_region((unsigned int)slice), &view);
		if (view.limit < *bytes)
			*bytes = (size_t)view.limit;
	}
	return result;
}

static const char primary = 0; /* its address names the primary context of each slice's device */

/* Refuses any GPU but those of the slices, and a process more than may use the slice. Sets *slice. */
static CUresult admit(const struct real_cuda *real, CUdevice device, unsigned int *slice)
{
	CUuuid uuid;
	int its = hami_slice_of_device(device);
	if (its >= 0) {
		*slice = (unsigned int)its;
		return hami_slice_join(*slice) ? HAMI_REFUSED : CUDA_SUCCESS;
	}
	CUresult result = real->cuDeviceGetUuid_v2(&uuid, device);
	if (hami_is_secure())
		hami_refuse_secure();
	return result == CUDA_SUCCESS ? HAMI_REFUSED : result; /* no such device: the driver's own error */
}

/*
 * Returns whether memory was charged on the slice. A context takes memory, so if nothing was charged after the first
 * one, this driver gets its memory in a way that the interposer does not see, and the limit would not hold.
 */
static bool fenced(unsigned int slice)
{
	if (hami_region_own(hami_slice_region(slice)))
		return true;
	hami_log(0, "this driver's requests for memory are not understood, so its memory cannot be limited "
		    "and the GPU stays closed; tell the administrator: hami-hpc doctor\n");
	return false;
}

/* Destroys a new context whose memory was not charged. */
static CUresult keep_if_fenced(const struct real_cuda *real, unsigned int slice, CUresult result,
			       const CUcontext *context)
{
	if (result == CUDA_SUCCESS && !fenced(slice)) {
		real->cuCtxDestroy_v2(*context);
		return HAMI_REFUSED;
	}
	if (result == CUDA_SUCCESS) {
		hami_region_note_context(hami_slice_region(slice));
		hami_known_add(slice, *context, *context);
	} else {
		hami_mps_say(result);
	}
	hami_swap_begin(); /* also without one: the process has a slot, and answers */
	return result;
}

/* The body of a hook that makes a context on `device`. */
#define MAKE_CONTEXT(name, device, ...)                                                                      \
	const struct real_cuda *real = hami_cuda();                                                          \
	if (!real)                                                                                           \
		return HAMI_REFUSED;                                                                         \
	if (!real->name)                                                                                     \
		return CUDA_ERROR_NOT_SUPPORTED;                                                             \
	unsigned int slice;                                                                                  \
	CUresult result = admit(real, device, &slice);                                                       \
	if (result != CUDA_SUCCESS)                                                                          \
		return result;                                                                               \
	hami_swap_await();                                                                                   \
	hami_known_make(slice, true);                                                                        \
	result = keep_if_fenced(real, slice, real->name(__VA_ARGS__), context);                              \
	hami_known_make(slice, false);                                                                       \
	return result

CUresult CUDAAPI cuCtxCreate_v2(CUcontext *context, unsigned int flags, CUdevice device)
{
	MAKE_CONTEXT(cuCtxCreate_v2, device, context, flags, device);
}

CUresult CUDAAPI cuCtxCreate_v3(CUcontext *context, CUexecAffinityParam *affinity, int count,
				unsigned int flags, CUdevice device)
{
	MAKE_CONTEXT(cuCtxCreate_v3, device, context, affinity, count, flags, device);
}

CUresult CUDAAPI cuCtxCreate_v4(CUcontext *context, CUctxCreateParams *params, unsigned int flags,
				CUdevice device)
{
	MAKE_CONTEXT(cuCtxCreate_v4, device, context, params, flags, device);
}

CUresult CUDAAPI cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device)
{
	const struct real_cuda *real = hami_cuda();
	if (!real)
		return HAMI_REFUSED;
	unsigned int slice;
	CUresult result = admit(real, device, &slice);
	if (result != CUDA_SUCCESS)
		return result;
	hami_swap_await();
	hami_known_make(slice, true);
	result = real->cuDevicePrimaryCtxRetain(context, device);
	if (result == CUDA_SUCCESS && !fenced(slice)) {
		real->cuDevicePrimaryCtxRelease_v2(device);
		result = HAMI_REFUSED;
	}
	if (result == CUDA_SUCCESS) {
		hami_region_note_context(hami_slice_region(slice));
		hami_known_add(slice, *context, &primary);
	} else {
		hami_mps_say(result);
	}
	hami_swap_begin();
	hami_known_make(slice, false);
	return result;
}

/* Forgets the events of a context that is gone and, with `whole`, gives back what was charged for its managed memory. */
static void forget(uint64_t owner, bool whole)
{
	struct hami_sums sums = {0};
	if (!owner)
		return;
	hami_gate_end_context(owner, true);
	hami_capture_end_context(owner);
	if (!whole)
		return;
	hami_table_take_owner(owner, &sums);
	hami_memory_release_sums(&sums);
}

/* The body of a hook that destroys a context, and with `whole` the managed memory that was made in it. */
#define DESTROY(name, key, whole, ...)                                                                       \
	const struct real_cuda *real = hami_cuda();                                                          \
	if (!real)                                                                                           \
		return HAMI_REFUSED;                                                                         \
	if (!real->name)                                                                                     \
		return CUDA_ERROR_NOT_SUPPORTED;                                                             \
	hami_hold_enter(HAMI_HOLD_WORK);                                                                     \
	const uint64_t owner = hami_known_end_context(key, true);                                            \
	hami_gate_end_context(owner, false);                                                                 \
	CUresult result = real->name(__VA_ARGS__);                                                           \
	hami_known_end_context(key, false);                                                                  \
	if (result == CUDA_SUCCESS)                                                                          \
		forget(owner, whole);                                                                        \
	hami_hold_leave(HAMI_HOLD_WORK);                                                                     \
	return result

CUresult CUDAAPI cuCtxDestroy(CUcontext context)
{
	DESTROY(cuCtxDestroy, context, true, context);
}

CUresult CUDAAPI cuCtxDestroy_v2(CUcontext context)
{
	DESTROY(cuCtxDestroy_v2, context, true, context);
}

/* Destroys it with its last reference. With another left, its work cannot be asked about any more. */
CUresult CUDAAPI cuCtxDetach(CUcontext context)
{
	DESTROY(cuCtxDetach, context, false, context);
}

/*
 * Takes the primary context of a slice in again, or forgets it, after a release of one of its users, or after it was reset.
 * `owner`: what it was before.
 */
static void released(const struct real_cuda *real, unsigned int slice, bool was_reset, uint64_t owner)
{
	unsigned int flags;
	int active = 0;
	const bool told = real->cuDevicePrimaryCtxGetState &&
			  real->cuDevicePrimaryCtxGetState(hami_device_of_slice(slice), &flags, &active) ==
				  CUDA_SUCCESS;
	/* One that was reset has none of its events, retained or not. */
	const bool ended = (told && !active) || was_reset;
	const bool gone = ended || !told;
	if (ended)
		forget(owner, true);
	if (gone)
		hami_trim_forget();
	hami_known_leave(slice, &primary, false, gone);
}

/* The body of a hook after which the primary context may be gone. */
#define RELEASE(name, device, reset)                                                                         \
	const struct real_cuda *real = hami_cuda();                                                          \
	if (!real)                                                                                           \
		return HAMI_REFUSED;                                                                         \
	if (!real->name)                                                                                     \
		return CUDA_ERROR_NOT_SUPPORTED;                                                             \
	int slice = hami_slice_of_device(device);                                                            \
	if (slice < 0)                                                                                       \
		return real->name(device);                                                                   \
	hami_hold_enter(HAMI_HOLD_WORK);                                                                     \
	const uint64_t owner = hami_known_leave((unsigned int)slice, &primary, true, false);                 \
	hami_gate_end_context(owner, false);                                                                 \
	CUresult result = real->name(device);                                                                \
	released(real, (unsigned int)slice, (reset) && result == CUDA_SUCCESS, owner);                       \
	hami_hold_leave(HAMI_HOLD_WORK);                                                                     \
	return result

CUresult CUDAAPI cuDevicePrimaryCtxRelease(CUdevice device)
{
	RELEASE(cuDevicePrimaryCtxRelease, device, false);
}

CUresult CUDAAPI cuDevicePrimaryCtxRelease_v2(CUdevice device)
{
	RELEASE(cuDevicePrimaryCtxRelease_v2, device, false);
}

CUresult CUDAAPI cuDevicePrimaryCtxReset(CUdevice device)
{
	RELEASE(cuDevicePrimaryCtxReset, device, true);
}

CUresult CUDAAPI cuDevicePrimaryCtxReset_v2(CUdevice device)
{
	RELEASE(cuDevicePrimaryCtxReset_v2, device, true);
}

/* Makes the primary context where there is none. */
CUresult CUDAAPI cuGreenCtxCreate(CUgreenCtx *green, CUdevResourceDesc resources, CUdevice device,
				  unsigned int flags)
{
	const struct real_cuda *real = hami_cuda();
	CUcontext context;
	unsigned int slice;
	if (!real)
		return HAMI_REFUSED;
	if (!real->cuGreenCtxCreate || !real->cuGreenCtxDestroy)
		return CUDA_ERROR_NOT_SUPPORTED;
	CUresult result = admit(real, device, &slice);
	if (result != CUDA_SUCCESS)
		return result;
	hami_swap_await();
	hami_known_make(slice, true);
	result = real->cuGreenCtxCreate(green, resources, device, flags);
	if (result == CUDA_SUCCESS && !fenced(slice)) {
		real->cuGreenCtxDestroy(*green);
		result = HAMI_REFUSED;
	}
	if (result == CUDA_SUCCESS) {
		hami_region_note_context(hami_slice_region(slice));
		if (real->cuCtxFromGreenCtx && real->cuCtxFromGreenCtx(&context, *green) == CUDA_SUCCESS)
			hami_known_add(slice, context, *green);
	} else {
		hami_mps_say(result);
	}
	hami_swap_begin();
	hami_known_make(slice, false);
	return result;
}

/* The primary context may go with it. Managed memory that was made in it is that one's. */
CUresult CUDAAPI cuGreenCtxDestroy(CUgreenCtx green)
{
	const struct real_cuda *real = hami_cuda();
	if (!real)
		return HAMI_REFUSED;
	if (!real->cuGreenCtxDestroy)
		return CUDA_ERROR_NOT_SUPPORTED;
	hami_hold_enter(HAMI_HOLD_WORK);
	const uint64_t owner = hami_known_end_context(green, true);
	const unsigned int slice = hami_known_slice(owner);
	const uint64_t of_primary = owner ? hami_known_leave(slice, &primary, true, false) : 0;
	hami_gate_end_context(owner, false);
	CUresult result = real->cuGreenCtxDestroy(green);
	hami_known_end_context(green, false);
	if (result == CUDA_SUCCESS)
		forget(owner, false);
	if (owner)
		released(real, slice, false, of_primary);
	hami_hold_leave(HAMI_HOLD_WORK);
	return result;
}

/* Names from before CUDA 3.2; see the end of memory.c. */
CUresult CUDAAPI cuDeviceTotalMem(unsigned int *bytes, CUdevice device)
{
	(void)bytes, (void)device;
	return CUDA_ERROR_NOT_SUPPORTED;
}

CUresult CUDAAPI cuCtxCreate(CUcontext *context, unsigned int flags, CUdevice device)
{
	(void)context, (void)flags, (void)device;
	return CUDA_ERROR_NOT_SUPPORTED;
}
