/* SPDX-License-Identifier: Apache-2.0 */
/* Devices: which there are, and what they say of themselves. */
#include "mps.h"
#include "sim_cuda.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct sim_model *model_of(CUdevice device)
{
	return &sim.view.machine.gpu[sim.visible[device]];
}

CUresult cuDeviceGetCount(int *count)
{
	SIM_ENTER(cuDeviceGetCount);
	if (!count)
		return CUDA_ERROR_INVALID_VALUE;
	*count = (int)sim.visible_count;
	return CUDA_SUCCESS;
}

CUresult cuDeviceGet(CUdevice *device, int ordinal)
{
	SIM_ENTER(cuDeviceGet);
	if (!device)
		return CUDA_ERROR_INVALID_VALUE;
	SIM_CHECK(sim_check_device(ordinal));
	*device = ordinal;
	return CUDA_SUCCESS;
}

CUresult cuDeviceGetName(char *name, int size, CUdevice device)
{
	SIM_ENTER(cuDeviceGetName);
	if (!name || size <= 0)
		return CUDA_ERROR_INVALID_VALUE;
	SIM_CHECK(sim_check_device(device));
	snprintf(name, (size_t)size, "%s", model_of(device)->name);
	return CUDA_SUCCESS;
}

static CUresult get_uuid(CUuuid *uuid, const char *hex)
{
	if (!uuid)
		return CUDA_ERROR_INVALID_VALUE;
	for (size_t i = 0; i < sizeof uuid->bytes; i++) {
		char digits[3] = {hex[2 * i], hex[2 * i + 1], 0};
		uuid->bytes[i] = (char)strtoul(digits, NULL, 16);
	}
	return CUDA_SUCCESS;
}

/* cuda.h: version 2 returns the UUID of a MIG device, this one that of its GPU. */
CUresult cuDeviceGetUuid(CUuuid *uuid, CUdevice device)
{
	SIM_ENTER(cuDeviceGetUuid);
	SIM_CHECK(sim_check_device(device));
	return get_uuid(uuid, model_of(device)->uuid_hex);
}

CUresult cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice device)
{
	SIM_ENTER(cuDeviceGetUuid_v2);
	SIM_CHECK(sim_check_device(device));
	return get_uuid(uuid, sim.mig ? sim.mig_uuid_hex : model_of(device)->uuid_hex);
}

CUresult cuDeviceGetLuid(char *luid, unsigned int *mask, CUdevice device)
{
	SIM_ENTER(cuDeviceGetLuid);
	(void)luid;
	(void)mask;
	SIM_CHECK(sim_check_device(device));
	return CUDA_ERROR_NOT_SUPPORTED; /* Windows only */
}

CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device)
{
	SIM_ENTER(cuDeviceTotalMem_v2);
	if (!bytes)
		return CUDA_ERROR_INVALID_VALUE;
	SIM_CHECK(sim_check_device(device));
	*bytes = sim_cuda_total(model_of(device));
	return CUDA_SUCCESS;
}

CUresult cuDeviceComputeCapability(int *major, int *minor, CUdevice device)
{
	SIM_ENTER(cuDeviceComputeCapability);
	if (!major || !minor)
		return CUDA_ERROR_INVALID_VALUE;
	SIM_CHECK(sim_check_device(device));
	*major = (int)model_of(device)->cc_major;
	*minor = (int)model_of(device)->cc_minor;
	return CUDA_SUCCESS;
}

CUresult cuDeviceGetPCIBusId(char *id, int size, CUdevice device)
{
	SIM_ENTER(cuDeviceGetPCIBusId);
	if (!id || size < 13)
		return CUDA_ERROR_INVALID_VALUE;
	SIM_CHECK(sim_check_device(device));
	snprintf(id, (size_t)size, "0000:%02X:00.0", sim_pci_bus(sim.visible[device]));
	return CUDA_SUCCESS;
}

CUresult cuDeviceGetByPCIBusId(CUdevice *device, const char *id)
{
	SIM_ENTER(cuDeviceGetByPCIBusId);
	unsigned domain, bus, slot;
	if (!device || !id || sscanf(id, "%x:%x:%x", &domain, &bus, &slot) != 3)
		return CUDA_ERROR_INVALID_VALUE;
	for (uint32_t i = 0; i < sim.visible_count; i++)
		if (!domain && !slot && bus == sim_pci_bus(sim.visible[i])) {
			*device = (CUdevice)i;
			return CUDA_SUCCESS;
		}
	return CUDA_ERROR_INVALID_DEVICE;
}

static bool same_machine_peer(CUdevice a, CUdevice b)
{
	return sim_check_device(a) == CUDA_SUCCESS && sim_check_device(b) == CUDA_SUCCESS;
}

CUresult cuDeviceCanAccessPeer(int *can, CUdevice device, CUdevice peer)
{
	SIM_ENTER(cuDeviceCanAccessPeer);
	if (!can)
		return CUDA_ERROR_INVALID_VALUE;
	if (!same_machine_peer(device, peer))
		return CUDA_ERROR_INVALID_DEVICE;
	*can = device != peer;
	return CUDA_SUCCESS;
}

