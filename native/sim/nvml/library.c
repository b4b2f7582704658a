/* SPDX-License-Identifier: Apache-2.0 */
/* Initialisation, errors and what concerns the whole system. */
#include "sim_nvml.h"

#include <stdio.h>
#include <string.h>

#define SWEEP_NS 500000ull

struct nvml_library nvml = {.lock = PTHREAD_MUTEX_INITIALIZER,
			    .view = {.fd = -1, .slot_fd = -1, .slot = SIM_NO_SLOT}};

nvmlReturn_t nvml_enter(const char *function)
{
	int code = 0;
	if (!atomic_load(&nvml.references))
		return NVML_ERROR_UNINITIALIZED;
	if (nvml.faults.count && faults_hit(&nvml.faults, function, &code))
		return (nvmlReturn_t)code;
	return NVML_SUCCESS;
}

nvmlReturn_t nvml_enter_gpu(const char *function, uint32_t gpu)
{
	int code = __atomic_load_n(&nvml.view.state->gpu[gpu].nvml_error, __ATOMIC_ACQUIRE);
	if (!code && nvml.faults.count)
		faults_hit_gpu(&nvml.faults, function, gpu, &code);
	return (nvmlReturn_t)code;
}

nvmlReturn_t nvml_enter_device(const char *function, nvmlDevice_t device)
{
	nvmlReturn_t result = nvml_enter(function);
	if (result != NVML_SUCCESS)
		return result;
	for (uint32_t i = 0; i < nvml.view.machine.gpu_count; i++)
		if (device == &nvml.device[i])
			return nvml_enter_gpu(function, i);
	uint32_t gpu = nvml_gpu_of_mig(device);
	if (gpu == SIM_MAX_GPUS)
		return NVML_ERROR_INVALID_ARGUMENT;
	result = nvml_enter_gpu(function, gpu);
	if (result != NVML_SUCCESS)
		return result;
	sim_lock(&nvml.view);
	bool exists = sim_mig_exists(&nvml.view, gpu, device->mig, device->serial);
	sim_unlock(&nvml.view);
	return exists ? NVML_SUCCESS : NVML_ERROR_NOT_FOUND;
}

void nvml_sweep(void)
{
	uint64_t now = timeline_now();
	if (nvml.swept_ns && now - nvml.swept_ns < SWEEP_NS)
		return;
	nvml.swept_ns = now;
	sim_sweep(&nvml.view);
}

nvmlReturn_t nvml_copy_text(char *out, unsigned int size, const char *text)
{
	size_t length = strlen(text);
	if (!out)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (length >= size)
		return NVML_ERROR_INSUFFICIENT_SIZE;
	memcpy(out, text, length + 1);
	return NVML_SUCCESS;
}

