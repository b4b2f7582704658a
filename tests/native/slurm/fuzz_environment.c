// SPDX-License-Identifier: GPL-2.0-or-later
/* A user's whole environment, lines of any bytes: numbers, and the list of preloaded libraries. */
#include <stdint.h>

#include "cgroup.h"
#include "check.h"
#include "decide.h"
#include "options.h"
#include "preload.h"

enum { LINES_MAX = 64 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_preload(const char *value)
{
	static const char ours[] = "/l.so";
	char *with = preload_with(value, ours), *without, *again;

	CHECK(with && strncmp(with, ours, strlen(ours)) == 0);
	CHECK(preload_has(with, ours));
	without = preload_without(with, ours);
	CHECK(without && !preload_has(without, ours));
	/* In and out again: the others stay as they were, and putting it in twice is putting it in once. */
	again = preload_with(with, ours);
	CHECK_TEXT(again, with);
	free(again);
	again = preload_without(value, ours);
	CHECK_TEXT(again, without);
	free(again);
	free(with);
	free(without);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	char *text = malloc(size + 1), *env[LINES_MAX + 1], *rest = text;
	struct step_units units;
	struct options opt;
	char error[64];
	int n = 0;

	CHECK(text);
	memcpy(text, data, size);
	text[size] = '\0';
	while (n < LINES_MAX && rest)
		env[n++] = strsep(&rest, "\n");
	env[n] = NULL;
	if (step_units_parse(env, &units) == 0) {
		CHECK(!units.mem || units.mem_mib > 0);
		CHECK(units.mem == (env_value(env, HAMI_ENV_MEM_MIB) != NULL && units.mem_mib > 0));
	}
	check_preload(env_value(env, "LD_PRELOAD"));
	check_preload(env[0]);
	if (n > 1) {
		char *line = strdup(env[1]);
		struct cgroup_job job;

		CHECK(line);
		CHECK(!cgroup_job_of_line(line, &job) || job.id < UINT32_MAX);
		free(line);
	}
	if (options_parse(n, env, "plugstack.conf", &opt, error, sizeof(error)) == 0)
		CHECK(opt.run_dir[0] == '/' && opt.interposer[0] == '/');
	else
		CHECK(*error && strlen(error) < sizeof(error));
	free(text);
	return 0;
}
