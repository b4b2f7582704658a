// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * PAM's module for sshd: `session required pam_hami_hpc.so run_dir=/run/hami-hpc preload=ldso`. A session that
 * pam_slurm_adopt has put into the extern step of a job with a slice is limited as a step of that job is, or is not
 * opened. It works in the process that opens the session, whose mounts and environment the session's programs have.
 */
#include <errno.h>
#include <pwd.h>
#include <security/pam_ext.h>
#include <security/pam_modules.h>
#include <security/pam_modutil.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <syslog.h>

#include "cgroup.h"
#include "environment.h"
#include "options.h"
#include "record.h"
#include "session.h"

#define EXPORTED __attribute__((visibility("default")))

static const char CGROUPS[] = "/proc/self/cgroup";

/* Reads the user of the session into *uid. Returns false if PAM or the system does not know one. */
static bool read_user(pam_handle_t *pamh, uint32_t *uid)
{
	const char *name = NULL;
	const struct passwd *entry = NULL;

	if (pam_get_user(pamh, &name, NULL) == PAM_SUCCESS && name)
		entry = pam_modutil_getpwnam(pamh, name);
	if (entry)
		*uid = entry->pw_uid;
	return entry;
}

/* Finds the job's id by its SLUID. 0: it has no record here, as jobs without a slice. Refuses the session on an error. */
static void find_id(struct step_context *step, const char *sluid)
{
	int rc = record_find_sluid(step->options.run_dir, 0, sluid, &step->job_id);

	if (rc < 0)
		context_refuse(step, "%s/jobs cannot be read (%s). Administrator: check that directory",
			       step->options.run_dir, strerror(-rc));
}

static void limit(pam_handle_t *pamh, struct step_context *step, int argc, const char **argv, bool has_user,
		  uint32_t uid, const char *sluid)
{
	struct spank_handle spank = {.pamh = pamh};
	char error[PATH_MAX + 256];

	if (!has_user)
		context_refuse(step, "its user is not known on this node");
	else if (options_parse(argc, (char **)argv, "the line of pam_hami_hpc.so in /etc/pam.d",
			       &step->options, error, sizeof(error)) < 0)
		context_refuse(step, "hami_hpc's settings are wrong: %s", error);
	else if (*sluid)
		find_id(step, sluid);
	if (!*step->refusal && step->job_id)
		session_limit(step, &spank, uid);
	environment_end(&spank);
}

EXPORTED int pam_sm_open_session(pam_handle_t *pamh, int flags, int argc, const char **argv)
{
	static struct step_context step;
	struct cgroup_job job;
	char name[32];
	uint32_t uid = 0;
	bool has_user = read_user(pamh, &uid);
	int rc;

	(void)flags;
	if (has_user && uid == 0)
		return PAM_SUCCESS; /* nothing limits root, and nothing here keeps an administrator out */
	rc = cgroup_read_job(CGROUPS, &job);
	if (rc == -ENOENT || (rc == 0 && !cgroup_is_job(&job)))
		return PAM_SUCCESS;
	step = (struct step_context){.job_id = job.id};
	if (rc < 0)
		context_refuse(&step, "%s does not say which job it is in (%s)", CGROUPS, strerror(-rc));
	else
		limit(pamh, &step, argc, argv, has_user, uid, job.sluid);
	if (!*step.refusal)
		return PAM_SUCCESS;
	if (step.job_id)
		snprintf(name, sizeof(name), "%u", step.job_id);
	else
		snprintf(name, sizeof(name), "%s", job.sluid);
	pam_syslog(pamh, LOG_ERR, "session in job %s is not opened: %s", name, step.refusal);
	pam_error(pamh, "hami_hpc: this session in job %s is not opened: %s.", name, step.refusal);
	return PAM_SESSION_ERR;
}

/* The mounts end with the session's processes, and the records with the job: session.c. */
EXPORTED int pam_sm_close_session(pam_handle_t *pamh, int flags, int argc, const char **argv)
{
	(void)pamh;
	(void)flags;
	(void)argc;
	(void)argv;
	return PAM_SUCCESS;
}
