// SPDX-License-Identifier: GPL-2.0-or-later
#include "bind.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

int bind_parse(const char *text, char *error, size_t size)
{
	if (text && strcmp(text, "none") == 0)
		return BIND_NONE;
	if (text && strcmp(text, "single") == 0)
		return BIND_SINGLE;
	snprintf(
		error, size,
		"--vgpu-bind=%.40s is not understood; allowed is none (each task sees all GPUs of its step) or single "
		"(each task sees one of them). Example: srun --ntasks=2 --vgpu-bind=single ./program",
		text ? text : "");
	return -EINVAL;
}

int bind_choose(const char *devices, unsigned int local_id, char *one, size_t size)
{
	unsigned int count = 1;
	size_t length;

	if (!devices || !*devices)
		return -EINVAL;
	for (const char *at = devices; *at; at++)
		count += *at == ',';
	for (unsigned int skip = local_id % count; skip > 0; skip--)
		devices = strchr(devices, ',') + 1;
	length = strcspn(devices, ",");
	if (length == 0 || length >= size)
		return -EINVAL;
	memcpy(one, devices, length);
	one[length] = '\0';
	return 0;
}
