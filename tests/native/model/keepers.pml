/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The keepers of processes on a GPU: the steps of region/budget.c and limits/keeper.c, with any process killed, started
 * or stopped (SIGSTOP) between any two steps.
 *
 *	-DSTOPS=0            two processes of one job, which share its budget; -DPROCESSES=3: three
 *	-DSTOPS=0 -DFINE     the same in ticks of half the length
 *	(nothing)            and any of them may be stopped, for ever
 *	-DJOBS=2 -DSTOPS=0   two jobs of one process each, with turns; without STOPS=0 also stopped
 *
 * What is checked, at each tick of the clock (violations are assertions):
 *
 *	overshoot  while a running process of a job is open, the budget less what its running processes used since
 *	           their last counts is at least -HALF - OVERSHOOT. A process that is stopped while it is open uses
 *	           the GPU unnoticed, as much as its timeslice gives it: so this is checked with STOPS=0 only.
 *	turns      a running process is open in its job's turn only. One that was stopped while it was open is left
 *	           out: it stays open; one that died has no channels.
 *	paused     nobody who runs is paused for more than PAUSED_MOST ticks: no starvation, no pause for ever, whatever
 *	           becomes of the others. Not so with -DSTOPS=2, where the stopped go on at any moment: what they used
 *	           unnoticed they bring with them, and their job owes it, each time anew.
 *
 * What is abstracted:
 *
 *	- The share is a half and the clock counts ticks, credit counts half ticks: a piece is 2 x HALF ticks. Times are
 *	  kept as ages, with an upper end: the clock has no absolute value. `full_at` is kept as the credit that it means,
 *	  which grows by itself up to CREDIT_MOST.
 *	- A look takes no time and comes on time unless its process is stopped; opening and pausing are immediate.
 *	- Each look counts; in keeper.c one at the end of a turn does not. Keepers do not rest, so nobody gives back after
 *	  the first piece what was saved up while idle (RESTED of the word).
 *	- One open process uses each tick, or none. Measured use is what was used. Uncounted use of a stopped process
 *	  has an upper end, above what the clamp lets through.
 *	- Nobody is contended. Steps' own budgets are left out: they have the same word and the same steps.
 *
 * The word changes in one step (compare and exchange), so looks need not be interleaved further: between any two of
 * their steps any other process may take any of its own.
 *
 * Mutations, each of which spin must refute: NO_REOPEN, NO_SHUT, of two jobs NO_TURN_LOOK, of processes that share a
 * budget LATE_COUNT (a count each COUNT ticks only, as one process does).
 */
#ifndef PROCESSES
#define PROCESSES 2
#endif
#ifndef JOBS
#define JOBS 1
#endif
#ifndef STOPS
#define STOPS 1
#endif
#ifdef FINE
#define HALF 4
#define COUNT 16 /* ticks between two counts at most, and shut at most */
#define EACH 2
#else
#define HALF 2
#define COUNT 8
#define EACH 1
#endif
#if JOBS == 2
#define JOB(i) i
#define SEVERAL 0
#define OVERSHOOT 0
#define PAUSED_MOST 13 /* shut for 8, and the rest of the others' turns */
#else
#define JOB(i) 0
#define SEVERAL EACH /* ticks between two counts of an open process that shares its budget */
#define OVERSHOOT (2 * SEVERAL - 1) /* what is used until each has looked twice; whole ticks */
#define PAUSED_MOST (COUNT + 1)
#endif
#define LEAST (HALF - COUNT)
#define AGE_MOST COUNT
#define USED_MOST ((HALF + SEVERAL - LEAST + 1) / 2 + 1) /* all that the clamp lets through */
#define CREDIT_MOST (HALF + AGE_MOST)
#define TURN 6 /* ticks of each job */

#define RUNS 0
#define STOPPED 1
#define DEAD 2

/* The words, by job. */
short credit[JOBS] = HALF;
bool shut[JOBS];
/* Each process: its state, whether its channels are open, when it looks again, what it used since the last count, how
 * long ago that was. */
byte state[PROCESSES];
bool open[PROCESSES] = true;
byte left[PROCESSES], used[PROCESSES], age[PROCESSES], paused[PROCESSES];
/* And inside of a look: the next step, and what it has found. */
byte step[PROCESSES], taken[PROCESSES];
bool says[PROCESSES];
byte phase; /* of the common period */

#define MY_TURN(i) (JOBS == 1 || phase / TURN == i)
#define TURN_LEFT (TURN - phase % TURN)
#define RESTING(i) (state[i] != RUNS || (step[i] == 0 && left[i] > 0))

inline forget(i)
{
	taken[i] = 0; says[i] = false; step[i] = 0
}

