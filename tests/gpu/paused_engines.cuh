// SPDX-License-Identifier: Apache-2.0
/*
 * Cases of paused.cu within a block: what the tensor cores and the engines that copy have under way when it is paused.
 * Each round has kernels of several milliseconds.
 */
#pragma once

#include <cuda_fp16.h>
#include <cuda_pipeline_primitives.h>
#include <mma.h>

#include "paused.cuh"

/* A small whole number, so that sums of products are exact in float. */
__host__ __device__ inline int small(u64 key, u64 i)
{
	return (int)(mix(key + i) % 9) - 4;
}

static __global__ void fill_small(half *x, u32 n, u64 key)
{
	for (u32 i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
		x[i] = __int2half_rn(small(key, i));
}

/* How a kernel keeps a product of each repetition, in order: as Affine{31, product}. */
__host__ __device__ inline u32 fold(u32 folded, int product)
{
	return 31 * folded + (u32)product;
}

static const u32 SIDE = 1024, MATRIX_REPEATS = 256;

/* A warp has 16 x 16 elements of A B, with B's columns shifted by 16 at each repetition; folded into `out`. */
static __global__ void multiply(const half *a, const half *b, u32 *out)
{
	using namespace nvcuda::wmma;
	__shared__ __align__(32) float tiles[4][256];
	u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32, tile = blockIdx.x * 4 + warp;
	u32 row = tile / (SIDE / 16) * 16, column = tile % (SIDE / 16) * 16, folded[8] = {};
	for (u32 repeat = 0; repeat < MATRIX_REPEATS; repeat++) {
		u32 shifted = (column + 16 * repeat) % SIDE;
		fragment<accumulator, 16, 16, 16, float> sum;
		fill_fragment(sum, 0.0f);
		for (u32 k = 0; k < SIDE; k += 16) {
			fragment<matrix_a, 16, 16, 16, half, row_major> left;
			fragment<matrix_b, 16, 16, 16, half, row_major> right;
			load_matrix_sync(left, a + row * SIDE + k, SIDE);
			load_matrix_sync(right, b + k * SIDE + shifted, SIDE);
			mma_sync(sum, left, right, sum);
		}
		store_matrix_sync(tiles[warp], sum, 16, mem_row_major);
		__syncwarp();
		for (u32 i = 0; i < 8; i++)
			folded[i] = fold(folded[i], (int)tiles[warp][i * 32 + lane]);
		__syncwarp();
	}
	for (u32 i = 0; i < 8; i++) {
		u32 element = i * 32 + lane;
		out[(row + element / 16) * SIDE + column + element % 16] = folded[i];
	}
}

static void tensor(Run &run)
{
	half *a = on_device<half>(SIDE * SIDE), *b = on_device<half>(SIDE * SIDE);
	u32 *out = on_device<u32>(SIDE * SIDE);
	while (run.more()) {
		u64 left = run.key(0), right = run.key(1);
		run.go();
		fill_small<<<256, 256>>>(a, SIDE * SIDE, left);
		fill_small<<<256, 256>>>(b, SIDE * SIDE, right);
		multiply<<<SIDE * SIDE / 256 / 4, 128>>>(a, b, out);
		OK(cudaGetLastError());
		run.done();
		std::vector<u32> result = fetch(out, SIDE * SIDE);
		run.add(result);
		for (u32 sample = 0; sample < 16; sample++) {
			u32 at = mix(run.key(2) + sample) % (SIDE * SIDE), row = at / SIDE,
			    column = at % SIDE, folded = 0;
			for (u32 repeat = 0; repeat < MATRIX_REPEATS; repeat++) {
				int product = 0;
				for (u32 k = 0, shifted = (column + 16 * repeat) % SIDE; k < SIDE; k++)
					product += small(left, row * SIDE + k) *
						   small(right, k * SIDE + shifted);
				folded = fold(folded, product);
			}
			if (result[at] != folded)
				fail("tensor: element %u is %08x, not %08x", at, result[at], folded);
		}
	}
}

static const u32 SLABS = 8, GROUP_REPEATS = 80000; // slabs of 16 along k; repetitions a multiple of SLABS

/* Returns the shared-memory descriptor of a slab whose core matrices (8 rows of 16 bytes) lie one after the other. */
__device__ inline u64 descriptor(const half *slab)
{
	u64 address = (u32)__cvta_generic_to_shared(slab);
	u64 leading = 128, stride = 256; // bytes from one core matrix to the next along k, and along the rows
	return (address >> 4 & 0x3fff) | (leading >> 4) << 16 | (stride >> 4) << 32;
}

/* Where element (row, k) of a slab lies. */
__host__ __device__ inline u32 in_slab(u32 row, u32 k)
{
	return row / 8 * 128 + k / 8 * 64 + row % 8 * 8 + k % 8;
}

/* A warpgroup multiplies 64 x 128 by 128 x 8 with wgmma, B's slabs rotated by one at each repetition. */
static __global__ void __launch_bounds__(128) multiply_group(u32 *out, u64 left, u64 right)
{
	__shared__ __align__(128) half a[SLABS][64 * 16], b[SLABS][8 * 16];
	for (u32 i = threadIdx.x; i < SLABS * 64 * 16; i += 128)
		a[i / 1024][i % 1024] = __int2half_rn(small(left + blockIdx.x, i));
	for (u32 i = threadIdx.x; i < SLABS * 8 * 16; i += 128)
		b[i / 128][i % 128] = __int2half_rn(small(right + blockIdx.x, i));
	asm volatile("fence.proxy.async;" ::: "memory");
	__syncthreads();
	u32 folded[4] = {};
	for (u32 repeat = 0; repeat < GROUP_REPEATS; repeat++) {
		float d[4] = {};
		asm volatile("wgmma.fence.sync.aligned;"
			     : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])::"memory");
#pragma unroll
		for (u32 slab = 0; slab < SLABS; slab++)
			asm volatile(
				"{ .reg .pred p; setp.ne.b32 p, %6, 0; "
				"wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%0, %1, %2, %3}, %4, %5, p, 1, 1, 0, 0; }"
				: "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
				: "l"(descriptor(a[slab])), "l"(descriptor(b[(slab + repeat) % SLABS])),
				  "r"(1));
		asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
		asm volatile("wgmma.wait_group.sync.aligned 0;"
			     : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])::"memory");
		for (u32 i = 0; i < 4; i++)
			folded[i] = fold(folded[i], (int)d[i]);
	}
	u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32;
	for (u32 i = 0; i < 4; i++) {
		u32 row = warp * 16 + lane / 4 + i / 2 * 8, column = lane % 4 * 2 + i % 2;
		out[blockIdx.x * 512 + row * 8 + column] = folded[i];
	}
}

