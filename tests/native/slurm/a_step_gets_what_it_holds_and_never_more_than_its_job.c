// SPDX-License-Identifier: GPL-2.0-or-later
/* decide.h: verdicts, limits, and the numbers that Slurm's gres plugins leave in the environment. */
#include <errno.h>
#include <stdint.h>

#include "check.h"
#include "decide.h"
#include "refusal.h"

static struct step_units parse(const char *a, const char *b, const char *c, const char *d)
{
	char *env[] = {(char *)"PATH=/bin", (char *)a, (char *)b, (char *)c, (char *)d, NULL};
	struct step_units units;

	CHECK(step_units_parse(env, &units) == 0);
	return units;
}

static int parse_error(const char *variable)
{
	char *env[] = {(char *)variable, NULL};
	struct step_units units;

	return step_units_parse(env, &units);
}

static void numbers_are_whole_decimal_and_fit(void)
{
	struct step_units units = parse("SLURM_SHARDS_ON_NODE=25", "HAMI_HPC_VGPU=1", "HAMI_HPC_MEM_MIB=4096",
					"HAMI_HPC_CORES=25");

	CHECK(units.shards && units.vgpu && units.mem && units.cores);
	CHECK(units.mem_mib == 4096 && units.cores_percent == 25);
	units = parse("SLURM_SHARDS_ON_NODE=0", "HAMI_HPC_VGPUS=1", "XHAMI_HPC_MEM_MIB=1",
		      "HAMI_HPC_CORES=0");
	CHECK(!units.shards && !units.vgpu && !units.mem && !units.cores);
	units = parse("HAMI_HPC_MEM_MIB=18446744073709551615", "A=", "B=", "C=");
	CHECK(units.mem_mib == UINT64_MAX);
	CHECK(parse_error("HAMI_HPC_MEM_MIB=18446744073709551616") == -EINVAL);
	CHECK(parse_error("HAMI_HPC_MEM_MIB=99999999999999999999999") == -EINVAL);
	CHECK(parse_error("HAMI_HPC_MEM_MIB=") == -EINVAL);
	CHECK(parse_error("HAMI_HPC_MEM_MIB=-1") == -EINVAL);
	CHECK(parse_error("HAMI_HPC_MEM_MIB= 1") == -EINVAL);
	CHECK(parse_error("HAMI_HPC_CORES=0x10") == -EINVAL);
	CHECK(parse_error("HAMI_HPC_VGPU=1\n") == -EINVAL);
	CHECK(parse_error("SLURM_SHARDS_ON_NODE=many") == -EINVAL);
	CHECK(parse_error("HAMI_HPC_MEM_MIB") == 0); /* no assignment: not there */
	CHECK(parse("SLURM_GPUS_ON_NODE=2", "A=", "B=", "C=").gpus);
	CHECK(!parse("SLURM_GPUS_ON_NODE=0", "A=", "B=", "C=").gpus);
	CHECK(!parse("SLURM_GPUS_ON_NODE=", "A=", "B=", "C=").gpus);
}

static void each_step_has_one_verdict(void)
{
	const struct step_units nothing = {0}, shards = {.shards = true};
	const struct step_units all = {.shards = true, .vgpu = true, .mem = true, .cores = true};
	const struct step_units no_shards = {.vgpu = true, .mem = true, .cores = true};
	const struct step_units only_mem = {.shards = true, .mem = true};
	const struct step_units only_class = {.shards = true, .vgpu = true};

	for (int allowed = 0; allowed < 2; allowed++) {
		CHECK(step_decide(&nothing, JOB_WITHOUT_RECORD, true, allowed) == STEP_NOT_OURS);
		CHECK(step_decide(&nothing, JOB_WITHOUT_RECORD, false, allowed) == STEP_NOT_OURS);
		CHECK(step_decide(&nothing, JOB_SLICE, true, allowed) == STEP_WITHOUT_GPU);
		CHECK(step_decide(&all, JOB_SLICE, true, allowed) == STEP_FENCED);
		CHECK(step_decide(&only_mem, JOB_SLICE, true, allowed) == STEP_FENCED);
		CHECK(step_decide(&only_class, JOB_SLICE, true, allowed) == STEP_FENCED);
		CHECK(step_decide(&all, JOB_WITHOUT_RECORD, true, allowed) == STEP_NO_RECORD);
		CHECK(step_decide(&no_shards, JOB_WITHOUT_RECORD, true, allowed) == STEP_NO_RECORD);
		CHECK(step_decide(&no_shards, JOB_SLICE, true, allowed) == STEP_UNITS_ALONE);
		CHECK(step_decide(&shards, JOB_SLICE, true, allowed) == STEP_SHARDS_ALONE);
		CHECK(step_decide(&shards, JOB_WITHOUT_RECORD, false, allowed) == STEP_NO_PLUGINS);
		CHECK(step_decide(&shards, JOB_SLICE, false, allowed) == STEP_NO_PLUGINS);
		CHECK(step_decide(&all, JOB_SLICE, false, allowed) == STEP_NO_PLUGINS);
		CHECK(step_decide(&no_shards, JOB_SLICE, false, allowed) == STEP_NO_PLUGINS);
		CHECK(step_decide(&nothing, JOB_SLICE, false, allowed) == STEP_WITHOUT_GPU);
	}
}

