/* SPDX-License-Identifier: Apache-2.0 */
/*
 * MIG: GPU instances and the compute instances in them. What a GPU instance may be and where it may lie is the
 * model's (models/mig-placements.tsv, with its sources). A GPU instance's id is the lowest free one of those for its size,
 * so ids come back soon; a serial number, from which the UUIDs are made, does not. (Hardware makes UUIDs of version
 * 5, from names: whether they come back there is not known here.)
 *
 * Like a driver's module, each instance has files that say which device gives access to it, below
 * DIR/proc/driver/nvidia/capabilities, and these devices, as plain files, below DIR/dev/nvidia-caps. A process may
 * use a MIG device if it may read those of its GPU instance and its compute instance.
 *
 * Called with the shared mutex held, unless it says otherwise.
 */
#ifndef SIM_MIG_H
#define SIM_MIG_H
#include "state.h"

/* A MIG device as one number: that of slot's `mig`. */
static inline uint32_t sim_mig_device(uint32_t gi, uint32_t ci)
{
	return 1 + gi * SIM_MIG_SLICES + ci;
}

static inline uint32_t sim_mig_gi(uint32_t device)
{
	return (device - 1) / SIM_MIG_SLICES;
}

static inline uint32_t sim_mig_ci(uint32_t device)
{
	return (device - 1) % SIM_MIG_SLICES;
}

/* Compute slices of a profile: the number that its name begins with. */
static inline uint32_t sim_mig_slices(const struct sim_mig_profile *profile)
{
	return (uint32_t)(profile->name[0] - '0');
}

/* The profile of a GPU instance that exists. */
const struct sim_mig_profile *sim_mig_profile_of(const struct sim_view *view, uint32_t gpu, uint32_t gi);

/* Whether a GPU instance of the model's profile may lie at `start` now. */
bool sim_mig_fits(const struct sim_view *view, uint32_t gpu, uint32_t profile, uint32_t start);

/* Makes one. Its id, -ENOSPC where it does not fit, or what making its files said. */
int sim_mig_create(struct sim_view *view, uint32_t gpu, uint32_t profile, uint32_t start);

/* 0, or -EBUSY while it has compute instances. */
int sim_mig_destroy(struct sim_view *view, uint32_t gpu, uint32_t gi);

/* Makes a compute instance of so many slices. Its id, -ENOSPC, or what making its files said. */
int sim_mig_create_compute(struct sim_view *view, uint32_t gpu, uint32_t gi, uint32_t slices);

/* 0, or -EBUSY while a process uses it. */
int sim_mig_destroy_compute(struct sim_view *view, uint32_t gpu, uint32_t gi, uint32_t ci);

/* Whether the MIG device exists, and with this serial number unless that is 0. */
bool sim_mig_exists(const struct sim_view *view, uint32_t gpu, uint32_t device, uint64_t serial);

/* Whether a process runs on the GPU, in whatever part of it. */
bool sim_mig_in_use(struct sim_view *view, uint32_t gpu);

/* Bytes that this process can be given: of its GPU instance, or without one of the GPU. */
uint64_t sim_mig_total(const struct sim_view *view, uint32_t gpu);

/* What processes hold of the memory of this process's GPU instance; without one, of the GPU. */
uint64_t sim_mig_used(const struct sim_view *view, uint32_t gpu);

/* The same for one GPU instance. */
uint64_t sim_mig_used_in(const struct sim_view *view, uint32_t gpu, uint32_t gi);

/* MIG-xxxxxxxx-xxxx-5xxx-xxxx-xxxxxxxxxxxx, and the same without punctuation; either may be NULL. */
void sim_mig_uuid(const struct sim_view *view, uint32_t gpu, uint32_t device, char uuid[48], char hex[33]);

/* Whether this process may open the devices of the MIG device. Without the mutex too. */
bool sim_mig_may_open(const struct sim_view *view, uint32_t gpu, uint32_t device);

/* A restart of the machine: no instance is left, and the mode is on only where hardware keeps it (before Hopper). */
void sim_mig_restart(struct sim_view *view);
#endif
