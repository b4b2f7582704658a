// SPDX-License-Identifier: Apache-2.0
/*
 * What the cases of paused.cu share: inputs that follow from a seed, a function whose repetitions have a closed form,
 * and the rounds of a case with their hash.
 */
#pragma once

#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <unistd.h>
#include <vector>

#include <cuda.h>
#include <cuda_runtime.h>

using u32 = uint32_t;
using u64 = uint64_t;

#define OK(call)                                                                                             \
	do {                                                                                                 \
		int e_ = (int)(call);                                                                        \
		if (e_)                                                                                      \
			fail("%s:%d: %s: error %d", __FILE__, __LINE__, #call, e_);                          \
	} while (0)

[[noreturn]] static void fail(const char *format, ...)
{
	va_list arguments;
	va_start(arguments, format);
	vfprintf(stderr, format, arguments);
	va_end(arguments);
	fputc('\n', stderr);
	_exit(1); // a paused GPU's work must not keep the process
}

static double now()
{
	timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec + t.tv_nsec * 1e-9;
}

/* Returns number `i` of an endless random sequence (splitmix64). */
__host__ __device__ inline u64 mix(u64 i)
{
	u64 z = (i + 1) * 0x9e3779b97f4a7c15ull;
	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
	z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
	return z ^ (z >> 31);
}

/*
 * x -> a x + c modulo 2^32. Two of them in the other order give other results, so that work done twice, not at all or
 * in another order is noticed; any number of them in a row is one of them, which is the reference.
 */
struct Affine {
	u32 a = 1, c = 0;

	__host__ __device__ u32 operator()(u32 x) const
	{
		return a * x + c;
	}

	Affine then(Affine next) const
	{
		return {next.a * a, next.a * c + next.c};
	}

	Affine times(u64 count) const
	{
		Affine result, square = *this;
		for (; count; count >>= 1, square = square.then(square))
			if (count & 1)
				result = result.then(square);
		return result;
	}

	static Affine random(u64 key)
	{
		return {(u32)mix(key) | 1, (u32)(mix(key) >> 32)};
	}
};

/* One case: its rounds, until they took `seconds` or were as many as asked for, and the hash of their results. */
class Run
{
	double seconds, spent = 0, began = 0;
	u64 wanted;

      public:
	u64 seed, round = 0, hash = 0xcbf29ce484222325ull;

	Run(u64 seed, double seconds, u64 wanted) : seconds(seconds), wanted(wanted), seed(seed)
	{
	}

	/* Whether to do another round; `round` counts from 1. */
	bool more()
	{
		bool next = wanted ? round < wanted : spent < seconds;
		round += next;
		return next;
	}

	/* Returns the key of this round's inputs of one kind: mix(key + i) is number i. */
	u64 key(u64 kind) const
	{
		return mix(mix(seed * 1000003 + round) + kind);
	}

	void go()
	{
		began = now();
	}

	/* Waits for the GPU, the whole device without a stream: what took time since go() was the round's work. */
	void done(cudaStream_t stream = nullptr)
	{
		OK(stream ? cudaStreamSynchronize(stream) : cudaDeviceSynchronize());
		spent += now() - began;
	}

	double gpu_seconds() const
	{
		return spent;
	}

	void add(u64 word)
	{
		hash = (hash ^ word) * 0x100000001b3ull;
		hash ^= hash >> 29;
	}

	void add(const std::vector<u32> &words)
	{
		for (u32 word : words)
			add(word);
	}
};

/* x[i] = number i of `key`. */
static __global__ void fill(u32 *x, u32 n, u64 key)
{
	for (u32 i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
		x[i] = (u32)mix(key + i);
}

/* Applies `f` to each element, one after the other `times` times: about 4 clocks each. */
static __global__ void apply(u32 *x, u32 n, Affine f, u32 times)
{
	for (u32 i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
		u32 y = x[i];
		for (u32 k = 0; k < times; k++)
			y = f(y);
		x[i] = y;
	}
}

static void launch_fill(u32 *x, u32 n, u64 key, cudaStream_t stream)
{
	fill<<<(n + 255) / 256, 256, 0, stream>>>(x, n, key);
	OK(cudaGetLastError());
}

static void launch_apply(u32 *x, u32 n, Affine f, u32 times, cudaStream_t stream)
{
	apply<<<(n + 255) / 256, 256, 0, stream>>>(x, n, f, times);
	OK(cudaGetLastError());
}

static cudaStream_t new_stream()
{
	cudaStream_t stream;
	OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
	return stream;
}

static cudaEvent_t new_event()
{
	cudaEvent_t event;
	OK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
	return event;
}

template <class T> static T *on_device(size_t count)
{
	T *pointer;
	OK(cudaMalloc(&pointer, count * sizeof(T)));
	return pointer;
}

template <class T> static T *pinned(size_t count)
{
	T *pointer;
	OK(cudaHostAlloc(&pointer, count * sizeof(T), cudaHostAllocMapped));
	return pointer;
}

template <class T> static std::vector<T> fetch(const T *from, size_t count)
{
	std::vector<T> to(count);
	OK(cudaMemcpy(to.data(), from, count * sizeof(T), cudaMemcpyDeviceToHost));
	return to;
}

/* Fails unless x[i] is `f` of number `source(i)` of `key`. */
template <class Source>
static void check(const u32 *x, u32 n, Affine f, u64 key, const char *what, Source source)
{
	for (u32 i = 0; i < n; i++) {
		u32 expected = f((u32)mix(key + source(i)));
		if (x[i] != expected)
			fail("%s: element %u of %u is %08x, not %08x", what, i, n, x[i], expected);
	}
}

static void check(const u32 *x, u32 n, Affine f, u64 key, const char *what)
{
	check(x, n, f, key, what, [](u32 i) { return i; });
}
