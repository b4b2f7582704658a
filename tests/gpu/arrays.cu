// SPDX-License-Identifier: Apache-2.0
/*
 * Memory of the kinds that a program reaches by no pointer of libcuda's allocations: arrays of each form, read as textures
 * and written as surfaces, a module's own variables, and the stacks of a kernel that calls itself, also in a graph; beside
 * allocations of odd sizes, of one page of the GPU, many small ones, and compressible memory. Says "ready", then for each
 * line of its input compares all of it, writes it anew, and says so.
 *
 * Built by tests/gpu/test_swapped.py: nvcc -O2 -std=c++17 arrays.cu -o arrays -lcuda
 */
#include <cuda.h>
#include <cuda_runtime.h>

#include <cstdio>
#include <cstdlib>
#include <vector>

#define OK(call)                                                                                             \
	do {                                                                                                 \
		const int result = (int)(call);                                                              \
		if (result) {                                                                                \
			std::printf("%s: error %d\n", #call, result);                                        \
			std::exit(1);                                                                        \
		}                                                                                            \
	} while (0)

#define LARGE (64u << 20) // floats

__device__ float large[LARGE];
__device__ float little[1 << 18];
__device__ unsigned long long wrong;

__device__ float value(unsigned long long at, int round)
{
	return (float)((at * 2654435761ull + 977ull * (unsigned)round) & 0xfffff);
}

enum form { PLANE, VOLUME, LAYERS };

// One thread per element of an array of floats.
__global__ void fill(cudaSurfaceObject_t to, form f, unsigned w, unsigned h, unsigned d, int round)
{
	const unsigned x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y, z = blockIdx.z;
	if (x >= w)
		return;
	const float v = value(((unsigned long long)z * h + y) * w + x, round);
	if (f == PLANE)
		surf2Dwrite(v, to, x * sizeof(float), y);
	else if (f == VOLUME)
		surf3Dwrite(v, to, x * sizeof(float), y, z);
	else
		surf2DLayeredwrite(v, to, x * sizeof(float), y, z);
}

__global__ void compare(cudaTextureObject_t from, form f, unsigned w, unsigned h, unsigned d, int round)
{
	const unsigned x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y, z = blockIdx.z;
	if (x >= w)
		return;
	const float v = f == PLANE    ? tex2D<float>(from, x, y)
			: f == VOLUME ? tex3D<float>(from, x, y, z)
				      : tex2DLayered<float>(from, x, y, z);
	if (v != value(((unsigned long long)z * h + y) * w + x, round))
		atomicAdd(&wrong, 1ull);
}

__global__ void fill_plain(float *to, size_t count, int round)
{
	for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < count; i += (size_t)gridDim.x * blockDim.x)
		to[i] = value(i, round);
}

__global__ void compare_plain(const float *from, size_t count, int round)
{
	for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < count; i += (size_t)gridDim.x * blockDim.x)
		if (from[i] != value(i, round))
			atomicAdd(&wrong, 1ull);
}

// Each call has its own values on the thread's stack, of which the compiler cannot know the depth.
__device__ __noinline__ unsigned sum(unsigned depth, unsigned seed)
{
	volatile unsigned own[64];
	for (unsigned i = 0; i < 64; i++)
		own[i] = seed * 31 + i;
	const unsigned below = depth ? sum(depth - 1, own[seed % 64]) : 0;
	unsigned all = below;
	for (unsigned i = 0; i < 64; i++)
		all = all * 17 + own[i];
	return all;
}

__device__ unsigned sums[264 * 256];

__global__ void call(unsigned depth)
{
	const unsigned at = blockIdx.x * blockDim.x + threadIdx.x;
	sums[at] += sum(depth + at % 4, at);
}

struct held {
	const char *name;
	form f;
	unsigned w, h, d;
	cudaSurfaceObject_t surface;
	cudaTextureObject_t texture;
	float *plain; // not an array
	size_t count;
};

static std::vector<held> everything;

static void use(const char *name, form f, cudaArray_t array, unsigned w, unsigned h, unsigned d)
{
	held a = {name, f, w, h, d};
	cudaResourceDesc resource = {};
	resource.resType = cudaResourceTypeArray;
	resource.res.array.array = array;
	OK(cudaCreateSurfaceObject(&a.surface, &resource));
	cudaTextureDesc texture = {};
	texture.filterMode = cudaFilterModePoint;
	texture.readMode = cudaReadModeElementType;
	OK(cudaCreateTextureObject(&a.texture, &resource, &texture, nullptr));
	everything.push_back(a);
}

static void array(const char *name, form f, unsigned w, unsigned h, unsigned d)
{
	const cudaChannelFormatDesc floats = cudaCreateChannelDesc<float>();
	cudaArray_t made;
	if (f == PLANE)
		OK(cudaMallocArray(&made, &floats, w, h, cudaArraySurfaceLoadStore));
	else
		OK(cudaMalloc3DArray(&made, &floats, make_cudaExtent(w, h, d),
				     cudaArraySurfaceLoadStore | (f == LAYERS ? cudaArrayLayered : 0)));
	use(name, f, made, w, h, d);
}

static void plain(const char *name, void *address, size_t bytes)
{
	held a = {name};
	a.plain = (float *)address;
	a.count = bytes / sizeof(float);
	everything.push_back(a);
}

