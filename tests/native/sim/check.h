/* SPDX-License-Identifier: Apache-2.0 */
/* One program, one behaviour. The first check that fails says where and ends the program with 1. */
#ifndef SIM_CHECK_H
#define SIM_CHECK_H
#include <cuda.h>

#include <errno.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define CHECK(condition)                                                                                     \
	do {                                                                                                 \
		if (!(condition)) {                                                                          \
			fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition);              \
			exit(1);                                                                             \
		}                                                                                            \
	} while (0)

#define GIVES(expected, call)                                                                                \
	do {                                                                                                 \
		CUresult got_ = (call);                                                                      \
		if (got_ != (expected)) {                                                                    \
			fprintf(stderr, "%s:%d: %s gave %d, not %s\n", __FILE__, __LINE__, #call, (int)got_, \
				#expected);                                                                  \
			exit(1);                                                                             \
		}                                                                                            \
	} while (0)

#define OK(call) GIVES(CUDA_SUCCESS, call)

#define MIB ((size_t)1 << 20)
#define MS 1000000ull

/* A machine of its own for this program: HAMI_SIM names it. It goes when the program ends. */
static char machine_dir[64];

static pid_t machine_owner;

static inline void remove_machine(void)
{
	char command[128];
	if (getpid() != machine_owner)
		return;
	snprintf(command, sizeof command, "rm -rf %s", machine_dir);
	if (system(command) != 0)
		fprintf(stderr, "%s is left behind\n", machine_dir);
}

static inline void make_machine(const char *models)
{
	const char *bin = getenv("SIM_BIN");
	CHECK(bin);
	strcpy(machine_dir, "/tmp/hami-sim-test.XXXXXX");
	CHECK(mkdtemp(machine_dir));
	char command[512];
	snprintf(command, sizeof command, "%s/sim-machine %s %s", bin, machine_dir, models);
	CHECK(system(command) == 0);
	CHECK(setenv("HAMI_SIM", machine_dir, 1) == 0);
	machine_owner = getpid();
	atexit(remove_machine);
}

/* A current context on device 0. */
static inline CUcontext open_device(void)
{
	CUcontext context;
	OK(cuInit(0));
	OK(cuCtxCreate(&context, NULL, 0, 0));
	return context;
}

static inline size_t free_memory(void)
{
	size_t available, total;
	OK(cuMemGetInfo(&available, &total));
	return available;
}

static inline uint64_t now_ns(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static inline CUfunction spin_function(void)
{
	CUmodule module;
	CUfunction function;
	OK(cuModuleLoadData(&module, "image"));
	OK(cuModuleGetFunction(&function, module, "sim_spin_ns"));
	return function;
}

static inline void spin(CUfunction function, CUstream stream, uint64_t ns)
{
	void *parameters[] = {&ns};
	OK(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, parameters, NULL));
}

/* Runs body in a child process; the child's exit status. */
static inline pid_t start_child(void (*body)(void *), void *argument)
{
	pid_t pid = fork();
	CHECK(pid >= 0);
	if (pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL); /* none is left behind by a check that fails */
		body(argument);
		_exit(0);
	}
	return pid;
}

static inline int child_status(pid_t pid)
{
	int status;
	CHECK(waitpid(pid, &status, 0) == pid);
	return status;
}

/* Memory that parent and children see alike. */
static inline void *shared_memory(size_t size)
{
	void *p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	CHECK(p != MAP_FAILED);
	return p;
}

/* A number from sim-state's answer about GPU 0. */
static inline long long state_number(const char *key)
{
	char command[512], pattern[64];
	static char text[1 << 20];
	snprintf(command, sizeof command, "%s/sim-state %s", getenv("SIM_BIN"), machine_dir);
	FILE *pipe = popen(command, "r");
	CHECK(pipe);
	size_t n = fread(text, 1, sizeof text - 1, pipe);
	CHECK(pclose(pipe) == 0);
	text[n] = '\0';
	snprintf(pattern, sizeof pattern, "\"%s\": ", key);
	char *at = strstr(text, pattern);
	CHECK(at);
	return atoll(at + strlen(pattern));
}
#endif
