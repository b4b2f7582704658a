/* SPDX-License-Identifier: Apache-2.0 */
#include "driver/rm_gpu.h"

#include <errno.h>
#include <stdatomic.h>

#include "base/log.h"
#include "base/uuid.h"
#include "driver/libc.h"
#include "region/process.h"
#include "rm_abi.h"

static atomic_flag said = ATOMIC_FLAG_INIT;

/* Asks for the instance of a slice's GPU. 0, or the error or status. */
static int ask(int fd, uint32_t client, unsigned int slice, uint32_t *instance)
{
	struct rm_gpu_of_uuid gpu = {.flags = RM_UUID_BINARY};
	struct rm_control c = {.client = client,
			       .object = client,
			       .command = RM_GPU_OF_UUID,
			       .params = (uint64_t)(uintptr_t)&gpu,
			       .size = sizeof gpu};
	if (!hami_uuid_read(hami_slice_region(slice)->job->gpu_uuid, gpu.uuid))
		return -EINVAL;
	if (hami_real_ioctl()(fd, RM_REQUEST(RM_NR_CONTROL, struct rm_control), &c))
		return -errno;
	*instance = gpu.instance;
	return (int)c.status;
}

int hami_rm_gpu_slice(int fd, uint32_t client, uint32_t instance)
{
	const unsigned int count = hami_slice_count();
	int error = 0;
	for (unsigned int i = 0; i < count; i++) {
		uint32_t its;
		int rc = ask(fd, client, i, &its);
		if (!rc && its == instance)
			return (int)i;
		error = rc && rc != RM_OBJECT_NOT_FOUND ? rc : error; /* not found: nobody has opened it */
	}
	if (error && !atomic_flag_test_and_set(&said))
		hami_log(0,
			 "the driver does not tell which GPU is which (error %d), so a job with several "
			 "cannot be limited and they stay closed; tell the administrator: hami-hpc doctor\n",
			 error);
	return -1;
}
