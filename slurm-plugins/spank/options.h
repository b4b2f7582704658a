// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * The plugin's arguments in plugstack.conf: `required spank_hami_hpc.so run_dir=/run/hami-hpc preload=ldso`. The PAM
 * module takes the same ones.
 */
#ifndef HAMI_SPANK_OPTIONS_H
#define HAMI_SPANK_OPTIONS_H

#include <stddef.h>

enum preload_mode {
	PRELOAD_ENV, /* LD_PRELOAD in the step's environment */
	PRELOAD_LDSO /* default: also a private /etc/ld.so.preload in each task's mount namespace */
};

enum bare_shard { BARE_SHARD_REFUSE, BARE_SHARD_ALLOW };

struct options {
	const char *run_dir;    /* absolute; default HAMI_FILE_RUN_DIR */
	const char *interposer; /* absolute path of the library; default DEFAULT_INTERPOSER */
	enum preload_mode preload;
	enum bare_shard bare_shard; /* what to do with a step with shards in a job without vGPU */
	const char *stages;         /* absolute path of the directory with `resize`; default DEFAULT_STAGES */
	const char *config;         /* absolute path of the settings; NULL: the installation's */
};

#ifndef DEFAULT_INTERPOSER /* the Makefile defines both, by the installation's LIBDIR and LIBEXECDIR */
#define DEFAULT_INTERPOSER "/usr/lib/hami-hpc/libhami-hpc.so"
#define DEFAULT_STAGES "/usr/libexec/hami-hpc"
#endif

/*
 * Parses argv[0..argc-1] as key=value into *opt, which keeps pointers into argv. Returns 0, or -EINVAL with
 * one line in error[size] that says what to write instead; `where` is the file that has them.
 */
int options_parse(int argc, char **argv, const char *where, struct options *opt, char *error, size_t size);

#endif
