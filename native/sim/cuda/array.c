/* SPDX-License-Identifier: Apache-2.0 */
/* Arrays: opaque, so no more than their memory, row after row, and their description. */
#include "memory.h"

#include <stdlib.h>

enum { ARRAY_MAGIC = 0x41525259, MIPMAP_MAGIC = 0x4d495050, ROW_ALIGNMENT = 512, LEVELS_MAX = 18 };

struct CUarray_st {
	uint32_t magic;
	bool of_mipmap;
	CUDA_ARRAY3D_DESCRIPTOR descriptor;
	CUdeviceptr memory;
};

struct CUmipmappedArray_st {
	uint32_t magic;
	unsigned levels;
	CUdeviceptr memory;
	struct CUarray_st level[LEVELS_MAX];
};

static size_t element_bytes(const CUDA_ARRAY3D_DESCRIPTOR *d)
{
	size_t bytes;
	switch (d->Format) {
	case CU_AD_FORMAT_UNSIGNED_INT8:
	case CU_AD_FORMAT_SIGNED_INT8:
		bytes = 1;
		break;
	case CU_AD_FORMAT_UNSIGNED_INT16:
	case CU_AD_FORMAT_SIGNED_INT16:
	case CU_AD_FORMAT_HALF:
		bytes = 2;
		break;
	case CU_AD_FORMAT_UNSIGNED_INT32:
	case CU_AD_FORMAT_SIGNED_INT32:
	case CU_AD_FORMAT_FLOAT:
		bytes = 4;
		break;
	default:
		return 0;
	}
	bool channels = d->NumChannels == 1 || d->NumChannels == 2 || d->NumChannels == 4;
	return channels ? bytes * d->NumChannels : 0;
}

/* 0 when the description is wrong or too large. */
static size_t array_bytes(const CUDA_ARRAY3D_DESCRIPTOR *d)
{
	size_t row, bytes, element = element_bytes(d);
	if (!element || !d->Width || (d->Depth && !d->Height && !(d->Flags & CUDA_ARRAY3D_LAYERED)) ||
	    __builtin_mul_overflow(d->Width, element, &row) || row > SIZE_MAX / 2)
		return 0;
	if (__builtin_mul_overflow(round_up(row, ROW_ALIGNMENT), d->Height ? d->Height : 1, &bytes) ||
	    __builtin_mul_overflow(bytes, d->Depth ? d->Depth : 1, &bytes))
		return 0;
	return bytes;
}

static CUresult create(struct CUctx_st *c, CUarray *out, const CUDA_ARRAY3D_DESCRIPTOR *d)
{
	size_t bytes = out ? array_bytes(d) : 0;
	if (!bytes)
		return CUDA_ERROR_INVALID_VALUE;
	struct CUarray_st *a = calloc(1, sizeof *a);
	if (!a)
		return CUDA_ERROR_OUT_OF_MEMORY;
	a->magic = ARRAY_MAGIC;
	a->descriptor = *d;
	sim_process_lock();
	CUresult result = heap_alloc(&c->arrays, bytes, &a->memory);
	sim_process_unlock();
	if (result == CUDA_SUCCESS)
		*out = a;
	else
		free(a);
	return result;
}

CUresult cuArrayCreate_v2(CUarray *out, const CUDA_ARRAY_DESCRIPTOR *d)
{
	SIM_ENTER_CONTEXT(cuArrayCreate_v2, c);
	if (!d)
		return CUDA_ERROR_INVALID_VALUE;
	CUDA_ARRAY3D_DESCRIPTOR full = {
		.Width = d->Width, .Height = d->Height, .Format = d->Format, .NumChannels = d->NumChannels};
	return create(c, out, &full);
}

CUresult cuArray3DCreate_v2(CUarray *out, const CUDA_ARRAY3D_DESCRIPTOR *d)
{
	SIM_ENTER_CONTEXT(cuArray3DCreate_v2, c);
	return d ? create(c, out, d) : CUDA_ERROR_INVALID_VALUE;
}

static bool valid(const struct CUarray_st *a)
{
	return a && a->magic == ARRAY_MAGIC;
}

