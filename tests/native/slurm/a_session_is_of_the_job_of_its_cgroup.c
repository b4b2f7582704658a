// SPDX-License-Identifier: GPL-2.0-or-later
/* cgroup.h: only Slurm's own cgroup of a job's extern step makes a session one of that job. */
#include <errno.h>
#include <unistd.h>

#include "cgroup.h"
#include "check.h"

static uint32_t job_of(const char *text)
{
	char line[512];
	struct cgroup_job job;

	snprintf(line, sizeof(line), "%s", text);
	return cgroup_job_of_line(line, &job) ? job.id : 0;
}

/* Returns whether the line names a job by this SLUID and not by an id. */
static bool has_sluid(const char *text, const char *sluid)
{
	char line[512];
	struct cgroup_job job;

	snprintf(line, sizeof(line), "%s", text);
	return cgroup_job_of_line(line, &job) && !job.id && strcmp(job.sluid, sluid) == 0;
}

static bool is_none(const char *text)
{
	char line[512];
	struct cgroup_job job;

	snprintf(line, sizeof(line), "%s", text);
	return !cgroup_job_of_line(line, &job);
}

static void check_sluids(void)
{
	CHECK(has_sluid("0::/system.slice/slurmstepd.scope/s0123456789ABC/step_extern/user/task_special\n",
			"s0123456789ABC"));
	CHECK(has_sluid("0::/slurmstepd.scope/sZZZZZZZZZZZZZ/step_extern\n", "sZZZZZZZZZZZZZ"));
	CHECK(is_none("0::/slurmstepd.scope/s0123456789ABC/step_0\n"));
	CHECK(is_none("0::/slurmstepd.scope/s0123456789AB/step_extern\n"));
	CHECK(is_none("0::/slurmstepd.scope/s0123456789ABCD/step_extern\n"));
	CHECK(is_none("0::/slurmstepd.scope/s0123456789AB./step_extern\n"));
	CHECK(is_none("0::/slurmstepd.scope/system/step_extern\n"));
	CHECK(is_none("0::/user.slice/slurmstepd.scope/s0123456789ABC/step_extern\n"));
	CHECK(is_none("6:freezer:/slurm/uid_1000/s0123456789ABC/step_extern\n"));
}

static int read_text(const char *text, struct cgroup_job *job)
{
	char path[] = "/tmp/hami-cgroup-XXXXXX";
	int fd = mkstemp(path), rc;

	CHECK(fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text));
	close(fd);
	rc = cgroup_read_job(path, job);
	unlink(path);
	return rc;
}

static void check_lines(void)
{
	CHECK(job_of("6:freezer:/slurm/uid_1000/job_7/step_extern\n") == 7);
	CHECK(job_of("6:freezer:/slurm/uid_1000/job_7/step_extern/task_4294967293\n") == 7);
	CHECK(job_of("4:cpu,cpuacct:/slurm_n1/uid_0/job_4294967294/step_extern") == 4294967294u);
	CHECK(job_of("0::/system.slice/slurmstepd.scope/job_7/step_extern/user/task_special\n") == 7);
	CHECK(job_of("0::/system.slice/n1_slurmstepd.scope/job_7/step_extern/user/task_0\n") == 7);
	CHECK(job_of("0::/docker/8f/system.slice/slurmstepd.scope/job_7/step_extern\n") == 7);

	/* other steps are limited by SPANK; other cgroups are not Slurm's */
	CHECK(job_of("6:freezer:/slurm/uid_1000/job_7/step_0/task_0\n") == 0);
	CHECK(job_of("6:freezer:/slurm/uid_1000/job_7/step_batch/step_extern\n") == 0);
	CHECK(job_of("6:freezer:/slurm/uid_1000/job_7/step_externs\n") == 0);
	CHECK(job_of("6:freezer:/slurm/uid_1000/job_7\n") == 0);
	CHECK(job_of("6:freezer:/slurm/uid_1000\n") == 0);
	CHECK(job_of("6:freezer:/slurm/uid_/job_7/step_extern\n") == 0);
	CHECK(job_of("6:freezer:/slurm_/uid_1/job_7/step_extern\n") == 0);
	CHECK(job_of("6:freezer:/slurms/uid_1/job_7/step_extern\n") == 0);
	CHECK(job_of("6:freezer:/system.slice/slurmstepd.scope/job_7/step_extern\n") == 0);
	CHECK(job_of("0::/slurm/uid_1000/job_7/step_extern\n") == 0);
	CHECK(job_of("0::/system.slice/_slurmstepd.scope/job_7/step_extern\n") == 0);
	CHECK(job_of("0::/system.slice/aslurmstepd.scope/job_7/step_extern\n") == 0);
	CHECK(job_of("0::/system.slice/ssh.service\n") == 0);

	/* what users can make */
	CHECK(job_of("0::/user.slice/user-5.slice/slurmstepd.scope/job_7/step_extern\n") == 0);
	CHECK(job_of("1:name=systemd:/user.slice/slurm/uid_5/job_7/step_extern\n") == 0);
	CHECK(job_of("0::/slurmstepd.scope/job_7/step_0/slurmstepd.scope/job_8/step_extern\n") == 0);
	CHECK(job_of("0::/slurmstepd.scope/job_7/step_extern/slurmstepd.scope/job_8/step_extern\n") == 7);

	/* no numbers */
	CHECK(job_of("0::/slurmstepd.scope/job_/step_extern\n") == 0);
	CHECK(job_of("0::/slurmstepd.scope/job_0/step_extern\n") == 0);
	CHECK(job_of("0::/slurmstepd.scope/job_4294967295/step_extern\n") == 0);
	CHECK(job_of("0::/slurmstepd.scope/job_4294967303/step_extern\n") == 0);
	CHECK(job_of("0::/slurmstepd.scope/job_99999999999999999999/step_extern\n") == 0);
	CHECK(job_of("0::/slurmstepd.scope/job_-7/step_extern\n") == 0);
	CHECK(job_of("0::/slurmstepd.scope/job_7a/step_extern\n") == 0);
	CHECK(job_of("") == 0);
	CHECK(job_of("0:") == 0);
	CHECK(job_of("0::") == 0);
	CHECK(job_of("///") == 0);
}

int main(void)
{
	struct cgroup_job job = {.id = 1};

	check_lines();
	check_sluids();
	CHECK(cgroup_read_job("/nonexistent", &job) == -ENOENT && job.id == 0);
	CHECK(read_text("", &job) == 0 && job.id == 0 && !*job.sluid);
	CHECK(read_text("1:name=systemd:/system.slice/ssh.service\n6:freezer:/slurm/uid_5/job_7/step_extern\n"
			"5:devices:/slurm/uid_5/job_7/step_extern\n0::/\n",
			&job) == 0);
	CHECK(job.id == 7);
	CHECK(read_text("0::/slurmstepd.scope/s0123456789ABC/step_extern\n", &job) == 0 && !job.id &&
	      *job.sluid);
	CHECK(read_text(
		      "0::/slurmstepd.scope/s0123456789ABC/step_extern\n6:freezer:/slurm/uid_5/job_7/step_extern\n",
		      &job) == -EXDEV);
	CHECK(read_text(
		      "6:freezer:/slurm/uid_5/job_7/step_extern\n5:devices:/slurm/uid_5/job_8/step_extern\n",
		      &job) == -EXDEV);
	return 0;
}
