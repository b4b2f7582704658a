// SPDX-License-Identifier: GPL-2.0-or-later
/* options.h: what plugstack.conf may say, and what the administrator reads when it says something else. */
#include "check.h"
#include "options.h"

static struct options opt;
static char error[512];

static int parse(const char *a, const char *b)
{
	char *argv[] = {(char *)a, (char *)b};

	error[0] = '\0';
	return options_parse(b ? 2 : a ? 1 : 0, argv, "plugstack.conf", &opt, error, sizeof(error));
}

static void refused(const char *argument, const char *part)
{
	CHECK(parse(argument, NULL) < 0);
	CHECK(strstr(error, part));
	CHECK(strstr(error, argument));
}

int main(void)
{
	CHECK(parse(NULL, NULL) == 0);
	CHECK_TEXT(opt.run_dir, "/run/hami-hpc");
	CHECK_TEXT(opt.interposer, DEFAULT_INTERPOSER);
	CHECK(opt.preload == PRELOAD_LDSO);
	CHECK(opt.bare_shard == BARE_SHARD_REFUSE);

	CHECK(parse("run_dir=/tmp/r", "interposer=/opt/l.so") == 0);
	CHECK_TEXT(opt.run_dir, "/tmp/r");
	CHECK_TEXT(opt.interposer, "/opt/l.so");
	CHECK(parse("preload=env", NULL) == 0 && opt.preload == PRELOAD_ENV);
	CHECK(parse("preload=ldso", "run_dir=/tmp/r") == 0 && opt.preload == PRELOAD_LDSO);

	CHECK(parse("bare_shard=allow", NULL) == 0 && opt.bare_shard == BARE_SHARD_ALLOW);
	CHECK(parse("bare_shard=translate", NULL) == 0 && opt.bare_shard == BARE_SHARD_REFUSE);
	CHECK(parse("bare_shard=allow", "bare_shard=refuse") == 0 && opt.bare_shard == BARE_SHARD_REFUSE);
	refused("bare_shard=yes", "refuse, translate or allow");
	refused("run_dir=relative", "absolute");
	refused("interposer=/a b", "spaces");
	refused("interposer=/a:b", "colons");
	refused("interposer=", "absolute");
	refused("preload=ld.so", "env or ldso");
	refused("preload", "unknown");
	refused("Preload=env", "unknown");
	refused("run_dirs=/tmp", "unknown");
	return 0;
}