static nvmlReturn_t init_locked(void)
{
	int code = 0;
	if (!nvml.opened) {
		if (sim_open(&nvml.view) != 0 || faults_read(&nvml.faults, nvml.view.dir) != 0)
			return NVML_ERROR_DRIVER_NOT_LOADED;
		for (uint32_t i = 0; i < nvml.view.machine.gpu_count; i++)
			nvml.device[i] = (struct nvmlDevice_st){i, &nvml.view.machine.gpu[i], 0, 0};
		nvml.opened = true;
	}
	if (faults_hit(&nvml.faults, "nvmlInit_v2", &code) && code)
		return (nvmlReturn_t)code;
	atomic_fetch_add(&nvml.references, 1);
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlInitWithFlags(unsigned int flags)
{
	if (flags & ~(unsigned)(NVML_INIT_FLAG_NO_GPUS | NVML_INIT_FLAG_NO_ATTACH))
		return NVML_ERROR_INVALID_ARGUMENT;
	pthread_mutex_lock(&nvml.lock);
	nvmlReturn_t result = init_locked();
	pthread_mutex_unlock(&nvml.lock);
	return result;
}

nvmlReturn_t nvmlInit_v2(void)
{
	return nvmlInitWithFlags(0);
}

nvmlReturn_t nvmlInit(void)
{
	return nvmlInitWithFlags(0);
}

nvmlReturn_t nvmlShutdown(void)
{
	nvmlReturn_t result = NVML_SUCCESS;
	pthread_mutex_lock(&nvml.lock);
	if (atomic_load(&nvml.references))
		atomic_fetch_sub(&nvml.references, 1);
	else
		result = NVML_ERROR_UNINITIALIZED;
	pthread_mutex_unlock(&nvml.lock);
	return result;
}

const char *nvmlErrorString(nvmlReturn_t result)
{
	static const struct {
		nvmlReturn_t code;
		const char *text;
	} texts[] = {
		{NVML_SUCCESS, "Success"},
		{NVML_ERROR_UNINITIALIZED, "Uninitialized"},
		{NVML_ERROR_INVALID_ARGUMENT, "Invalid Argument"},
		{NVML_ERROR_NOT_SUPPORTED, "Not Supported"},
		{NVML_ERROR_NO_PERMISSION, "Insufficient Permissions"},
		{NVML_ERROR_ALREADY_INITIALIZED, "Already Initialized"},
		{NVML_ERROR_NOT_FOUND, "Not Found"},
		{NVML_ERROR_INSUFFICIENT_SIZE, "Insufficient Size"},
		{NVML_ERROR_INSUFFICIENT_POWER, "Insufficient External Power"},
		{NVML_ERROR_DRIVER_NOT_LOADED, "Driver Not Loaded"},
		{NVML_ERROR_TIMEOUT, "Timeout"},
		{NVML_ERROR_IRQ_ISSUE, "Interrupt Request Issue"},
		{NVML_ERROR_LIBRARY_NOT_FOUND, "NVML Shared Library Not Found"},
		{NVML_ERROR_FUNCTION_NOT_FOUND, "Function Not Found"},
		{NVML_ERROR_CORRUPTED_INFOROM, "Corrupted infoROM"},
		{NVML_ERROR_GPU_IS_LOST, "GPU is lost"},
		{NVML_ERROR_RESET_REQUIRED, "GPU requires restart"},
		{NVML_ERROR_OPERATING_SYSTEM, "The operating system has blocked the request."},
		{NVML_ERROR_LIB_RM_VERSION_MISMATCH, "RM has detected an NVML/RM version mismatch."},
		{NVML_ERROR_IN_USE, "In use by another client"},
		{NVML_ERROR_MEMORY, "Insufficient Memory"},
		{NVML_ERROR_NO_DATA, "No data"},
		{NVML_ERROR_INSUFFICIENT_RESOURCES, "Insufficient Resources"},
		{NVML_ERROR_ARGUMENT_VERSION_MISMATCH, "Argument version mismatch"},
		{NVML_ERROR_DEPRECATED, "Deprecated"},
		{NVML_ERROR_NOT_READY, "System is not ready"},
		{NVML_ERROR_GPU_NOT_FOUND, "GPU not found"},
	};
	for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
		if (texts[i].code == result)
			return texts[i].text;
	return "Unknown Error";
}

nvmlReturn_t nvmlSystemGetDriverVersion(char *version, unsigned int length)
{
	NVML_ENTER();
	return nvml_copy_text(version, length, nvml.view.machine.driver_version);
}

nvmlReturn_t nvmlSystemGetNVMLVersion(char *version, unsigned int length)
{
	char text[64];
	NVML_ENTER();
	snprintf(text, sizeof text, "%u.%s", nvml.view.machine.cuda_version / 1000,
		 nvml.view.machine.driver_version);
	return nvml_copy_text(version, length, text);
}

nvmlReturn_t nvmlSystemGetCudaDriverVersion(int *version)
{
	NVML_ENTER();
	if (!version)
		return NVML_ERROR_INVALID_ARGUMENT;
	*version = (int)nvml.view.machine.cuda_version;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int *version)
{
	return nvmlSystemGetCudaDriverVersion(version);
}

nvmlReturn_t nvmlSystemGetProcessName(unsigned int pid, char *name, unsigned int length)
{
	char path[64], text[4096];
	NVML_ENTER();
	if (!name || !length)
		return NVML_ERROR_INVALID_ARGUMENT;
	snprintf(path, sizeof path, "/proc/%u/cmdline", pid);
	FILE *file = fopen(path, "re");
	if (!file)
		return NVML_ERROR_NOT_FOUND;
	size_t n = fread(text, 1, sizeof text - 1, file);
	fclose(file);
	text[n] = '\0'; /* the first argument ends with its own NUL */
	snprintf(name, length, "%s", text);
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlUnitGetCount(unsigned int *count)
{
	NVML_ENTER();
	if (!count)
		return NVML_ERROR_INVALID_ARGUMENT;
	*count = 0; /* S-class systems only */
	return NVML_SUCCESS;
}
