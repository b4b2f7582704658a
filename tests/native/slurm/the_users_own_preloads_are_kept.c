// SPDX-License-Identifier: GPL-2.0-or-later
/* preload.h: our library goes in front once, and out again without touching the user's others. */
#include "check.h"
#include "preload.h"

#define OURS "/usr/lib/hami-hpc/libhami-hpc.so"

static void check(char *got, const char *wanted)
{
	CHECK_TEXT(got, wanted);
	free(got);
}

int main(void)
{
	check(preload_with(NULL, OURS), OURS);
	check(preload_with("", OURS), OURS);
	check(preload_with(" : ", OURS), OURS);
	check(preload_with("/a.so", OURS), OURS ":/a.so");
	check(preload_with("/a.so b.so:/c.so", OURS), OURS ":/a.so:b.so:/c.so");
	check(preload_with("/a.so:" OURS, OURS), OURS ":/a.so");
	check(preload_with(OURS ":" OURS " /a.so", OURS), OURS ":/a.so");
	check(preload_with(OURS ".1:/x" OURS, OURS), OURS ":" OURS ".1:/x" OURS);

	check(preload_without(NULL, OURS), "");
	check(preload_without(OURS, OURS), "");
	check(preload_without(OURS ":/a.so", OURS), "/a.so");
	check(preload_without("/a.so:" OURS " /b.so", OURS), "/a.so:/b.so");

	CHECK(!preload_has(NULL, OURS));
	CHECK(!preload_has(OURS ".1", OURS));
	CHECK(preload_has("/a.so " OURS, OURS));
	return 0;
}