/* Of an array of one row and no levels. */
CUresult sim_array_range(CUarray a, size_t offset, size_t size, CUdeviceptr *out)
{
	if (!valid(a) || a->of_mipmap)
		return CUDA_ERROR_INVALID_HANDLE;
	const size_t row = a->descriptor.Width * element_bytes(&a->descriptor);
	if (offset > row || size > row - offset)
		return CUDA_ERROR_INVALID_VALUE;
	*out = a->memory + offset;
	return CUDA_SUCCESS;
}

CUresult cuArrayGetDescriptor_v2(CUDA_ARRAY_DESCRIPTOR *out, CUarray a)
{
	SIM_ENTER(cuArrayGetDescriptor_v2);
	if (!out || !valid(a))
		return out ? CUDA_ERROR_INVALID_HANDLE : CUDA_ERROR_INVALID_VALUE;
	*out = (CUDA_ARRAY_DESCRIPTOR){a->descriptor.Width, a->descriptor.Height, a->descriptor.Format,
				       a->descriptor.NumChannels};
	return CUDA_SUCCESS;
}

CUresult cuArray3DGetDescriptor_v2(CUDA_ARRAY3D_DESCRIPTOR *out, CUarray a)
{
	SIM_ENTER(cuArray3DGetDescriptor_v2);
	if (!out || !valid(a))
		return out ? CUDA_ERROR_INVALID_HANDLE : CUDA_ERROR_INVALID_VALUE;
	*out = a->descriptor;
	return CUDA_SUCCESS;
}

static void free_memory(CUdeviceptr memory)
{
	sim_process_lock();
	heap_free(memory); /* gone already when its context is */
	sim_process_unlock();
}

CUresult cuArrayDestroy(CUarray a)
{
	SIM_ENTER(cuArrayDestroy);
	if (!valid(a) || a->of_mipmap)
		return CUDA_ERROR_INVALID_HANDLE;
	free_memory(a->memory);
	a->magic = 0;
	free(a);
	return CUDA_SUCCESS;
}

static void halve(size_t *n)
{
	if (*n > 1)
		*n /= 2;
}

CUresult cuMipmappedArrayCreate(CUmipmappedArray *out, const CUDA_ARRAY3D_DESCRIPTOR *d, unsigned int levels)
{
	SIM_ENTER_CONTEXT(cuMipmappedArrayCreate, c);
	if (!out || !d || !levels || levels > LEVELS_MAX)
		return CUDA_ERROR_INVALID_VALUE;
	struct CUmipmappedArray_st *m = calloc(1, sizeof *m);
	if (!m)
		return CUDA_ERROR_OUT_OF_MEMORY;
	m->magic = MIPMAP_MAGIC;
	m->levels = levels;
	CUDA_ARRAY3D_DESCRIPTOR level = *d;
	size_t total = 0;
	CUresult result = CUDA_SUCCESS;
	for (unsigned i = 0; i < levels && result == CUDA_SUCCESS; i++) {
		size_t bytes = array_bytes(&level);
		if (!bytes || __builtin_add_overflow(total, bytes, &total))
			result = CUDA_ERROR_INVALID_VALUE;
		m->level[i] =
			(struct CUarray_st){.magic = ARRAY_MAGIC, .of_mipmap = true, .descriptor = level};
		halve(&level.Width);
		halve(&level.Height);
		if (!(level.Flags & CUDA_ARRAY3D_LAYERED))
			halve(&level.Depth);
	}
	if (result == CUDA_SUCCESS) {
		sim_process_lock();
		result = heap_alloc(&c->arrays, total, &m->memory);
		sim_process_unlock();
	}
	if (result == CUDA_SUCCESS)
		*out = m;
	else
		free(m);
	return result;
}

CUresult cuMipmappedArrayGetLevel(CUarray *out, CUmipmappedArray m, unsigned int level)
{
	SIM_ENTER(cuMipmappedArrayGetLevel);
	if (!m || m->magic != MIPMAP_MAGIC)
		return CUDA_ERROR_INVALID_HANDLE;
	if (!out || level >= m->levels)
		return CUDA_ERROR_INVALID_VALUE;
	*out = &m->level[level];
	return CUDA_SUCCESS;
}

CUresult cuMipmappedArrayDestroy(CUmipmappedArray m)
{
	SIM_ENTER(cuMipmappedArrayDestroy);
	if (!m || m->magic != MIPMAP_MAGIC)
		return CUDA_ERROR_INVALID_HANDLE;
	free_memory(m->memory);
	m->magic = 0;
	free(m);
	return CUDA_SUCCESS;
}
