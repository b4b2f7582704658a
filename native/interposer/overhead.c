/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Contexts and modules take device memory that no call of the application asks for (H200, driver 580.159: 518
 * MiB for the first context of a process). It is charged before a context is made, by an estimate, and
 * corrected after it by what NVML says this process holds beyond its own allocations. Where NVML cannot say
 * (a PID namespace), the estimate stays.
 */
#include <errno.h>
#include <pthread.h>
#include <time.h>
#include <unistd.h>

#include "compute.h"
#include "interposer.h"
#include "resolve.h"

#define MIB (1ull << 20)
#define CONTEXT_ESTIMATE (520 * MIB)

static struct {
	pthread_mutex_t lock;
	uint32_t pid; /* whose numbers these are: a forked child starts over */
	int contexts;
	uint64_t charged; /* bytes of kind CONTEXT */
} overhead = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void adopt(void)
{
	if (overhead.pid != (uint32_t)getpid()) {
		overhead.pid = (uint32_t)getpid();
		overhead.contexts = 0;
		overhead.charged = 0;
	}
}

CUresult hami_context_take(void)
{
	CUresult result = CUDA_SUCCESS;
	pthread_mutex_lock(&overhead.lock);
	adopt();
	if (!overhead.contexts && !overhead.charged) {
		int rc = hami_region_charge(hami_region(), HAMI_KIND_CONTEXT, CONTEXT_ESTIMATE);
		if (rc)
			result = CUDA_ERROR_OUT_OF_MEMORY;
		else
			overhead.charged = CONTEXT_ESTIMATE;
		if (rc && rc != -ENOMEM)
			hami_log(0,
				 "device memory cannot be accounted for (error %d), so the context is "
				 "refused\n",
				 -rc);
	}
	overhead.contexts += result == CUDA_SUCCESS;
	pthread_mutex_unlock(&overhead.lock);
	return result;
}

/* The granted GPU in NVML; false when NVML is not to be had. */
static bool granted_device(const struct real_nvml *nvml, nvmlDevice_t *device)
{
	return nvml && nvml->nvmlInit_v2 && nvml->nvmlDeviceGetHandleByUUID &&
	       nvml->nvmlInit_v2() == NVML_SUCCESS &&
	       nvml->nvmlDeviceGetHandleByUUID(hami_region()->job->gpu_uuid, device) == NVML_SUCCESS;
}

bool hami_gpu_used_lately(void)
{
	const struct real_nvml *nvml = hami_resolve_nvml(true);
	nvmlDevice_t device;
	nvmlUtilization_t whole;
	nvmlProcessUtilizationSample_t samples[256];
	unsigned int count = sizeof samples / sizeof *samples;
	struct timespec now;
	if (!granted_device(nvml, &device))
		return true;
	if (nvml->nvmlDeviceGetUtilizationRates &&
	    nvml->nvmlDeviceGetUtilizationRates(device, &whole) == NVML_SUCCESS && whole.gpu == 0)
		return false;
	clock_gettime(CLOCK_REALTIME, &now);
	unsigned long long since = (unsigned long long)(now.tv_sec - 2) * 1000000; /* NVML's timestamps: us */
	if (!nvml->nvmlDeviceGetProcessUtilization)
		return true;
	nvmlReturn_t result = nvml->nvmlDeviceGetProcessUtilization(device, samples, &count, since);
	if (result == NVML_ERROR_NOT_FOUND)
		return false; /* nobody's process has a sample */
	if (result != NVML_SUCCESS)
		return true;
	for (unsigned int i = 0; i < count; i++)
		if (samples[i].pid == (unsigned int)getpid())
			return samples[i].smUtil != 0;
	return true; /* not listed: idle, or known to NVML by another number (a PID namespace) */
}

/* Device memory of this process by NVML, in bytes; 0 when NVML cannot say. */
static uint64_t measured(void)
{
	const struct real_nvml *nvml = hami_resolve_nvml(true);
	nvmlDevice_t device;
	nvmlProcessInfo_t processes[256];
	unsigned int count = sizeof processes / sizeof *processes;
	if (!granted_device(nvml, &device) || !nvml->nvmlDeviceGetComputeRunningProcesses_v3 ||
	    nvml->nvmlDeviceGetComputeRunningProcesses_v3(device, &count, processes) != NVML_SUCCESS)
		return 0;
	for (unsigned int i = 0; i < count; i++)
		if (processes[i].pid == (unsigned int)getpid() &&
		    processes[i].usedGpuMemory != (unsigned long long)NVML_VALUE_NOT_AVAILABLE)
			return processes[i].usedGpuMemory;
	return 0;
}

static void correct(uint64_t wanted)
{
	if (wanted > overhead.charged)
		hami_region_force(hami_region(), HAMI_KIND_CONTEXT, wanted - overhead.charged);
	else
		hami_region_release(hami_region(), HAMI_KIND_CONTEXT, overhead.charged - wanted);
	overhead.charged = wanted;
}

void hami_context_settle(CUresult result)
{
	uint64_t held = result == CUDA_SUCCESS ? measured() : 0;
	pthread_mutex_lock(&overhead.lock);
	if (result != CUDA_SUCCESS)
		overhead.contexts--;
	uint64_t data = hami_region_data(hami_region());
	if (!overhead.contexts)
		correct(0);
	else if (held > data)
		correct(held - data);
	pthread_mutex_unlock(&overhead.lock);
}

void hami_context_gone(void)
{
	pthread_mutex_lock(&overhead.lock);
	adopt();
	if (overhead.contexts > 0 && --overhead.contexts == 0)
		correct(0);
	pthread_mutex_unlock(&overhead.lock);
}