static void bare_shards_pass_only_where_the_site_allows_them(void)
{
	const struct step_units shards = {.gpus = true, .shards = true};

	CHECK(step_decide(&shards, JOB_WITHOUT_RECORD, true, false) == STEP_BARE_SHARDS);
	CHECK(step_decide(&shards, JOB_WITHOUT_RECORD, true, true) == STEP_NOT_OURS);
}

static void a_step_of_a_job_with_whole_gpus_is_not_limited(void)
{
	const struct step_units nothing = {0}, gpu = {.gpus = true};
	const struct step_units all = {.gpus = true, .vgpu = true, .mem = true, .cores = true};
	const struct step_units sliced = {.mem = true, .cores = true};
	const struct step_units shards = {
		.gpus = true, .shards = true, .vgpu = true, .mem = true, .cores = true};

	CHECK(step_decide(&nothing, JOB_WHOLE, true, false) == STEP_WHOLE);
	CHECK(step_decide(&gpu, JOB_WHOLE, true, false) == STEP_WHOLE);
	CHECK(step_decide(&all, JOB_WHOLE, true, false) == STEP_WHOLE);
	CHECK(step_decide(&sliced, JOB_WHOLE, true, false) == STEP_WHOLE_SLICED);
	CHECK(step_decide(&shards, JOB_WHOLE, true, false) == STEP_BARE_SHARDS);
	CHECK(step_decide(&shards, JOB_WHOLE, true, true) == STEP_WHOLE);
}

static void every_refusal_says_what_to_do(void)
{
	static const enum step_verdict refused[] = {STEP_NO_RECORD,    STEP_NO_PLUGINS,   STEP_BARE_SHARDS,
						    STEP_WHOLE_SLICED, STEP_SHARDS_ALONE, STEP_UNITS_ALONE};
	static const enum step_verdict started[] = {STEP_NOT_OURS, STEP_WHOLE, STEP_FENCED, STEP_WITHOUT_GPU};
	char text[1024];

	for (size_t i = 0; i < sizeof(refused) / sizeof(refused[0]); i++) {
		refusal_write(refused[i], "/run/hami-hpc", 7, text, sizeof(text));
		CHECK(strstr(text, "Administrator: ") || strstr(text, "Use "));
		CHECK(!strchr(text, '\n'));
	}
	for (size_t i = 0; i < sizeof(started) / sizeof(started[0]); i++) {
		refusal_write(started[i], "/run/hami-hpc", 7, text, sizeof(text));
		CHECK_TEXT(text, "");
	}
}

/* What a step's record says where it has all of its job: with mode=share the job's record alone limits it then. */
static bool has_all(const struct hami_limits *step)
{
	return step->mem_limit_bytes == UINT64_MAX && step->cores_percent == 100;
}