/* Attributes that every model has alike: those of compute capability 8 and 9. What is not here is 0. */
static const struct {
	CUdevice_attribute attribute;
	int value;
} common[] = {
#define A(name, value)                                                                                       \
	{                                                                                                    \
		CU_DEVICE_ATTRIBUTE_##name, value                                                            \
	}
	A(MAX_THREADS_PER_BLOCK, 1024),
	A(MAX_BLOCK_DIM_X, 1024),
	A(MAX_BLOCK_DIM_Y, 1024),
	A(MAX_BLOCK_DIM_Z, 64),
	A(MAX_GRID_DIM_X, 2147483647),
	A(MAX_GRID_DIM_Y, 65535),
	A(MAX_GRID_DIM_Z, 65535),
	A(MAX_SHARED_MEMORY_PER_BLOCK, 49152),
	A(TOTAL_CONSTANT_MEMORY, 65536),
	A(WARP_SIZE, 32),
	A(MAX_PITCH, 2147483647),
	A(MAX_REGISTERS_PER_BLOCK, 65536),
	A(TEXTURE_ALIGNMENT, 512),
	A(GPU_OVERLAP, 1),
	A(CAN_MAP_HOST_MEMORY, 1),
	A(SURFACE_ALIGNMENT, 512),
	A(CONCURRENT_KERNELS, 1),
	A(ECC_ENABLED, 1),
	A(MAX_THREADS_PER_MULTIPROCESSOR, 2048),
	A(ASYNC_ENGINE_COUNT, 3),
	A(UNIFIED_ADDRESSING, 1),
	A(TEXTURE_PITCH_ALIGNMENT, 32),
	A(MAXIMUM_TEXTURE1D_WIDTH, 131072),
	A(MAXIMUM_TEXTURE2D_WIDTH, 131072),
	A(MAXIMUM_TEXTURE2D_HEIGHT, 65536),
	A(MAXIMUM_TEXTURE3D_WIDTH, 16384),
	A(MAXIMUM_TEXTURE3D_HEIGHT, 16384),
	A(MAXIMUM_TEXTURE3D_DEPTH, 16384),
	A(STREAM_PRIORITIES_SUPPORTED, 1),
	A(GLOBAL_L1_CACHE_SUPPORTED, 1),
	A(LOCAL_L1_CACHE_SUPPORTED, 1),
	A(MAX_REGISTERS_PER_MULTIPROCESSOR, 65536),
	A(MANAGED_MEMORY, 1),
	A(SINGLE_TO_DOUBLE_PRECISION_PERF_RATIO, 2),
	A(CONCURRENT_MANAGED_ACCESS, 1),
	A(COMPUTE_PREEMPTION_SUPPORTED, 1),
	A(CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM, 1),
	A(COOPERATIVE_LAUNCH, 1),
	A(HOST_REGISTER_SUPPORTED, 1),
	A(VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, 1),
	A(HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, 1),
	A(MAX_BLOCKS_PER_MULTIPROCESSOR, 32),
	A(RESERVED_SHARED_MEMORY_PER_BLOCK, 1024),
	A(MEMORY_POOLS_SUPPORTED, 1),
	A(MEMPOOL_SUPPORTED_HANDLE_TYPES, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
	A(READ_ONLY_HOST_REGISTER_SUPPORTED, 1),
	A(GPU_DIRECT_RDMA_WRITES_ORDERING, CU_GPU_DIRECT_RDMA_WRITES_ORDERING_ALL_DEVICES),
#undef A
};

static int model_attribute(const struct sim_model *m, uint32_t gpu, CUdevice_attribute attribute)
{
	bool hopper = m->cc_major >= 9;
	switch (attribute) {
	case CU_DEVICE_ATTRIBUTE_CLOCK_RATE:
		return (int)m->clock_mhz * 1000;
	case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT:
		return (int)sim_mps_sms(m->sm_count);
	case CU_DEVICE_ATTRIBUTE_PCI_BUS_ID:
		return (int)sim_pci_bus(gpu);
	case CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE:
		return (int)m->memory_clock_mhz * 1000;
	case CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH:
		return (int)m->memory_bus_bits;
	case CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE:
		return (int)m->l2_mib << 20;
	case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR:
		return (int)m->cc_major;
	case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR:
		return (int)m->cc_minor;
	case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR:
		return hopper ? 228 * 1024 : 164 * 1024;
	case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN:
		return hopper ? 227 * 1024 : 163 * 1024;
	case CU_DEVICE_ATTRIBUTE_CLUSTER_LAUNCH:
		return hopper;
	default:
		return 0;
	}
}

CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice device)
{
	SIM_ENTER(cuDeviceGetAttribute);
	if (!value || (int)attribute < 1 || attribute >= CU_DEVICE_ATTRIBUTE_MAX)
		return CUDA_ERROR_INVALID_VALUE;
	SIM_CHECK(sim_check_device(device));
	for (size_t i = 0; i < sizeof common / sizeof *common; i++)
		if (common[i].attribute == attribute) {
			*value = common[i].value;
			return CUDA_SUCCESS;
		}
	*value = model_attribute(model_of(device), sim.visible[device], attribute);
	return CUDA_SUCCESS;
}
