// SPDX-License-Identifier: Apache-2.0
/*
 * Cases of paused.cu between blocks: a grid, clusters and tiles that wait for each other when they are paused. Each
 * round has kernels of several milliseconds.
 */
#pragma once

#include <cooperative_groups.h>

#include "paused.cuh"

static const u32 GRID_STEPS = 4000, CLUSTER_STEPS = 10000, CLUSTER = 8, MEMBERS = 512;

/* Each thread takes from a thread of another block, and the whole grid waits, `GRID_STEPS` times. */
static __global__ void rotate_grid(u32 *from, u32 *to, u32 stride, Affine f)
{
	cooperative_groups::grid_group grid = cooperative_groups::this_grid();
	u32 n = gridDim.x * blockDim.x, i = blockIdx.x * blockDim.x + threadIdx.x;
	for (u32 step = 0; step < GRID_STEPS; step++) {
		to[i] = f(from[(i + stride) % n]);
		grid.sync();
		u32 *swap = from;
		from = to;
		to = swap;
	}
}

static void grid_sync(Run &run)
{
	const u32 blocks = 100, n = blocks * 512;
	u32 *x = on_device<u32>(n), *y = on_device<u32>(n), stride = 777;
	while (run.more()) {
		Affine f = Affine::random(run.key(1));
		void *arguments[] = {&x, &y, &stride, &f};
		run.go();
		launch_fill(x, n, run.key(0), nullptr);
		OK(cudaLaunchCooperativeKernel((const void *)rotate_grid, dim3(blocks), dim3(512), arguments,
					       0, nullptr));
		run.done();
		std::vector<u32> result = fetch(x, n);
		run.add(result);
		check(result.data(), n, f.times(GRID_STEPS), run.key(0), "grid_sync",
		      [=](u32 i) { return (i + (u64)GRID_STEPS * stride) % n; });
	}
}

/* Each thread takes from the shared memory of the cluster's next block, and the cluster waits. */
static __global__ void __cluster_dims__(CLUSTER, 1, 1) rotate_cluster(u32 *x, Affine f)
{
	__shared__ u32 values[2][MEMBERS];
	cooperative_groups::cluster_group cluster = cooperative_groups::this_cluster();
	u32 i = blockIdx.x * MEMBERS + threadIdx.x, next = (cluster.block_rank() + 1) % CLUSTER;
	values[0][threadIdx.x] = x[i];
	cluster.sync();
	for (u32 step = 0; step < CLUSTER_STEPS; step++) {
		const u32 *theirs = cluster.map_shared_rank(values[step % 2], next);
		values[(step + 1) % 2][threadIdx.x] = f(theirs[(threadIdx.x + 1) % MEMBERS]);
		cluster.sync();
	}
	x[i] = values[CLUSTER_STEPS % 2][threadIdx.x];
}

static void cluster(Run &run)
{
	const u32 blocks = 96, n = blocks * MEMBERS;
	u32 *x = on_device<u32>(n);
	while (run.more()) {
		Affine f = Affine::random(run.key(1));
		run.go();
		launch_fill(x, n, run.key(0), nullptr);
		rotate_cluster<<<blocks, MEMBERS>>>(x, f);
		OK(cudaGetLastError());
		run.done();
		std::vector<u32> result = fetch(x, n);
		run.add(result);
		check(result.data(), n, f.times(CLUSTER_STEPS), run.key(0), "cluster", [](u32 i) {
			u32 block = i / MEMBERS, rank = (block % CLUSTER + CLUSTER_STEPS) % CLUSTER;
			return (block / CLUSTER * CLUSTER + rank) * MEMBERS +
			       (i % MEMBERS + CLUSTER_STEPS) % MEMBERS;
		});
	}
}

static const u32 TILE = 2048, SCANS = 8, SPIN = 100000;

/* What blocks of a scan tell each other. */
struct Tiles {
	u32 *ticket;
	volatile u32 *state, *sum, *prefix; // state: 0 nothing, 1 the tile's sum is there, 2 the prefix too
};

/* Sums of all elements up to each, in one pass: tiles by ticket, each adds what those before it have published. */
static __global__ void __launch_bounds__(256) scan(u32 *x, Tiles tiles, Affine f)
{
	__shared__ u32 tile, before, of_warps[8];
	if (threadIdx.x == 0)
		tile = atomicAdd(tiles.ticket, 1);
	__syncthreads();
	u32 *mine = x + (size_t)tile * TILE + threadIdx.x * 8, values[8], sum = 0, dead = threadIdx.x;
	for (u32 i = 0; i < 8; i++)
		values[i] = sum += mine[i];
	for (u32 k = 0; k < SPIN; k++) // time to be paused in, before anything is published
		dead = f(dead);
	u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, up_to = sum;
	for (u32 distance = 1; distance < 32; distance *= 2) {
		u32 other = __shfl_up_sync(~0u, up_to, distance);
		up_to += lane >= distance ? other : 0;
	}
	if (lane == 31)
		of_warps[warp] = up_to;
	__syncthreads();
	u32 warps_before = 0, total = 0;
	for (u32 w = 0; w < 8; w++) {
		warps_before += w < warp ? of_warps[w] : 0;
		total += of_warps[w];
	}
	if (threadIdx.x == 0) {
		tiles.sum[tile] = total;
		__threadfence();
		tiles.state[tile] = 1;
		for (u32 k = 0; k < SPIN; k++) // and between the two
			dead = f(dead);
		u32 prefix = 0, state = 0;
		for (u32 t = tile; t > 0 && state != 2; t--) {
			while (!(state = tiles.state[t - 1]))
				;
			__threadfence();
			prefix += state == 2 ? tiles.prefix[t - 1] : tiles.sum[t - 1];
		}
		tiles.prefix[tile] = prefix + total;
		__threadfence();
		tiles.state[tile] = 2;
		before = prefix;
	}
	__syncthreads();
	u32 base = before + warps_before + up_to - sum + (f.a == 0 ? dead : 0); // a is odd: keeps the loops
	for (u32 i = 0; i < 8; i++)
		mine[i] = base + values[i];
}

static void look_back(Run &run)
{
	const u32 n = 1 << 22, count = n / TILE, words = 1 + 3 * count;
	u32 *x = on_device<u32>(n), *shared = on_device<u32>(words);
	Tiles tiles = {shared, shared + 1, shared + 1 + count, shared + 1 + 2 * count};
	std::vector<u32> expected(n);
	while (run.more()) {
		run.go();
		launch_fill(x, n, run.key(0), nullptr);
		for (u32 i = 0; i < SCANS; i++) {
			OK(cudaMemsetAsync(shared, 0, words * sizeof *shared));
			scan<<<count, 256>>>(x, tiles, Affine::random(run.key(1)));
			OK(cudaGetLastError());
		}
		run.done();
		std::vector<u32> result = fetch(x, n);
		run.add(result);
		for (u32 i = 0; i < n; i++)
			expected[i] = (u32)mix(run.key(0) + i);
		for (u32 k = 0; k < SCANS; k++)
			for (u32 i = 1; i < n; i++)
				expected[i] += expected[i - 1];
		if (memcmp(result.data(), expected.data(), n * sizeof(u32)))
			fail("look_back: the sums are wrong");
	}
}