static void the_smaller_limit_wins(void)
{
	struct hami_limits job = {
		.job_id = 7, .step_id = HAMI_JOB_STEP_ID, .sequence = 4, .cores_percent = 50};
	struct step_units units = {.shards = true, .mem = true, .cores = true};
	struct hami_limits step;

	job.mem_limit_bytes = 8ull << 30;
	units.mem_mib = 4096;
	units.cores_percent = 25;
	step_limits(&job, &units, STEP_FENCED, 3, 99, &step);
	CHECK(step.mem_limit_bytes == 4ull << 30 && step.cores_percent == 25);
	CHECK(step.job_id == 7 && step.step_id == 3 && step.sequence == 0 && step.created_unix_ns == 99);

	units.mem_mib = 8193;
	units.cores_percent = 51;
	step_limits(&job, &units, STEP_FENCED, 3, 99, &step);
	CHECK(has_all(&step));

	/* Counts whose bytes overflow 64 bits, down to 0 or to something small, are no smaller limit. */
	units.mem_mib = 1ull << 44;
	units.cores_percent = (1ull << 32) + 1;
	step_limits(&job, &units, STEP_FENCED, 3, 99, &step);
	CHECK(has_all(&step));
	units.mem_mib = UINT64_MAX;
	step_limits(&job, &units, STEP_FENCED, 3, 99, &step);
	CHECK(step.mem_limit_bytes == UINT64_MAX);

	units = (struct step_units){.shards = true, .vgpu = true};
	step_limits(&job, &units, STEP_FENCED, 3, 99, &step);
	CHECK(has_all(&step));

	step_limits(&job, &units, STEP_WITHOUT_GPU, 3, 99, &step);
	CHECK(step.mem_limit_bytes == 0 && step.cores_percent == 50);
}

/* The environment has the sums of the step's slices; each record has what one of them is. */
static void a_step_with_several_slices_has_its_part_in_each(void)
{
	struct hami_limits job = {.job_id = 7,
				  .step_id = HAMI_JOB_STEP_ID,
				  .mem_limit_bytes = 8ull << 30,
				  .cores_percent = 50,
				  .slice_index = 1,
				  .slice_count = 2};
	struct step_units units = {.shards = true, .vgpu = true, .mem = true, .cores = true, .slices = 2};
	struct hami_limits step;

	units.mem_mib = 2 * 8192;
	units.cores_percent = 100;
	step_limits(&job, &units, STEP_FENCED, 3, 99, &step);
	CHECK(has_all(&step));
	CHECK(step.slice_index == 1 && step.slice_count == 2);

	units.mem_mib = 2 * 4096;
	units.cores_percent = 20;
	step_limits(&job, &units, STEP_FENCED, 3, 99, &step);
	CHECK(step.mem_limit_bytes == 4ull << 30 && step.cores_percent == 10);

	/* A step of one slice that asks for the sum of both gets no more than the job has of each. */
	units.slices = 1;
	units.mem_mib = 2 * 8192;
	units.cores_percent = 100;
	step_limits(&job, &units, STEP_FENCED, 3, 99, &step);
	CHECK(has_all(&step));

	/* Units that are less than one of each; a count that no step holds. */
	units.slices = UINT64_MAX;
	step_limits(&job, &units, STEP_FENCED, 3, 99, &step);
	CHECK(step.mem_limit_bytes == 0 && step.cores_percent == 1);
	units = (struct step_units){.shards = true, .vgpu = true, .slices = 2};
	step_limits(&job, &units, STEP_FENCED, 3, 99, &step);
	CHECK(has_all(&step));
	CHECK(parse("HAMI_HPC_VGPU=2", "A=", "B=", "C=").slices == 2);
}

/* A step's units are parts of what its job asked for, whatever that has been resized to since. */
static void a_step_of_a_resized_job_has_its_part_of_what_was_asked(void)
{
	struct hami_limits job = {.job_id = 7,
				  .step_id = HAMI_JOB_STEP_ID,
				  .mem_limit_bytes = 16ull << 30,
				  .cores_percent = 20};
	struct step_units units = {.shards = true, .vgpu = true, .mem = true, .cores = true, .slices = 1};
	struct hami_limits step;

	job.asked_mem_bytes = 8ull << 30;
	job.asked_cores_percent = 50;
	job.most_mem_bytes = 32ull << 30;
	units.mem_mib = 8192;
	units.cores_percent = 50;
	step_limits(&job, &units, STEP_FENCED, 3, 99, &step);
	CHECK(has_all(&step));
	CHECK(!step.asked_mem_bytes && !step.asked_cores_percent && !step.most_mem_bytes);

	units.mem_mib = 4096;
	units.cores_percent = 30;
	step_limits(&job, &units, STEP_FENCED, 3, 99, &step);
	CHECK(step.mem_limit_bytes == 4ull << 30 && step.cores_percent == 30);
}