/* What multiply_group gives at (row, column) of `block`. */
static u32 group_reference(u64 left, u64 right, u32 block, u32 row, u32 column)
{
	Affine all;
	for (u32 repeat = 0; repeat < SLABS; repeat++) {
		int product = 0;
		for (u32 slab = 0; slab < SLABS; slab++)
			for (u32 k = 0; k < 16; k++)
				product += small(left + block, slab * 1024 + in_slab(row, k)) *
					   small(right + block,
						 (slab + repeat) % SLABS * 128 + in_slab(column, k));
		all = all.then({31, (u32)product});
	}
	return all.times(GROUP_REPEATS / SLABS)(0);
}

static void wgmma(Run &run)
{
	const u32 blocks = 264;
	u32 *out = on_device<u32>(blocks * 512);
	while (run.more()) {
		u64 left = run.key(0), right = run.key(1);
		run.go();
		multiply_group<<<blocks, 128>>>(out, left, right);
		OK(cudaGetLastError());
		run.done();
		std::vector<u32> result = fetch(out, blocks * 512);
		run.add(result);
		for (u32 sample = 0; sample < 1024; sample++) {
			u32 at = mix(run.key(2) + sample) % (blocks * 512);
			u32 expected = group_reference(left, right, at / 512, at % 512 / 8, at % 8);
			if (result[at] != expected)
				fail("wgmma: element %u is %08x, not %08x", at, result[at], expected);
		}
	}
}

static const u32 CHUNK = 16384, PASSES = 4000; // elements of a block, read PASSES times

/* Sums x (2 i + 1) (pass + 1) over a block's chunk, which cp.async brings four stages deep. */
static __global__ void __launch_bounds__(256) sum_async(const u32 *x, u64 *sums)
{
	__shared__ uint4 stage[4][256];
	const u32 a_pass = CHUNK / 1024, stages = PASSES * a_pass, other = (threadIdx.x + 33) % 256;
	const uint4 *from = (const uint4 *)(x + (size_t)blockIdx.x * CHUNK);
	u64 sum = 0;
	for (u32 s = 0; s < stages + 3; s++) {
		if (s < stages)
			__pipeline_memcpy_async(&stage[s % 4][threadIdx.x],
						from + s % a_pass * 256 + threadIdx.x, 16);
		__pipeline_commit();
		if (s < 3)
			continue;
		u32 ready = s - 3;
		__pipeline_wait_prior(3);
		__syncthreads();
		uint4 v = stage[ready % 4][other];
		u64 i = 2 * (u64)(ready % a_pass * 1024 + other * 4) + 1;
		sum += (v.x * i + v.y * (i + 2) + v.z * (i + 4) + v.w * (i + 6)) * (ready / a_pass + 1);
		__syncthreads();
	}
	atomicAdd((unsigned long long *)&sums[blockIdx.x], (unsigned long long)sum);
}

