// SPDX-License-Identifier: GPL-2.0-or-later
#include "options.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "hami_contract.h"

static int set_path(const char **to, const char *value)
{
	/*
	 * Spaces and colons are separators in LD_PRELOAD and ld.so.preload, commas in lists of binds, and backslashes
	 * have a meaning there and in files such as fstab(5).
	 */
	if (value[0] != '/' || strpbrk(value, " \t:,\\"))
		return -EINVAL;
	*to = value;
	return 0;
}

static int set_run_dir(struct options *opt, const char *value)
{
	return set_path(&opt->run_dir, value);
}

static int set_interposer(struct options *opt, const char *value)
{
	return set_path(&opt->interposer, value);
}

static int set_stages(struct options *opt, const char *value)
{
	return set_path(&opt->stages, value);
}

static int set_config(struct options *opt, const char *value)
{
	return set_path(&opt->config, value);
}

static int set_preload(struct options *opt, const char *value)
{
	if (strcmp(value, "env") == 0)
		opt->preload = PRELOAD_ENV;
	else if (strcmp(value, "ldso") == 0)
		opt->preload = PRELOAD_LDSO;
	else
		return -EINVAL;
	return 0;
}

/* translate is an option of job_submit; the shards that it did not translate are refused here. */
static int set_bare_shard(struct options *opt, const char *value)
{
	if (strcmp(value, "allow") == 0)
		opt->bare_shard = BARE_SHARD_ALLOW;
	else if (strcmp(value, "refuse") == 0 || strcmp(value, "translate") == 0)
		opt->bare_shard = BARE_SHARD_REFUSE;
	else
		return -EINVAL;
	return 0;
}

static const struct {
	const char *key;
	int (*set)(struct options *opt, const char *value);
	const char *allowed;
} table[] = {
	{"run_dir", set_run_dir, "an absolute path without spaces, colons, commas and backslashes"},
	{"interposer", set_interposer, "an absolute path without spaces, colons, commas and backslashes"},
	{"preload", set_preload, "env or ldso"},
	{"bare_shard", set_bare_shard, "refuse, translate or allow"},
	{"stages", set_stages, "an absolute path without spaces, colons, commas and backslashes"},
	{"config", set_config, "an absolute path without spaces, colons, commas and backslashes"},
};

static int set_one(const char *argument, const char *where, struct options *opt, char *error, size_t size)
{
	for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
		size_t length = strlen(table[i].key);

		if (strncmp(argument, table[i].key, length) != 0 || argument[length] != '=')
			continue;
		if (table[i].set(opt, argument + length + 1) == 0)
			return 0;
		snprintf(error, size, "%s in %s: %s must be %s", argument, where, table[i].key,
			 table[i].allowed);
		return -EINVAL;
	}
	snprintf(error, size,
		 "%s in %s is unknown; known are run_dir=, interposer=, preload=, bare_shard=, stages= "
		 "and config=",
		 argument, where);
	return -EINVAL;
}

int options_parse(int argc, char **argv, const char *where, struct options *opt, char *error, size_t size)
{
	*opt = (struct options){.run_dir = HAMI_FILE_RUN_DIR,
				.interposer = DEFAULT_INTERPOSER,
				.preload = PRELOAD_LDSO,
				.bare_shard = BARE_SHARD_REFUSE,
				.stages = DEFAULT_STAGES};
	for (int i = 0; i < argc; i++) {
		if (set_one(argv[i], where, opt, error, size) < 0)
			return -EINVAL;
	}
	return 0;
}
