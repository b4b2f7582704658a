/* SPDX-License-Identifier: Apache-2.0 */
/* Which GPUs this process sees, or which one MIG device. */
#include "sim_cuda.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

/* The GPUs as they are: view.machine says less of the one whose MIG device this process uses. */
static struct sim_machine whole;

/* Those of its GPUs whose devices this process may open, in their order: CUDA's own numbers count these alone. */
static uint32_t open_gpu[SIM_MAX_GPUS], open_count;

/* Asks the device cgroup, where the machine has $HAMI_SIM/devices; else all GPUs may be opened. */
static void read_open(void)
{
	char path[PATH_MAX];
	snprintf(path, sizeof path, "%s/devices", sim.view.dir);
	const bool asks = access(path, F_OK) == 0;
	open_count = 0;
	for (uint32_t i = 0; i < whole.gpu_count; i++) {
		snprintf(path, sizeof path, "/dev/nvidia%u", i);
		const int fd = asks ? open(path, O_RDWR | O_CLOEXEC) : -1;
		if (!asks || fd >= 0 || errno != EPERM) /* the device has no driver, which is ENXIO */
			open_gpu[open_count++] = i;
		if (fd >= 0)
			close(fd);
	}
}

/* The index of the one GPU that `text` names, or SIM_MAX_GPUS. */
static uint32_t find_gpu(const char *text)
{
	char *end;
	unsigned long n = strtoul(text, &end, 10);
	if (end != text && !*end && *text != '-')
		return n < open_count ? open_gpu[n] : SIM_MAX_GPUS;
	uint32_t index = SIM_MAX_GPUS;
	for (uint32_t i = 0; i < open_count; i++)
		if (strlen(text) > 4 && strncasecmp(whole.gpu[open_gpu[i]].uuid, text, strlen(text)) == 0)
			index = index == SIM_MAX_GPUS ? open_gpu[i] : SIM_MAX_GPUS;
	return index;
}

static bool is_divided(uint32_t gpu)
{
	return __atomic_load_n(&sim.view.state->gpu[gpu].mig_mode, __ATOMIC_ACQUIRE) != 0;
}

/* The first MIG device of gpu that this process may open and whose UUID begins with `text`; 0: there is none. */
static uint32_t find_mig(uint32_t gpu, const char *text)
{
	char uuid[48];
	for (uint32_t mig = 1; mig <= SIM_MIG_INSTANCES * SIM_MIG_SLICES; mig++) {
		if (!sim_mig_exists(&sim.view, gpu, mig, 0) || !sim_mig_may_open(&sim.view, gpu, mig))
			continue;
		sim_mig_uuid(&sim.view, gpu, mig, uuid, NULL);
		if (strncasecmp(uuid, text, strlen(text)) == 0)
			return mig;
	}
	return 0;
}

/* Makes the MIG device the only visible one. */
static void take_mig(uint32_t gpu, uint32_t mig)
{
	struct sim_model *m = &sim.view.machine.gpu[gpu];
	const struct sim_mig_profile *p = sim_mig_profile_of(&sim.view, gpu, sim_mig_gi(mig));
	uint32_t slices = sim.view.state->gpu[gpu].mig[sim_mig_gi(mig)].compute_slices[sim_mig_ci(mig)];
	sim.visible[0] = gpu;
	sim.visible_count = 1;
	sim.mig = mig;
	sim.mig_serial = sim.view.state->gpu[gpu].mig[sim_mig_gi(mig)].serial;
	sim_mig_uuid(&sim.view, gpu, mig, NULL, sim.mig_uuid_hex);
	m->total_mib = p->memory_mib + m->reserved_mib; /* the driver's own is not of the instance */
	m->sm_count = p->sm_count * slices / sim_mig_slices(p);
	snprintf(m->name, sizeof m->name, "%.70s MIG %s", whole.gpu[gpu].name, p->name);
}

/* Takes one entry. False when nothing may follow it. */
static bool see(const char *text)
{
	bool is_uuid = strncasecmp(text, "MIG-", 4) == 0;
	uint32_t gpu = is_uuid ? 0 : find_gpu(text);
	for (uint32_t i = 0; i < sim.visible_count; i++)
		if (!is_uuid && sim.visible[i] == gpu)
			return false;
	if (gpu == SIM_MAX_GPUS)
		return false;
	if (!is_uuid && !is_divided(gpu)) {
		sim.visible[sim.visible_count++] = gpu;
		return true;
	}
	uint32_t last = is_uuid ? whole.gpu_count : gpu + 1, mig = 0;
	sim_lock(&sim.view);
	for (; !mig && gpu < last && !sim.visible_count; gpu++) {
		mig = is_divided(gpu) ? find_mig(gpu, is_uuid ? text : "MIG-") : 0;
		if (mig)
			take_mig(gpu, mig);
	}
	sim_unlock(&sim.view);
	return false;
}

/* All GPUs that are not divided; where all are, the first MIG device that this process may open. */
static void see_all(void)
{
	char index[16];
	for (int divided = 0; divided < 2 && !sim.visible_count; divided++)
		for (uint32_t i = 0; i < open_count && !sim.mig; i++)
			if (is_divided(open_gpu[i]) == (divided != 0)) {
				snprintf(index, sizeof index, "%u", i);
				see(index);
			}
}

void sim_read_visible(void)
{
	char text[1024];
	const char *value = getenv("CUDA_VISIBLE_DEVICES");
	if (!whole.gpu_count)
		whole = sim.view.machine;
	sim.view.machine = whole;
	sim.visible_count = sim.mig = 0;
	read_open();
	if (!value) {
		see_all();
		return;
	}
	snprintf(text, sizeof text, "%s", value);
	char *rest;
	for (char *one = strtok_r(text, ", ", &rest); one && see(one); one = strtok_r(NULL, ", ", &rest))
		;
}

bool sim_join_mig(void)
{
	if (!sim.mig)
		return true;
	uint32_t gpu = sim.visible[0];
	sim_lock(&sim.view);
	bool exists = sim_mig_exists(&sim.view, gpu, sim.mig, sim.mig_serial);
	if (exists)
		sim.view.state->slot[sim.view.slot].mig[gpu] = sim.mig;
	sim_unlock(&sim.view);
	return exists;
}
