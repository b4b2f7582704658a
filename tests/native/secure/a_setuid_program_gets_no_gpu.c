/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Linked against the interposer, as preload=ldso puts it into every program, this one included when it is
 * set-user-ID or set-group-ID. Prints AT_SECURE. With it: calls that only ask pass through, a context and
 * device memory are refused, and nothing below the directory of $HAMI_HPC_LIMITS has been opened or mapped.
 * Without it (no_new_privs, nosuid) the limits hold as in any program.
 */
#include <dirent.h>
#include <nvml.h>
#include <sys/auxv.h>

#include "../rm/client.h"

static bool is_named(const char *path, const char *directory)
{
	char line[PATH_MAX + 128];
	FILE *f = fopen(path, "r");
	bool found = false;
	CHECK(f);
	while (!found && fgets(line, sizeof line, f))
		found = strstr(line, directory) != NULL;
	fclose(f);
	return found;
}

static bool is_open(const char *directory)
{
	char target[PATH_MAX];
	bool found = false;
	DIR *fds = opendir("/proc/self/fd");
	CHECK(fds);
	for (struct dirent *e; (e = readdir(fds)) && !found;) {
		ssize_t n = readlinkat(dirfd(fds), e->d_name, target, sizeof target - 1);
		target[n > 0 ? n : 0] = '\0';
		found = strstr(target, directory) != NULL;
	}
	closedir(fds);
	return found;
}

static bool has_keeper(void)
{
	char path[300];
	bool found = false;
	DIR *tasks = opendir("/proc/self/task");
	CHECK(tasks);
	for (struct dirent *e; (e = readdir(tasks)) && !found;) {
		snprintf(path, sizeof path, "/proc/self/task/%s/comm", e->d_name);
		found = e->d_name[0] != '.' && is_named(path, "hami-share");
	}
	closedir(tasks);
	return found;
}

static void with_rights(char *directory)
{
	int count = 0;
	CUdevice device;
	CUcontext context;
	CUdeviceptr address;
	nvmlMemory_t memory;
	nvmlDevice_t handle;
	*strrchr(directory, '/') = '\0';
	OK(cuInit(0));
	OK(cuDeviceGetCount(&count));
	CHECK(count == 1);
	OK(cuDeviceGet(&device, 0));
	GIVES(CUDA_ERROR_NOT_PERMITTED, cuDevicePrimaryCtxRetain(&context, device));
	GIVES(CUDA_ERROR_NOT_PERMITTED, cuCtxCreate(&context, NULL, 0, device));
	CHECK(cuMemAlloc(&address, MIB) != CUDA_SUCCESS);
	CHECK(cuMemAllocManaged(&address, MIB, CU_MEM_ATTACH_GLOBAL) != CUDA_SUCCESS);
	CHECK(nvmlInit() == NVML_SUCCESS && nvmlDeviceGetHandleByIndex(0, &handle) == NVML_SUCCESS);
	CHECK(nvmlDeviceGetMemoryInfo(handle, &memory) == NVML_SUCCESS);
	CHECK(memory.total > limit_bytes()); /* as it is */
	struct rm_memory p = {.size = MIB};
	open_client();
	CHECK(!make(rm.device, 0, RM_CLASS_DEVICE_MEMORY, &p, sizeof p));
	CHECK(!make_group(RM_ENGINE_COMPUTE));
	CHECK(!is_named("/proc/self/maps", directory));
	CHECK(!is_open(directory));
	CHECK(!has_keeper());
}

int main(void)
{
	char directory[PATH_MAX];
	snprintf(directory, sizeof directory, "%s", getenv("HAMI_HPC_LIMITS"));
	printf("%lu\n", getauxval(AT_SECURE));
	if (getauxval(AT_SECURE)) {
		with_rights(directory);
	} else {
		start();
		CHECK(fill(64 * MIB) * 64 * MIB < limit_bytes());
	}
	return 0;
}