static void cp_async(Run &run)
{
	const u32 blocks = 264;
	u32 *x = on_device<u32>(blocks * CHUNK);
	u64 *sums = on_device<u64>(blocks);
	while (run.more()) {
		run.go();
		launch_fill(x, blocks * CHUNK, run.key(0), nullptr);
		OK(cudaMemsetAsync(sums, 0, blocks * sizeof *sums));
		sum_async<<<blocks, 256>>>(x, sums);
		OK(cudaGetLastError());
		run.done();
		std::vector<u64> result = fetch(sums, blocks);
		for (u32 block = 0; block < blocks; block++) {
			u64 sum = 0;
			for (u64 i = 0; i < CHUNK; i++)
				sum += (u64)(u32)mix(run.key(0) + block * CHUNK + i) * (2 * i + 1);
			sum *= (u64)PASSES * (PASSES + 1) / 2;
			run.add(result[block]);
			if (result[block] != sum)
				fail("cp_async: block %u has %016lx, not %016lx", block, result[block], sum);
		}
	}
}

static const u32 WIDTH = 2048, BOX = 32, BOX_BYTES = BOX * BOX * 4, BULK_PASSES = 2000;

/*
 * Each block brings its box into shared memory by the tensor memory accelerator, applies `f`, and writes it back, again
 * and again: as a box of the matrix by its map, or as 4 KiB in a row.
 */
template <bool MAPPED>
static __global__ void __launch_bounds__(128) bulk(const __grid_constant__ CUtensorMap map, u32 *x, Affine f)
{
	__shared__ __align__(128) u32 box[BOX * BOX];
	__shared__ __align__(8) u64 barrier;
	u32 here = (u32)__cvta_generic_to_shared(box), full = (u32)__cvta_generic_to_shared(&barrier);
	u32 column = blockIdx.x % (WIDTH / BOX) * BOX, row = blockIdx.x / (WIDTH / BOX) * BOX;
	u32 *there = x + (size_t)blockIdx.x * BOX * BOX;
	if (threadIdx.x == 0) {
		asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(full) : "memory");
		asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
		asm volatile("fence.proxy.async;" ::: "memory");
	}
	__syncthreads();
	for (u32 pass = 0; pass < BULK_PASSES; pass++) {
		if (threadIdx.x == 0) {
			asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(full),
				     "r"(BOX_BYTES)
				     : "memory");
			if (MAPPED)
				asm volatile(
					"cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes "
					"[%0], [%1, {%2, %3}], [%4];" ::"r"(here),
					"l"(&map), "r"(column), "r"(row), "r"(full)
					: "memory");
			else
				asm volatile(
					"cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes "
					"[%0], [%1], %2, [%3];" ::"r"(here),
					"l"(__cvta_generic_to_global(there)), "r"(BOX_BYTES), "r"(full)
					: "memory");
		}
		for (u32 arrived = 0; !arrived;)
			asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; "
				     "selp.u32 %0, 1, 0, p; }"
				     : "=r"(arrived)
				     : "r"(full), "r"(pass & 1)
				     : "memory");
		for (u32 i = threadIdx.x; i < BOX * BOX; i += blockDim.x)
			box[i] = f(box[i]);
		asm volatile("fence.proxy.async;" ::: "memory");
		__syncthreads();
		if (threadIdx.x == 0) {
			if (MAPPED)
				asm volatile(
					"cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%1, %2}], [%3];" ::
						"l"(&map),
					"r"(column), "r"(row), "r"(here)
					: "memory");
			else
				asm volatile(
					"cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(
						__cvta_generic_to_global(there)),
					"r"(here), "r"(BOX_BYTES)
					: "memory");
			asm volatile("cp.async.bulk.commit_group;" ::: "memory");
			asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
			asm volatile("fence.proxy.async;" ::: "memory");
		}
		__syncthreads();
	}
}

static void tma(Run &run)
{
	const u32 n = WIDTH * WIDTH, boxes = n / (BOX * BOX);
	u32 *x = on_device<u32>(n);
	alignas(64) CUtensorMap map;
	cuuint64_t size[] = {WIDTH, WIDTH}, pitch[] = {WIDTH * sizeof *x};
	cuuint32_t box[] = {BOX, BOX}, steps[] = {1, 1};
	OK(cuTensorMapEncodeTiled(&map, CU_TENSOR_MAP_DATA_TYPE_UINT32, 2, x, size, pitch, box, steps,
				  CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_NONE,
				  CU_TENSOR_MAP_L2_PROMOTION_NONE, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE));
	while (run.more()) {
		Affine mapped = Affine::random(run.key(1)), plain = Affine::random(run.key(2));
		run.go();
		launch_fill(x, n, run.key(0), nullptr);
		bulk<true><<<boxes, 128>>>(map, x, mapped);
		OK(cudaGetLastError());
		bulk<false><<<boxes, 128>>>(map, x, plain);
		OK(cudaGetLastError());
		run.done();
		std::vector<u32> result = fetch(x, n);
		run.add(result);
		check(result.data(), n, mapped.times(BULK_PASSES).then(plain.times(BULK_PASSES)), run.key(0),
		      "tma");
	}
}
