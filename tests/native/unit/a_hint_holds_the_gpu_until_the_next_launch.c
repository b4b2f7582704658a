/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A hint launches a placeholder, and one kernel behind it, in a stream of their own; the next launch, when it is submitted
 * and its stream has come to it, or the end of the request ends it (limits/placeholder.h). With a libcuda of the test's own.
 */
#include "../../../native/interposer/limits/placeholder.c"

#include <string.h>
#include <sys/wait.h>

#include "check.h"
#include "libcuda_for_placeholders.h"

/* Hints, and returns how many kernels were launched. */
static int hint(void)
{
	const int before = launches;
	const bool launched = hami_placeholder_begin(HAMI_PLACEHOLDER_NS, true);
	CHECK(!relaxed && !inside && launched == (launches > before));
	return launches - before;
}

static void nobody_has_to_give_way(void)
{
	limits.latency = 1;
	CHECK(hint() == 0); /* alone on the GPU */
	limits.latency = 0;
	limits.others_least_cores = 50;
	CHECK(hint() == 0); /* no class to give way to */
	limits.latency = 1;
	limits.mode = HAMI_MODE_MPS;
	CHECK(hint() == 0);
	limits.mode = HAMI_MODE_SHARE;
	current_id = 0;
	CHECK(hint() == 0 && !modules);
	current_id = 7;
	real.cuCtxGetId = NULL; /* a driver before CUDA 12 */
	CHECK(hint() == 0 && !modules);
	real.cuCtxGetId = get_id;
}

/* To load a module may wait for a kernel that waits for the program: it is done when there is none. */
static void not_prepared_while_the_program_has_work(void)
{
	const int before = modules;
	current_id = 9000;
	work = HAMI_SOMETHING_OUTSTANDING;
	CHECK(hint() == 0 && modules == before);
	work = HAMI_OUTSTANDING_UNKNOWN; /* a capture */
	CHECK(hint() == 2 && modules == before + 1);
	work = HAMI_SOMETHING_OUTSTANDING;
	CHECK(hint() == 2 && modules == before + 1); /* what is prepared is used */
	work = HAMI_NOTHING_OUTSTANDING;
	hami_placeholder_end();
}

static void until_the_next_launch(void)
{
	CHECK(!hami_placeholder_begin(0, false) && modules == 1 && !launches); /* prepared, and no more */
	CHECK(hint() == 2 && modules == 1 && streams == 1 && registered == 1);
	CHECK(last.most == HAMI_PLACEHOLDER_NS && spins());
	hami_placeholder_end();
	CHECK(!spins());
	hami_placeholder_end();
	for (int i = 0; i < 1000; i++) {
		CHECK(hint() == 2 && spins());
		uint32_t number = last.number;
		struct flag *flag = last.flag;
		if (i % 2)
			hami_placeholder_end();
		else
			CHECK(hint() == 2 && !goes_on(flag, number)); /* the next one ends it */
	}
	CHECK(modules == 1 && streams == 1 && registered == 1);
	atomic_store(&placeholder.places[0].number, UINT32_MAX - 1);
	last.flag->reached = last.flag->submitted = UINT32_MAX - 1;
	for (int i = 0; i < 4; i++) { /* numbers begin anew */
		CHECK(hint() == 2 && spins());
		hami_placeholder_end();
		CHECK(!spins());
	}
}

static void in_many_contexts(void)
{
	CHECK(hint() == 2);
	struct flag *first = last.flag;
	const uint32_t number = last.number;
	for (current_id = 100; current_id < 100 + 3 * CONTEXTS; current_id++)
		CHECK(hint() == 2 && spins());
	CHECK(!goes_on(first, number));
	hami_placeholder_end();
	current_id = 99 + 3 * CONTEXTS;
	const int before = modules;
	CHECK(hint() == 2 && modules == before);
	refusal = CUDA_ERROR_INVALID_PTX;
	current_id = 500;
	CHECK(hint() == 0 && modules == before + 1);
	CHECK(hint() == 0 && modules == before + 1); /* asked once */
	refusal = CUDA_SUCCESS;
	current_id = 501;
	refuses_launches = true; /* as after an error of the program's own kernel */
	CHECK(hint() == 0);
	refuses_launches = false;
	CHECK(hint() == 2);
}

