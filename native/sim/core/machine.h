/* SPDX-License-Identifier: Apache-2.0 */
/* The simulated machine: $HAMI_SIM/machine.conf, written by sim-machine, read by both libraries. */
#ifndef SIM_MACHINE_H
#define SIM_MACHINE_H
#include <stddef.h>
#include <stdint.h>

enum { SIM_MAX_GPUS = 16, SIM_MAX_MIG_PROFILES = 8 };

/* Of GPU instances. models/mig-placements.tsv says where the numbers come from; they are 0 in a model alone. */
struct sim_mig_profile {
	char name[16]; /* 1g.18gb */
	uint32_t memory_mib;
	uint32_t sm_count;
	uint32_t id;        /* NVML's profile id, not the number by which NVML enumerates profiles */
	uint32_t size;      /* memory slices that one placement takes */
	uint32_t most;      /* instances of this profile on a GPU */
	uint32_t start_set; /* bit: a placement starts at that memory slice */
};

struct sim_model {
	char model[32];
	char name[96];
	char uuid[48];     /* GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx */
	char uuid_hex[33]; /* the same without punctuation */
	uint32_t minor;
	uint32_t total_mib;    /* what NVML v1 calls total */
	uint32_t reserved_mib; /* total_mib - reserved_mib is CUDA's total */
	uint32_t context_mib;  /* what one context takes */
	uint32_t sm_count;
	uint32_t cc_major, cc_minor;
	uint32_t clock_mhz, memory_clock_mhz, memory_bus_bits, l2_mib, power_limit_w;
	uint32_t channel_class; /* RM class of a compute channel; ends in 0x6f */
	uint32_t timeslice_us;  /* the channel group's, until somebody sets another */
	uint32_t switch_us;     /* cost of preempting one process for another */
	uint32_t off_engine_us; /* the part of it in which no context is on the engine */
	uint32_t pause_us, resume_us;
	uint32_t kernel_ns; /* what a kernel takes that does not say how long it takes */
	/* Bytes per ns that a copy within the device moves, and a fill writes; 0: it takes no time. */
	uint32_t copy_gb_per_s, fill_gb_per_s;
	uint32_t addressing; /* of pageable memory: what nvmlDeviceGetAddressingMode says */
	uint32_t gpm;        /* 1: NVML's GPU performance monitoring is there, as from Hopper on */
	uint32_t mig_count;
	struct sim_mig_profile mig[SIM_MAX_MIG_PROFILES];
};

struct sim_machine {
	char driver_version[32];
	uint32_t cuda_version; /* 13000 is 13.0 */
	uint32_t gpu_count;
	struct sim_model gpu[SIM_MAX_GPUS];
};

/*
 * Reads DIR/machine.conf. 0; -ENOENT etc. when it cannot be read; -EINVAL with one line on stderr when it
 * says something that is not understood.
 */
int sim_machine_read(const char *dir, struct sim_machine *out);

/* Reads one model file's keys into *out (model, uuid and minor are the caller's). Errors as above. */
int sim_model_read(const char *path, struct sim_model *out);

static inline uint64_t sim_mib(uint64_t mib)
{
	return mib << 20;
}

static inline uint8_t sim_nibble(char digit)
{
	return (uint8_t)(digit <= '9' ? digit - '0' : (digit | 0x20) - 'a' + 10);
}

/* The GPU's UUID as the kernel's requests have it. */
static inline void sim_uuid_bytes(const struct sim_model *m, uint8_t out[16])
{
	for (int i = 0; i < 16; i++)
		out[i] = (uint8_t)(sim_nibble(m->uuid_hex[2 * i]) << 4 | sim_nibble(m->uuid_hex[2 * i + 1]));
}

/* Bytes that CUDA can hand out on this GPU. */
static inline uint64_t sim_cuda_total(const struct sim_model *m)
{
	return sim_mib(m->total_mib - m->reserved_mib);
}

/* The GPU's place on the simulated PCI bus. */
static inline unsigned sim_pci_bus(uint32_t gpu)
{
	return 1 + gpu * 16;
}
#endif