static void *compressible(size_t bytes)
{
	CUmemAllocationProp what = {};
	what.type = CU_MEM_ALLOCATION_TYPE_PINNED;
	what.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
	what.allocFlags.compressionType = CU_MEM_ALLOCATION_COMP_GENERIC;
	CUmemAccessDesc access = {what.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
	CUmemGenericAllocationHandle handle;
	CUdeviceptr address;
	OK(cuMemAddressReserve(&address, bytes, 0, 0, 0));
	OK(cuMemCreate(&handle, bytes, &what, 0));
	OK(cuMemMap(address, bytes, 0, handle, 0));
	OK(cuMemRelease(handle));
	OK(cuMemSetAccess(address, bytes, &access, 1));
	return (void *)address;
}

static void launch(const held &a, bool write, int round)
{
	const dim3 grid((a.w + 255) / 256, a.h, a.d);
	if (a.plain && write)
		fill_plain<<<264, 256>>>(a.plain, a.count, round);
	else if (a.plain)
		compare_plain<<<264, 256>>>(a.plain, a.count, round);
	else if (write)
		fill<<<grid, 256>>>(a.surface, a.f, a.w, a.h, a.d, round);
	else
		compare<<<grid, 256>>>(a.texture, a.f, a.w, a.h, a.d, round);
	OK(cudaGetLastError());
}

static void all_hold(int round)
{
	for (const held &a : everything) {
		unsigned long long found;
		launch(a, false, round);
		OK(cudaMemcpyFromSymbol(&found, wrong, sizeof found));
		if (found) {
			std::printf("%s: %llu elements differ\n", a.name, found);
			std::exit(1);
		}
	}
}

static cudaGraphExec_t calls;

static void make_calls()
{
	cudaGraph_t graph;
	cudaStream_t stream;
	OK(cudaDeviceSetLimit(cudaLimitStackSize, 8192));
	OK(cudaStreamCreate(&stream));
	OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
	call<<<264, 256, 0, stream>>>(15);
	OK(cudaStreamEndCapture(stream, &graph));
	OK(cudaGraphInstantiate(&calls, graph, 0));
}

// Runs what calls itself, by a launch or the graph; the same is added each time.
static void calls_add_up(bool by_graph, unsigned times)
{
	static std::vector<unsigned> once(264 * 256), now(once.size());
	if (by_graph)
		OK(cudaGraphLaunch(calls, 0));
	else
		call<<<264, 256>>>(15);
	OK(cudaMemcpyFromSymbol(times == 1 ? once.data() : now.data(), sums, sizeof sums));
	for (size_t i = 0; i < now.size() && times > 1; i++)
		if (now[i] != once[i] * times) {
			std::printf("what a kernel that calls itself has on its stack differs\n");
			std::exit(1);
		}
}

int main()
{
	make_calls();
	array("a plane of 256 MiB", PLANE, 8192, 8192, 1);
	array("a volume of 256 MiB", VOLUME, 512, 512, 256);
	array("layers of 64 MiB", LAYERS, 1024, 1024, 16);
	for (int i = 0; i < 8; i++)
		array("a plane of 5 MiB", PLANE, 1280, 1024, 1);
	for (int i = 0; i < 64; i++)
		array("a plane of 1 MiB", PLANE, 512, 512, 1);
	for (int i = 0; i < 256; i++)
		array("a plane of 64 KiB", PLANE, 128, 128, 1);

	const cudaChannelFormatDesc floats = cudaCreateChannelDesc<float>();
	cudaMipmappedArray_t levels;
	OK(cudaMallocMipmappedArray(&levels, &floats, make_cudaExtent(4096, 4096, 0), 4, cudaArraySurfaceLoadStore));
	for (unsigned i = 0; i < 4; i++) {
		cudaArray_t level;
		OK(cudaGetMipmappedArrayLevel(&level, levels, i));
		use("a level of a mipmap", PLANE, level, 4096 >> i, 4096 >> i, 1);
	}

	void *address;
	OK(cudaGetSymbolAddress(&address, large));
	plain("a variable of 256 MiB", address, sizeof large);
	OK(cudaGetSymbolAddress(&address, little));
	plain("a variable of 1 MiB", address, sizeof little);
	for (int i = 0; i < 100; i++) {
		OK(cudaMalloc(&address, 2 << 20));
		plain("a page", address, 2 << 20);
	}
	for (int i = 0; i < 500; i++) {
		OK(cudaMalloc(&address, 64 << 10));
		plain("64 KiB", address, 64 << 10);
	}
	for (size_t bytes : {3u << 20, (5u << 20) + 512, (100u << 20) + 12344, (7u << 20) - 4, 257u << 20}) {
		OK(cudaMalloc(&address, bytes));
		plain("an odd size", address, bytes);
	}
	plain("compressible memory", compressible(256 << 20), 256 << 20);
	for (const held &a : everything)
		launch(a, true, 0);
	all_hold(0);
	calls_add_up(false, 1);
	calls_add_up(true, 2);
	std::printf("ready\n");
	std::fflush(stdout);
	for (int round = 1; std::getchar() == '\n'; round++) {
		calls_add_up(round % 2, 2 * round + 1);
		calls_add_up(round % 2 == 0, 2 * round + 2);
		all_hold(round - 1);
		for (const held &a : everything)
			launch(a, true, round);
		all_hold(round);
		std::printf("round %d\n", round);
		std::fflush(stdout);
	}
}
