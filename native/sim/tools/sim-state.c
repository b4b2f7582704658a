/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sim-state [DIR] [--runs]: what the simulated GPUs of DIR (default: HAMI_SIM) hold, as JSON, after the dead
 * have been swept. --runs adds who ran when, as far back as the log goes.
 *
 * sim-state [DIR] --xid GPU CODE: the GPU reports an Xid error, to those that wait for NVML's events.
 * sim-state [DIR] --ecc GPU BITS: it reports an ECC error of 1 or 2 bits to them.
 * sim-state [DIR] --fail GPU CODE: from now on NVML's calls for the GPU return CODE (15: it is lost; 0: they
 * work), in programs that run already too.
 * sim-state [DIR] --clocks GPU BITS: NVML shows these reasons for reduced clocks (0x40: heat); 0: none.
 * sim-state [DIR] --pending GPU 1: rows of its memory wait for a reset to be remapped; 0: none.
 *
 * sim-state [DIR] --restart: as if the machine had restarted: MIG instances are gone, and MIG's mode is as hardware
 * keeps it.
 *
 * GPU is the machine's index. All of these print nothing.
 */
#include "mig.h"
#include "state.h"
#include "timeline.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void print_processes(const struct sim_state *s, uint32_t g)
{
	const char *separator = "";
	for (uint32_t i = 0; i < SIM_MAX_SLOTS; i++) {
		const struct sim_slot *slot = &s->slot[i];
		const struct sim_share *share = &slot->gpu[g];
		if (!slot->state || (!share->contexts && !share->used_bytes))
			continue;
		uint64_t submitted_ns = 0, busy_ns = 0; /* of all lines of the process */
		uint32_t disabled = 0;                  /* channels */
		for (uint32_t line = 0; line < SIM_MAX_SLOTS; line++)
			if (s->slot[line].state && s->slot[line].owner == i) {
				submitted_ns += s->slot[line].gpu[g].submitted_ns;
				busy_ns += s->slot[line].gpu[g].done_ns;
				disabled += s->slot[line].gpu[g].disabled;
			}
		printf("%s\n      {\"pid\": %d, \"uid\": %u, \"slot\": %u, \"first_pid\": %d, \"contexts\": %u"
		       ", \"used_bytes\": %" PRIu64 ", \"context_bytes\": %" PRIu64
		       ", \"peak_bytes\": %" PRIu64 ", \"launches\": %" PRIu64 ", \"submitted_ns\": %" PRIu64
		       ", \"busy_ns\": %" PRIu64 ", \"timeslice_us\": %" PRIu64 ", \"pauses\": %u"
		       ", \"disabled_channels\": %u}",
		       separator, slot->pid, slot->uid, i, slot->first_pid, share->contexts,
		       share->used_bytes, share->context_bytes, share->peak_bytes, share->launches,
		       submitted_ns, busy_ns, share->timeslice_ns / 1000, share->pauses, disabled);
		separator = ",";
	}
}

static void print_runs(const struct sim_state *s, uint32_t g)
{
	const struct sim_gpu *gpu = &s->gpu[g];
	uint64_t first = gpu->runs > SIM_LOG_LENGTH ? gpu->runs - SIM_LOG_LENGTH : 0;
	printf(",\n     \"runs\": [");
	for (uint64_t i = first; i < gpu->runs; i++) {
		const struct sim_run *run = &gpu->log[i % SIM_LOG_LENGTH];
		int32_t pid = s->slot[run->slot].reuse == run->reuse ? s->slot[run->slot].pid : -1;
		printf("%s\n      {\"slot\": %u, \"pid\": %d, \"start_ns\": %" PRIu64
		       ", \"length_ns\": %" PRIu64 "}",
		       i == first ? "" : ",", run->slot, pid, run->start_ns, run->length_ns);
	}
	printf("]");
}

static void print_gpu(const struct sim_view *v, uint32_t g, int with_runs)
{
	const struct sim_model *m = &v->machine.gpu[g];
	const struct sim_gpu *gpu = &v->state->gpu[g];
	printf("%s\n    {\"index\": %u, \"model\": \"%s\", \"uuid\": \"%s\", \"minor\": %u"
	       ", \"total_bytes\": %" PRIu64 ",\n     \"used_bytes\": %" PRIu64 ", \"peak_bytes\": %" PRIu64
	       ", \"allocations\": %" PRIu64 ", \"frees\": %" PRIu64 ", \"refusals\": %" PRIu64
	       ", \"events\": %" PRIu64 ",\n     \"reclaimed_bytes\": %" PRIu64
	       ", \"reclaimed_processes\": %" PRIu64 ", \"busy_ns\": %" PRIu64
	       ", \"switches\": %u, \"nvml_error\": %d,\n     \"processes\": [",
	       g ? "," : "", g, m->model, m->uuid, m->minor, sim_cuda_total(m), gpu->used_bytes,
	       gpu->peak_bytes, gpu->allocations, gpu->frees, gpu->refusals, gpu->events,
	       gpu->reclaimed_bytes, gpu->reclaimed_processes, gpu->busy_ns, gpu->switches, gpu->nvml_error);
	print_processes(v->state, g);
	printf("]");
	if (with_runs)
		print_runs(v->state, g);
	printf("}");
}

