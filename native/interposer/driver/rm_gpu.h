/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which slice a device of the resource manager is on. Its own numbers of GPUs (the instance in a request for a device)
 * are neither NVML's nor those of the device files: the resource manager is asked by the UUIDs of the records.
 *
 * Thread-safe, not async-signal-safe; no lock, so no fork handler.
 */
#ifndef HAMI_RM_GPU_H
#define HAMI_RM_GPU_H
#include <stdint.h>

/*
 * Returns the slice on the GPU `instance`; -1 when it is none, or when the driver does not tell. `client` is one of
 * this process, and `fd` owns it.
 */
int hami_rm_gpu_slice(int fd, uint32_t client, uint32_t instance);

#endif
