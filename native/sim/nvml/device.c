/* SPDX-License-Identifier: Apache-2.0 */
/* Which devices there are, and who they are. */
#include "sim_nvml.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

nvmlReturn_t nvmlDeviceGetCount_v2(unsigned int *count)
{
	NVML_ENTER();
	if (!count)
		return NVML_ERROR_INVALID_ARGUMENT;
	*count = nvml.view.machine.gpu_count;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetCount(unsigned int *count)
{
	return nvmlDeviceGetCount_v2(count);
}

nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t *device)
{
	NVML_ENTER();
	if (!device || index >= nvml.view.machine.gpu_count)
		return NVML_ERROR_INVALID_ARGUMENT;
	*device = &nvml.device[index];
	return nvml_enter_gpu(__func__, index);
}

nvmlReturn_t nvmlDeviceGetHandleByIndex(unsigned int index, nvmlDevice_t *device)
{
	return nvmlDeviceGetHandleByIndex_v2(index, device);
}

static nvmlReturn_t find_mig_device(const char *uuid, nvmlDevice_t *device)
{
	char one[48];
	*device = NULL;
	sim_lock(&nvml.view);
	for (uint32_t g = 0; !*device && g < nvml.view.machine.gpu_count; g++)
		for (uint32_t mig = 1; !*device && mig <= SIM_MIG_INSTANCES * SIM_MIG_SLICES; mig++) {
			if (!sim_mig_exists(&nvml.view, g, mig, 0))
				continue;
			sim_mig_uuid(&nvml.view, g, mig, one, NULL);
			if (strcasecmp(uuid, one) == 0)
				*device = nvml_mig_device(g, mig);
		}
	sim_unlock(&nvml.view);
	return *device ? NVML_SUCCESS : NVML_ERROR_NOT_FOUND;
}

nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *device)
{
	NVML_ENTER();
	if (!uuid || !device)
		return NVML_ERROR_INVALID_ARGUMENT;
	for (uint32_t i = 0; i < nvml.view.machine.gpu_count; i++)
		if (strcasecmp(uuid, nvml.device[i].model->uuid) == 0) {
			*device = &nvml.device[i];
			return nvml_enter_gpu(__func__, i);
		}
	return find_mig_device(uuid, device);
}

nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char *id, nvmlDevice_t *device)
{
	unsigned domain, bus, slot;
	NVML_ENTER();
	if (!id || !device || sscanf(id, "%x:%x:%x", &domain, &bus, &slot) != 3)
		return NVML_ERROR_INVALID_ARGUMENT;
	for (uint32_t i = 0; i < nvml.view.machine.gpu_count; i++)
		if (!domain && !slot && bus == sim_pci_bus(i)) {
			*device = &nvml.device[i];
			return nvml_enter_gpu(__func__, i);
		}
	return NVML_ERROR_NOT_FOUND;
}

nvmlReturn_t nvmlDeviceGetHandleByPciBusId(const char *id, nvmlDevice_t *device)
{
	return nvmlDeviceGetHandleByPciBusId_v2(id, device);
}

nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t device, char *name, unsigned int length)
{
	char text[128];
	NVML_ENTER_DEVICE(device, name);
	if (!device->mig)
		return nvml_copy_text(name, length, device->model->name);
	sim_lock(&nvml.view);
	snprintf(text, sizeof text, "%s MIG %s", device->model->name,
		 sim_mig_profile_of(&nvml.view, device->index, sim_mig_gi(device->mig))->name);
	sim_unlock(&nvml.view);
	return nvml_copy_text(name, length, text);
}

nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char *uuid, unsigned int length)
{
	char text[48];
	NVML_ENTER_DEVICE(device, uuid);
	if (!device->mig)
		return nvml_copy_text(uuid, length, device->model->uuid);
	sim_lock(&nvml.view);
	sim_mig_uuid(&nvml.view, device->index, device->mig, text, NULL);
	sim_unlock(&nvml.view);
	return nvml_copy_text(uuid, length, text);
}

nvmlReturn_t nvmlDeviceGetSerial(nvmlDevice_t device, char *serial, unsigned int length)
{
	char text[16];
	NVML_ENTER_DEVICE(device, serial);
	snprintf(text, sizeof text, "SIM%07u", device->index);
	return nvml_copy_text(serial, length, text);
}

nvmlReturn_t nvmlDeviceGetIndex(nvmlDevice_t device, unsigned int *index)
{
	NVML_ENTER_DEVICE(device, index);
	*index = device->index;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMinorNumber(nvmlDevice_t device, unsigned int *minor)
{
	NVML_ENTER_DEVICE(device, minor);
	*minor = device->model->minor;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetBrand(nvmlDevice_t device, nvmlBrandType_t *brand)
{
	NVML_ENTER_DEVICE(device, brand);
	*brand = NVML_BRAND_NVIDIA;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetCudaComputeCapability(nvmlDevice_t device, int *major, int *minor)
{
	NVML_ENTER_DEVICE(device, major && minor);
	*major = (int)device->model->cc_major;
	*minor = (int)device->model->cc_minor;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetArchitecture(nvmlDevice_t device, nvmlDeviceArchitecture_t *architecture)
{
	NVML_ENTER_DEVICE(device, architecture);
	*architecture = device->model->cc_major >= 9 ? NVML_DEVICE_ARCH_HOPPER : NVML_DEVICE_ARCH_AMPERE;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetNumGpuCores(nvmlDevice_t device, unsigned int *cores)
{
	NVML_ENTER_DEVICE(device, cores);
	*cores = device->model->sm_count * (device->model->cc_major >= 9 ? 128 : 64);
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMemoryBusWidth(nvmlDevice_t device, unsigned int *bits)
{
	NVML_ENTER_DEVICE(device, bits);
	*bits = device->model->memory_bus_bits;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t *pci)
{
	NVML_ENTER_DEVICE(device, pci);
	memset(pci, 0, sizeof *pci);
	pci->bus = sim_pci_bus(device->index);
	pci->pciDeviceId = 0x10de;
	snprintf(pci->busId, sizeof pci->busId, "00000000:%02X:00.0", pci->bus);
	snprintf(pci->busIdLegacy, sizeof pci->busIdLegacy, "0000:%02X:00.0", pci->bus);
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetPciInfo_v2(nvmlDevice_t device, nvmlPciInfo_t *pci)
{
	return nvmlDeviceGetPciInfo_v3(device, pci);
}

nvmlReturn_t nvmlDeviceGetPciInfo(nvmlDevice_t device, nvmlPciInfo_t *pci)
{
	return nvmlDeviceGetPciInfo_v3(device, pci);
}