/* hami_budget_use, hami_budget_shut and hami_budget_wait, of the word as it is now. */
inline spend(i)
{
	now = HALF + (age[i] > SEVERAL -> age[i] : SEVERAL);
	now = (credit[JOB(i)] > now -> now : credit[JOB(i)]) - 2 * taken[i];
	now = (now < LEAST -> LEAST : now);
	credit[JOB(i)] = now;
	now = (now > HALF + SEVERAL -> HALF + SEVERAL : now);
	says[i] = (shut[JOB(i)] -> now < HALF : now <= -HALF);
#ifdef NO_REOPEN
	says[i] = says[i] || shut[JOB(i)];
#endif
#ifdef NO_SHUT
	says[i] = false;
#endif
	shut[JOB(i)] = says[i];
	left[i] = (says[i] -> HALF - now : now + HALF);
#ifndef LATE_COUNT
	left[i] = (SEVERAL > 0 && (!says[i] || open[i]) && left[i] > SEVERAL -> SEVERAL : left[i]);
#endif
	left[i] = (left[i] < 1 -> 1 : (left[i] > COUNT -> COUNT : left[i]));
	taken[i] = 0; age[i] = 0; now = 0
}

/* One atomic step of a look. */
inline look(i)
{
	if
	:: step[i] == 0 && left[i] == 0 -> /* hami_meter_count */
		taken[i] = used[i]; used[i] = 0; step[i] = 1
	:: step[i] == 1 -> spend(i); step[i] = 2 /* compare and exchange of the word */
	:: step[i] == 2 -> /* set_open, and when to look again */
		open[i] = !says[i] && MY_TURN(i);
#if JOBS == 2 && !defined(NO_TURN_LOOK)
		left[i] = (left[i] > TURN_LEFT -> TURN_LEFT : left[i]);
#endif
		forget(i)
	fi
}

inline check()
{
	for (i : 0 .. PROCESSES - 1) {
		if
		:: state[i] == RUNS ->
			assert(!open[i] || MY_TURN(i)); /* turns */
			assert(paused[i] <= PAUSED_MOST); /* paused */
			if
			:: open[i] ->
				now = credit[JOB(i)];
				for (k : 0 .. PROCESSES - 1) {
					now = now - (JOB(k) == JOB(i) && state[k] == RUNS -> 2 * used[k] : 0)
				}
				assert(STOPS || now >= -HALF - OVERSHOOT); /* overshoot */
				now = 0
			:: else
			fi
		:: else
		fi
	}
}

inline tick(user)
{
	check();
	used[user] = (open[user] && state[user] != DEAD && used[user] < USED_MOST -> used[user] + 1 : used[user]);
	pass()
}

inline pass()
{
	phase = (JOBS == 1 -> 0 : (phase + 1) % (2 * TURN));
	for (i : 0 .. JOBS - 1) {
		credit[i] = (credit[i] < CREDIT_MOST -> credit[i] + 1 : CREDIT_MOST)
	}
	for (i : 0 .. PROCESSES - 1) {
		age[i] = (state[i] != DEAD && age[i] < AGE_MOST -> age[i] + 1 : age[i]);
		left[i] = (left[i] > 0 -> left[i] - 1 : 0);
		paused[i] = (state[i] != RUNS || open[i] -> 0 : (paused[i] <= PAUSED_MOST -> paused[i] + 1 : paused[i]))
	}
}

#define ALL_REST (RESTING(0) && RESTING(1) && (PROCESSES < 3 || RESTING(PROCESSES - 1)))
#define CAN_STEP(n) (n < PROCESSES && state[n] == RUNS && !(step[n] == 0 && left[n] > 0))

active proctype everything()
{
	byte i, k, n;
	short now;
end:	do
	:: atomic { /* a look goes on by one step, of any process that runs */
		select(n : 0 .. PROCESSES - 1);
		if
		:: CAN_STEP(n) -> d_step { look(n); i = 0; k = 0; n = 0; now = 0 }
		:: else -> n = 0
		fi
	   }
	:: atomic { /* time passes, and one that is open uses it, or nobody */
		ALL_REST -> select(n : 0 .. PROCESSES);
		d_step {
			if
			:: n < PROCESSES -> tick(n)
			:: else -> check(); pass()
			fi;
			i = 0; k = 0; n = 0; now = 0
		}
	   }
	:: atomic { /* kill -9 */
		select(n : 0 .. PROCESSES - 1);
		if
		:: state[n] != DEAD -> d_step {
			state[n] = DEAD; open[n] = false; used[n] = 0; left[n] = 0; age[n] = 0; paused[n] = 0;
			forget(n);
			n = 0
		   }
		:: else -> n = 0
		fi
	   }
	:: atomic { /* a fresh process: open, and looks at once */
		select(n : 0 .. PROCESSES - 1);
		if
		:: state[n] == DEAD -> d_step { state[n] = RUNS; open[n] = true; n = 0 }
		:: else -> n = 0
		fi
	   }
	:: atomic { /* SIGSTOP */
		select(n : 0 .. PROCESSES - 1);
		if
		:: STOPS && state[n] == RUNS -> d_step { state[n] = STOPPED; paused[n] = 0; n = 0 }
		:: else -> n = 0
		fi
	   }
	:: atomic { /* SIGCONT */
		select(n : 0 .. PROCESSES - 1);
		if
		:: STOPS == 2 && state[n] == STOPPED -> d_step { state[n] = RUNS; n = 0 }
		:: else -> n = 0
		fi
	   }
	od
}