/* Modes whose slices are fixed keep what the job has in each step's record. */
static void a_step_of_another_mode_has_what_its_job_has(void)
{
	static const uint32_t modes[] = {HAMI_MODE_MPS, HAMI_MODE_MIG};
	struct step_units units = {.shards = true, .vgpu = true};
	struct hami_limits step;

	for (size_t i = 0; i < 2; i++) {
		struct hami_limits job = {
			.mode = modes[i], .mem_limit_bytes = 8ull << 30, .cores_percent = 50};

		step_limits(&job, &units, STEP_FENCED, 3, 99, &step);
		CHECK(step.mem_limit_bytes == 8ull << 30 && step.cores_percent == 50);
	}
}

/* Of a MIG instance programs see the instance alone, so a step's share of the GPU becomes one of that. */
static void a_part_of_an_instance_has_a_share_of_the_instances_time(void)
{
	struct hami_limits job = {
		.job_id = 7, .mode = HAMI_MODE_MIG, .mem_limit_bytes = 16ull << 30, .cores_percent = 14};
	struct step_units units = {.shards = true, .vgpu = true, .mem = true, .cores = true};
	struct hami_limits step;
	static const struct {
		uint64_t mem_mib, cores;
		uint32_t percent; /* 0: it has all, and nothing but the hardware limits it */
	} cases[] = {{8192, 7, 50}, {8192, 14, 100},  {16384, 14, 0},   {16384, 5, 35},
		     {16384, 1, 7}, {1 << 20, 99, 0}, {16383, 99, 100}, {1, 13, 92}};

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		units.mem_mib = cases[i].mem_mib;
		units.cores_percent = cases[i].cores;
		step_limits(&job, &units, STEP_FENCED, 3, 99, &step);
		CHECK(step.device_percent == cases[i].percent);
		CHECK(step_is_part(&job, &step) == (cases[i].percent != 0));
		CHECK(step.device_uuid[0] == '\0');
	}
	job.cores_percent = 100; /* a step's least share is 1 */
	units.cores_percent = 1;
	step_limits(&job, &units, STEP_FENCED, 3, 99, &step);
	CHECK(step.device_percent == 1);
	job.mode = HAMI_MODE_SHARE;
	step_limits(&job, &units, STEP_FENCED, 3, 99, &step);
	CHECK(step.device_percent == 0 && step_is_part(&job, &step));
}

static void a_step_is_as_latency_critical_as_its_job_and_its_record_has_no_turns(void)
{
	struct hami_limits job = {.job_id = 7,
				  .latency = 1,
				  .floor_percent = 5,
				  .slo_us = 10000,
				  .latency_others = 2,
				  .latency_above = 1,
				  .turn_begin_permille = 300,
				  .turn_length_permille = 400};
	struct step_units units = {.shards = true, .vgpu = true};
	struct hami_limits step;

	step_limits(&job, &units, STEP_FENCED, 3, 99, &step);
	CHECK(step.latency == 1 && step.floor_percent == 5 && step.slo_us == 10000);
	CHECK(step.latency_others == 0 && step.latency_above == 0);
	CHECK(step.turn_begin_permille == 0 && step.turn_length_permille == 0);
}

int main(void)
{
	numbers_are_whole_decimal_and_fit();
	each_step_has_one_verdict();
	bare_shards_pass_only_where_the_site_allows_them();
	a_step_of_a_job_with_whole_gpus_is_not_limited();
	every_refusal_says_what_to_do();
	the_smaller_limit_wins();
	a_step_of_a_resized_job_has_its_part_of_what_was_asked();
	a_step_of_another_mode_has_what_its_job_has();
	a_step_with_several_slices_has_its_part_in_each();
	a_part_of_an_instance_has_a_share_of_the_instances_time();
	a_step_is_as_latency_critical_as_its_job_and_its_record_has_no_turns();
	return 0;
}
