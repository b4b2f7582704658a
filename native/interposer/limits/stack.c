/* SPDX-License-Identifier: Apache-2.0 */
#include "limits/stack.h"

#include "base/log.h"
#include "limits/charge.h"
#include "region/process.h"

static uint64_t charged(void)
{
	const struct hami_region *region = hami_slice_region(0);
	const int32_t slot = __atomic_load_n(&region->slot, __ATOMIC_ACQUIRE);
	return slot < 0 ? 0 : __atomic_load_n(&region->usage->slots[slot].used_bytes, __ATOMIC_RELAXED);
}

/* Charges for what was given back, so that no other process of the job has it meanwhile. */
static void keep_charged(struct hami_stack *stack, uint64_t before)
{
	const uint64_t now = charged();
	stack->bytes = before > now ? before - now : 0;
	if (stack->bytes && hami_memory_charge(hami_only(0), stack->bytes))
		stack->bytes = 0;
}

void hami_stack_give_back(struct hami_stack *stack, const struct real_cuda *real, CUcontext context)
{
	CUcontext current;
	size_t limit;
	if (!context || !real->cuCtxGetLimit || !real->cuCtxSetLimit ||
	    real->cuCtxPushCurrent_v2(context) != CUDA_SUCCESS)
		return;
	const uint64_t before = charged();
	if (real->cuCtxGetLimit(&limit, CU_LIMIT_STACK_SIZE) == CUDA_SUCCESS && limit &&
	    real->cuCtxSetLimit(CU_LIMIT_STACK_SIZE, 0) == CUDA_SUCCESS) { /* else it is as it was */
		*stack = (struct hami_stack){.context = context, .limit = limit};
		keep_charged(stack, before);
	}
	real->cuCtxPopCurrent_v2(&current);
}

bool hami_stack_have(struct hami_stack *stack, const struct real_cuda *real)
{
	CUcontext current;
	if (!stack->context)
		return true;
	const uint64_t before = charged();
	if (stack->bytes)
		hami_memory_release(hami_only(0), stack->bytes);
	CUresult result = real->cuCtxPushCurrent_v2(stack->context);
	if (result == CUDA_SUCCESS) {
		result = real->cuCtxSetLimit(CU_LIMIT_STACK_SIZE, stack->limit);
		real->cuCtxPopCurrent_v2(&current);
	}
	if (result == CUDA_ERROR_OUT_OF_MEMORY) {
		keep_charged(stack, before);
		return false;
	}
	if (result != CUDA_SUCCESS)
		hami_log(0, "stacks of %zu bytes on the GPU could not be had again (error %d)\n",
			 stack->limit, (int)result);
	*stack = (struct hami_stack){0};
	return true;
}