/* With the mutex held: no more than will be printed. */
static void copy_state(struct sim_state *to, const struct sim_state *from, int with_runs)
{
	for (uint32_t g = 0; g < from->gpu_count; g++)
		memcpy(&to->gpu[g], &from->gpu[g],
		       with_runs ? sizeof to->gpu[g] : offsetof(struct sim_gpu, log));
	memcpy(to->slot, from->slot, sizeof to->slot);
}

/* A number that is all of `text`, at most `most`; -1 for anything else. */
static long read_number(const char *text, long most)
{
	char *end;
	long n = text ? strtol(text, &end, 0) : -1;
	return text && *text && !*end && n >= 0 && n <= most ? n : -1;
}

/* --xid and the others that change a GPU. */
static int make_trouble(struct sim_view *view, const char *what, const char *gpu_text, const char *code_text)
{
	long gpu = read_number(gpu_text, (long)view->machine.gpu_count - 1);
	long code = read_number(code_text, INT32_MAX);
	if (gpu < 0 || code < 0) {
		fprintf(stderr, "usage: sim-state [DIR] %s GPU CODE   (GPUs: 0 to %u)\n", what,
			view->machine.gpu_count - 1);
		return 2;
	}
	sim_lock(view);
	if (strcmp(what, "--xid") == 0)
		sim_put_xid(view, (uint32_t)gpu, (uint32_t)code);
	else if (strcmp(what, "--ecc") == 0)
		sim_put_ecc(view, (uint32_t)gpu, (uint32_t)code);
	else if (strcmp(what, "--clocks") == 0)
		sim_set_trouble(view, (uint32_t)gpu, SIM_CLOCK_REASONS, (uint32_t)code);
	else if (strcmp(what, "--pending") == 0)
		sim_set_trouble(view, (uint32_t)gpu, SIM_ROWS_PENDING, code ? SIM_ROWS_PENDING : 0);
	else
		sim_set_nvml_error(view, (uint32_t)gpu, (int32_t)code);
	sim_unlock(view);
	return 0;
}

static int print_state(struct sim_view *view, int with_runs)
{
	/* A copy, so that a slow reader of our output keeps nobody waiting. */
	struct sim_state *copy = calloc(1, sizeof *copy), *shared = view->state;
	if (!copy)
		return 1;
	sim_lock(view);
	sim_sweep(view);
	for (uint32_t g = 0; g < view->machine.gpu_count; g++)
		timeline_advance(view, g, timeline_now());
	copy_state(copy, shared, with_runs);
	sim_unlock(view);
	view->state = copy;
	printf("{\"now_ns\": %" PRIu64 ", \"gpus\": [", timeline_now());
	for (uint32_t g = 0; g < view->machine.gpu_count; g++)
		print_gpu(view, g, with_runs);
	printf("\n]}\n");
	free(copy);
	return 0;
}

static int changes_a_gpu(const char *option)
{
	static const char *const known[] = {"--xid", "--ecc", "--fail", "--clocks", "--pending"};
	for (size_t i = 0; i < sizeof known / sizeof *known; i++)
		if (strcmp(option, known[i]) == 0)
			return 1;
	return 0;
}

int main(int argc, char **argv)
{
	int with_runs = 0;
	int restarts = 0;
	char **trouble = NULL;
	for (int i = 1; i < argc && !trouble; i++) {
		if (strcmp(argv[i], "--runs") == 0)
			with_runs = 1;
		else if (strcmp(argv[i], "--restart") == 0)
			restarts = 1;
		else if (changes_a_gpu(argv[i]))
			trouble = argv + i;
		else if (setenv("HAMI_SIM", argv[i], 1) != 0)
			return 1;
	}
	struct sim_view view;
	if (sim_open(&view) != 0)
		return 1;
	if (restarts) {
		sim_lock(&view);
		sim_mig_restart(&view);
		sim_unlock(&view);
		return 0;
	}
	if (trouble)
		return make_trouble(&view, trouble[0], trouble[1], trouble[1] ? trouble[2] : NULL);
	return print_state(&view, with_runs);
}
