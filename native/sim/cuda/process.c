/* SPDX-License-Identifier: Apache-2.0 */
/* Initialisation, fork, faults: what every export passes first. */
#include "mps.h"
#include "sim_cuda.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

struct sim_process sim = {.lock = PTHREAD_MUTEX_INITIALIZER,
			  .view = {.fd = -1, .slot_fd = -1, .slot = SIM_NO_SLOT}};

static const char *const base_names[API_COUNT] = {
#define API(base, symbol, version) [API_##symbol] = #base,
#define API_STREAM(base, symbol, version, suffix) [API_##symbol] = #base,
#define API_ALIAS(base, symbol, version)
#include "api.def"
#undef API
#undef API_STREAM
#undef API_ALIAS
};

CUresult sim_enter(enum api_id id)
{
	int code = 0;
	if (!atomic_load_explicit(&sim.ready, memory_order_acquire))
		return CUDA_ERROR_NOT_INITIALIZED;
	if (sim.faults.count && faults_hit(&sim.faults, base_names[id], &code))
		return (CUresult)code;
	return sim_mps_check();
}

static void before_fork(void)
{
	sim_process_lock();
	sim_worker_before_fork();
}

static void after_fork_parent(void)
{
	sim_worker_after_fork();
	sim_process_unlock();
}

/*
 * The child has the parent's memory and none of its channels: it starts over at cuInit. What the parent had
 * allocated stays mapped and is never used again.
 */
static void after_fork_child(void)
{
	atomic_store(&sim.ready, false);
	atomic_fetch_add(&sim.generation, 1);
	sim_fork_child(&sim.view);
	sim.contexts = NULL;
	for (unsigned i = 0; i < SIM_MAX_GPUS; i++)
		sim.primary[i] = (struct primary){0};
	sim.lines.count = 0;
	sim_memory_fork_child();
	sim_mps_fork_child();
	sim_rm_fork_child();
	sim_pools_fork_child();
	sim_vmm_fork_child();
	sim_graph_fork_child();
	sim_ipc_fork_child();
	sim_host_fork_child();
	sim_worker_fork_child();
	sim_process_unlock();
}

static CUresult open_machine(void)
{
	int rc = sim_open(&sim.view);
	if (rc == 0 && sim.view.machine.gpu_count == 0)
		rc = -ENODEV;
	if (rc == 0)
		rc = faults_read(&sim.faults, sim.view.dir);
	if (rc == 0 && pthread_atfork(before_fork, after_fork_parent, after_fork_child) != 0)
		return CUDA_ERROR_OUT_OF_MEMORY;
	sim.opened = rc == 0;
	return rc == 0 ? CUDA_SUCCESS : CUDA_ERROR_NO_DEVICE;
}

static CUresult init_locked(void)
{
	int code = 0;
	if (atomic_load(&sim.ready))
		return CUDA_SUCCESS;
	if (!sim.opened)
		SIM_CHECK(open_machine());
	if (faults_hit(&sim.faults, "cuInit", &code) && code)
		return (CUresult)code;
	sim_read_visible();
	if (!sim.visible_count)
		return CUDA_ERROR_NO_DEVICE;
	int rc = sim_slot_take(&sim.view);
	if (rc) {
		fprintf(stderr,
			"hami_hpc: simulation: %s: no process slot (error %d); "
			"at most %d processes at once\n",
			sim.view.dir, -rc, SIM_MAX_SLOTS);
		return CUDA_ERROR_OPERATING_SYSTEM;
	}
	if (!sim_join_mig()) { /* destroyed meanwhile */
		sim_fork_child(&sim.view);
		return CUDA_ERROR_NO_DEVICE;
	}
	SIM_CHECK(sim_mps_connect());
	atomic_store_explicit(&sim.ready, true, memory_order_release);
	return CUDA_SUCCESS;
}

CUresult cuInit(unsigned int flags)
{
	if (flags)
		return CUDA_ERROR_INVALID_VALUE;
	sim_process_lock();
	CUresult result = init_locked();
	sim_process_unlock();
	return result;
}

CUresult cuDriverGetVersion(int *version)
{
	if (!version)
		return CUDA_ERROR_INVALID_VALUE;
	*version = sim.opened ? (int)sim.view.machine.cuda_version : CUDA_VERSION;
	return CUDA_SUCCESS;
}