/* A context that is alive keeps what it has, whatever comes and goes beside it. */
static void a_context_that_stays(void)
{
	current_id = 600;
	CHECK(hint() == 2);
	struct flag *own = last.flag;
	const int before = modules;
	kept = (void *)own;
	for (current_id = 1000; current_id < 1000 + 3 * CONTEXTS; current_id++)
		CHECK(hint() == 2 && last.flag != own);
	CHECK(modules == before + 3 * CONTEXTS);
	current_id = 600;
	CHECK(hint() == 2 && last.flag == own && modules == before + 3 * CONTEXTS);
	all_stay = true;
	current_id = 2000;
	CHECK(hint() == 0 && spins()); /* one too many: nor does it end another's */
	all_stay = false;
	CHECK(hint() == 2 && last.flag != own);
	kept = NULL;
}

static void not_in_a_child(void)
{
	int status;
	CHECK(hint() == 2);
	const pid_t pid = fork();
	CHECK(pid >= 0);
	if (!pid) {
		hami_placeholder_forked();
		hami_placeholder_end(); /* the parent's flag is not the child's: it would be SIGSEGV */
		modules = 0;
		CHECK(hint() == 2 && modules == 1);
		exit(0);
	}
	CHECK(waitpid(pid, &status, 0) == pid && status == 0);
	CHECK(spins());
	hami_placeholder_end();
}

/* A launch is about to come; returns whether its stream has been told to write a word. */
static bool hands_over(CUstream stream, bool per_thread)
{
	written.stream = NULL;
	hami_placeholder_launching(stream, per_thread);
	return written.stream != NULL;
}

static const CUstream own = (CUstream)77;

/* It ends when the launch is submitted and its stream has come to it, whichever is later. */
static void when_the_launch_begins(void)
{
	current_id = stream_id = 7;
	CHECK(!hands_over(own, false)); /* there is none */
	for (int submitted_first = 0; submitted_first < 2; submitted_first++) {
		CHECK(hint() == 2 && hands_over(own, false) && spins());
		CHECK(written.stream == own && written.word == &last.flag->reached);
		if (submitted_first)
			hami_placeholder_launched();
		else
			*written.word = written.number;
		CHECK(spins());
		if (submitted_first)
			*written.word = written.number;
		else
			hami_placeholder_launched();
		CHECK(!spins());
	}
	CHECK(hint() == 2 && hands_over(NULL, false) && written.stream == CU_STREAM_LEGACY);
	CHECK(hint() == 2 && hands_over(NULL, true) && written.stream == CU_STREAM_PER_THREAD);
	hami_placeholder_end(); /* the request is over before its launch begins: it was a copy */
	CHECK(!spins());
	/* A word that comes late, after another placeholder has begun, ends none but its own. */
	CHECK(hint() == 2 && hands_over(own, false));
	CHECK(hint() == 2 && spins());
	*written.word = written.number;
	CHECK(spins());
	hami_placeholder_launched(); /* no launch handed this one over */
	CHECK(!spins());
}

/* What no stream can be told, the launch does as it returns. */
static void when_the_launch_is_submitted(void)
{
	for (int reason = 0; reason < 6; reason++) {
		CHECK(hint() == 2);
		capturing = reason == 0 ? CU_STREAM_CAPTURE_STATUS_ACTIVE : CU_STREAM_CAPTURE_STATUS_NONE;
		capture_answer = reason == 1 ? CUDA_ERROR_STREAM_CAPTURE_IMPLICIT : CUDA_SUCCESS;
		stream_id = reason == 2 ? 8 : 7; /* the flag is not mapped in another context */
		real.cuStreamGetCtx = reason == 3 ? NULL : context_of;
		real.cuStreamWriteValue32_v2 = reason == 4 ? NULL : write_value;
		write_refusal = reason == 5 ? CUDA_ERROR_NOT_SUPPORTED : CUDA_SUCCESS;
		CHECK(hands_over(own, false) == (reason == 5) && spins());
		hami_placeholder_launched();
		CHECK(!spins());
	}
	write_refusal = CUDA_SUCCESS;
}

int main(void)
{
	limits.cores_percent = 40;
	nobody_has_to_give_way();
	until_the_next_launch();
	when_the_launch_begins();
	when_the_launch_is_submitted();
	in_many_contexts();
	a_context_that_stays();
	not_prepared_while_the_program_has_work();
	not_in_a_child();
	return 0;
}
