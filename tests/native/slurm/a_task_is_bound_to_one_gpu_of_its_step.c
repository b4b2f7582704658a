// SPDX-License-Identifier: GPL-2.0-or-later
/* bind.h: --vgpu-bind, and which GPU of its step a task sees. */
#include <errno.h>

#include "bind.h"
#include "check.h"

static const char *chosen(const char *devices, unsigned int local_id)
{
	static char one[32];

	CHECK(bind_choose(devices, local_id, one, sizeof(one)) == 0);
	return one;
}

int main(void)
{
	char error[512] = "", small[4];

	CHECK(bind_parse("none", error, sizeof(error)) == BIND_NONE);
	CHECK(bind_parse("single", error, sizeof(error)) == BIND_SINGLE);
	CHECK_TEXT(error, "");
	CHECK(bind_parse("Single", error, sizeof(error)) == -EINVAL);
	CHECK(strstr(error, "--vgpu-bind=Single is not understood; allowed is none "));
	CHECK(bind_parse("", error, sizeof(error)) == -EINVAL);
	CHECK(bind_parse(NULL, error, sizeof(error)) == -EINVAL);

	CHECK_TEXT(chosen("0,2", 0), "0");
	CHECK_TEXT(chosen("0,2", 1), "2");
	CHECK_TEXT(chosen("0,2", 2), "0");
	CHECK_TEXT(chosen("7", 5), "7");
	CHECK_TEXT(chosen("GPU-1,GPU-22,GPU-3", 4), "GPU-22");
	CHECK(bind_choose("", 0, small, sizeof(small)) == -EINVAL);
	CHECK(bind_choose(NULL, 0, small, sizeof(small)) == -EINVAL);
	CHECK(bind_choose("0,,1", 1, small, sizeof(small)) == -EINVAL);
	CHECK(bind_choose("GPU-1", 0, small, sizeof(small)) == -EINVAL);
	CHECK_TEXT(chosen("0,1", 0xffffffff), "1");
	return 0;
}
