/* SPDX-License-Identifier: Apache-2.0 */
/* Inside the simulated libnvidia-ml: the same machine and state as libcuda, looked at from outside. */
#ifndef SIM_NVML_H
#define SIM_NVML_H
#define NVML_NO_UNVERSIONED_FUNC_DEFS /* every version of every function, under its exported name */
#pragma GCC visibility push(default)
#include <nvml.h>
#pragma GCC visibility pop

#include "../core/faults.h"
#include "../core/mig.h"
#include "../core/state.h"
#include "../core/timeline.h"

/* What a device handle points to: a GPU, or a MIG device of it. */
struct nvmlDevice_st {
	uint32_t index;
	const struct sim_model *model;
	uint32_t mig;    /* sim_mig_device(), or 0 for a GPU */
	uint64_t serial; /* of the MIG device's GPU instance */
};

/* What a handle of a GPU instance, or of a compute instance, points to. */
struct nvmlGpuInstance_st {
	uint32_t gpu, id;
	uint64_t serial; /* 0: never handed out */
};
struct nvmlComputeInstance_st {
	struct nvmlGpuInstance_st *parent;
	uint32_t id;
	uint64_t serial;
};

enum { NVML_MIG_DEVICES = 7 };

struct nvml_library {
	pthread_mutex_t lock;
	struct sim_view view;
	struct faults faults;
	bool opened;
	_Atomic unsigned references;
	uint64_t swept_ns;
	struct nvmlDevice_st device[SIM_MAX_GPUS];
	struct nvmlDevice_st mig[SIM_MAX_GPUS][SIM_MIG_INSTANCES * SIM_MIG_SLICES];
};
extern struct nvml_library nvml;

/* Before anything else in an export: initialised, and no fault asked for. */
nvmlReturn_t nvml_enter(const char *function);

/* Before anything else for a GPU: NVML reaches it, and no fault of this GPU alone is asked for. */
nvmlReturn_t nvml_enter_gpu(const char *function, uint32_t gpu);

/* Both, and device is one of ours. */
nvmlReturn_t nvml_enter_device(const char *function, nvmlDevice_t device);

/* A call that changes or shows how a GPU is divided: of root, and for a GPU that can be divided. */
nvmlReturn_t nvml_enter_mig(const char *function, nvmlDevice_t device);

/* The same for a GPU instance that exists. */
nvmlReturn_t nvml_enter_instance(const char *function, nvmlGpuInstance_t instance);

/* The handle of a MIG device. Called with the shared mutex held. */
nvmlDevice_t nvml_mig_device(uint32_t gpu, uint32_t mig);

/* Whether a handle is of one of our MIG devices; its GPU then, else SIM_MAX_GPUS. */
uint32_t nvml_gpu_of_mig(nvmlDevice_t device);

/* The error for what core/mig.h returned. */
nvmlReturn_t nvml_mig_error(int rc);

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
