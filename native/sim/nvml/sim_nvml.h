/* SPDX-License-Identifier: Apache-2.0 */
/* Inside the simulated libnvidia-ml: the same machine and state as libcuda, looked at from outside. */
#ifndef SIM_NVML_H
#define SIM_NVML_H
#define NVML_NO_UNVERSIONED_FUNC_DEFS /* every version of every function, under its exported name */
#pragma GCC visibility push(default)
#include <nvml.h>
#pragma GCC visibility pop

#include "../core/faults.h"
#include "../core/state.h"
#include "../core/timeline.h"

/* What a device handle points to. */
struct nvmlDevice_st {
	uint32_t index;
	const struct sim_model *model;
};

struct nvml_library {
	pthread_mutex_t lock;
	struct sim_view view;
	struct faults faults;
	bool opened;
	_Atomic unsigned references;
	uint64_t swept_ns;
	struct nvmlDevice_st device[SIM_MAX_GPUS];
};
extern struct nvml_library nvml;

/* Before anything else in an export: initialised, and no fault asked for. */
nvmlReturn_t nvml_enter(const char *function);

/* Before anything else for a GPU: NVML reaches it, and no fault of this GPU alone is asked for. */
nvmlReturn_t nvml_enter_gpu(const char *function, uint32_t gpu);

/* Both, and device is one of ours. */
nvmlReturn_t nvml_enter_device(const char *function, nvmlDevice_t device);

/* text into a caller's buffer, or NVML_ERROR_INSUFFICIENT_SIZE. */
nvmlReturn_t nvml_copy_text(char *out, unsigned int size, const char *text);

/*
 * sim_sweep, but at most every half millisecond: it makes a system call for each process of the machine, which one look
 * of a program that watches all GPUs would repeat for each call on each GPU. Called with the shared mutex held.
 */
void nvml_sweep(void);

/* Percent of the last second during which gpu was busy. Takes the shared mutex. */
unsigned nvml_busy_percent(uint32_t gpu);

#define NVML_ENTER()                                                                                         \
	do {                                                                                                 \
		nvmlReturn_t entered_ = nvml_enter(__func__);                                                \
		if (entered_ != NVML_SUCCESS)                                                                \
			return entered_;                                                                     \
	} while (0)

/* Also checks one pointer to write to. */
#define NVML_ENTER_DEVICE(device, out)                                                                       \
	do {                                                                                                 \
		nvmlReturn_t entered_ = nvml_enter_device(__func__, device);                                 \
		if (entered_ != NVML_SUCCESS)                                                                \
			return entered_;                                                                     \
		if (!(out))                                                                                  \
			return NVML_ERROR_INVALID_ARGUMENT;                                                  \
	} while (0)
#endif
