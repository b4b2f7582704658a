/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The keepers of processes on a GPU: the steps of region/budget.c and limits/share.c, with any process killed or
 * started between any two steps.
 *
 *	-DJOBS=2 -DSTOPS=0   two jobs of one process each, with turns: what `make check-time-model` proves
 *	PROCESSES=2, STOPS=1 processes that share one budget, and SIGSTOP: NOT proved. Spin finds runs that violate
 *	                     `paused` and `overshoot`; whether the bounds or the keepers are wrong is open.
 *
 * What is checked, at each tick of the clock (violations are assertions):
 *
 *	overshoot  while a running process of a job is open, the budget less what its running processes used since
 *	           their last counts is at least -HALF - OVERSHOOT: one piece, since a process that is open learns
 *	           of the others' use only when it looks. With STOPS=0: a stopped process that is open uses the
 *	           GPU unnoticed, and owes it when it goes on, after others have spent the same credit.
 *	turns      a running process is open in its job's turn only. One that was stopped while it was open is left
 *	           out: it stays open; one that died has no channels.
 *	paused     nobody who runs is paused for more than PAUSED_MOST ticks: no starvation, no pause for ever
 *
 * What is abstracted:
 *
 *	- The share is a half and the clock counts ticks, credit counts half ticks: a piece is 2 x HALF ticks. Times are
 *	  kept as ages, with an upper end: the clock has no absolute value. `at` is compared by whether it changed.
 *	- A look takes no time and comes on time unless its process is stopped; opening and pausing are immediate.
 *	- Each look counts; in share.c one at the end of a turn does not. Keepers do not rest.
 *	- One open process uses each tick, or none. Measured use is what was used. Uncounted use of a stopped process
 *	  has an upper end, above what the clamp lets through.
 *	- Steps' own budgets are left out: they have the same words and the same steps.
 *	- Words are read and written in one order by all (the real ones are relaxed: each word for itself has one order).
 *
 *	- Looks of two running processes do not interleave, unless RACE is defined.
 *
 * Mutations of the proved form, each of which spin must refute: NO_REOPEN, NO_SHUT, NO_TURN_LOOK.
 */
#ifndef PROCESSES
#define PROCESSES 2
#endif
#ifndef STOPS
#define STOPS 1
#endif
#ifndef JOBS
#define JOBS 1
#endif
#if JOBS == 2
#define JOB(i) i
#else
#define JOB(i) 0
#endif

#define HALF 2
#define LEAST (-6) /* HALF less what is shut at most: 8 */
#define OVERSHOOT (2 * HALF)
#define COUNT 8 /* ticks between two counts at most */
#define AGE_MOST 12
#define TURN 3 /* ticks of each job */
#ifdef PAUSED_MOST
#elif JOBS == 2
#define PAUSED_MOST 14 /* shut for 8, and the rest of the others' turns */
#else
#define PAUSED_MOST 8
#endif

#define RUNS 0
#define STOPPED 1
#define DEAD 2

/* The words, by job. */
short credit[JOBS] = HALF;
byte age[JOBS]; /* of `at` */
bool shut[JOBS];
/* Each process: its state, whether its channels are open, when it looks again, what it used since the last count. */
byte state[PROCESSES];
bool open[PROCESSES] = true;
byte left[PROCESSES], used[PROCESSES], paused[PROCESSES];
/* And inside of a look: the next step, how old its `now` is, and its variables. */
byte step[PROCESSES], lag[PROCESSES], elapsed[PROCESSES], taken[PROCESSES];
bool stale[PROCESSES], says[PROCESSES];
short before[PROCESSES];
byte phase; /* of the common period */

#define MY_TURN(i) (JOBS == 1 || phase / TURN == i)
#define TURN_LEFT (TURN - phase % TURN)
#define RESTING(i) (state[i] != RUNS || (step[i] == 0 && left[i] > 0))

inline forget(i)
{
	lag[i] = 0; elapsed[i] = 0; taken[i] = 0; stale[i] = false; says[i] = false; before[i] = 0; step[i] = 0
}

inline after(i)
{
	before[i] = before[i] + elapsed[i] - 2 * taken[i];
#ifndef NO_CLAMP
	before[i] = (before[i] < LEAST -> LEAST : before[i]);
#endif
	before[i] = (before[i] > HALF -> HALF : before[i])
}

inline waits(i)
{
	left[i] = (says[i] -> HALF - before[i] : before[i] + HALF);
#ifdef LATE_LOOK
	left[i] = left[i] * 3;
#endif
	left[i] = (left[i] < 1 -> 1 : (left[i] > COUNT -> COUNT : left[i]));
#if JOBS == 2 && !defined(NO_TURN_LOOK)
	left[i] = (left[i] > TURN_LEFT -> TURN_LEFT : left[i])
#endif
}

/* One atomic step of a look. */
inline look(i)
{
	if
	:: step[i] == 0 && left[i] == 0 -> /* hami_meter_count */
		taken[i] = used[i]; used[i] = 0; lag[i] = 0; step[i] = 1
	:: step[i] == 1 -> /* advance: load of at */
		stale[i] = false;
		elapsed[i] = (age[JOB(i)] > lag[i] -> age[JOB(i)] - lag[i] : 0);
		step[i] = (elapsed[i] > 0 -> 2 : 3)
	:: step[i] == 2 -> /* compare and exchange of at */
		if
		:: stale[i] -> elapsed[i] = 0
		:: else ->
			age[JOB(i)] = lag[i];
			for (k : 0 .. PROCESSES - 1) {
				stale[k] = stale[k] || (k != i && JOB(k) == JOB(i) && step[k] == 2)
			}
		fi;
		step[i] = 3
	:: step[i] == 3 -> before[i] = credit[JOB(i)]; step[i] = 4 /* load of credit */
	:: step[i] == 4 -> /* compare and exchange of credit */
		if
		:: credit[JOB(i)] == before[i] -> after(i); credit[JOB(i)] = before[i]; step[i] = 5
		:: else -> before[i] = credit[JOB(i)]
		fi
	:: step[i] == 5 -> /* load of shut */
		says[i] = (shut[JOB(i)] -> before[i] < HALF : before[i] <= -HALF);
#ifdef NO_REOPEN
		says[i] = says[i] || shut[JOB(i)];
#endif
#ifdef NO_SHUT
		says[i] = false;
#endif
		step[i] = 6
	:: step[i] == 6 -> shut[JOB(i)] = says[i]; step[i] = 7 /* store of shut */
	:: step[i] == 7 -> /* set_open, and when to look again */
		open[i] = !says[i] && MY_TURN(i);
		waits(i);
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
				owed = credit[JOB(i)] + age[JOB(i)];
				for (k : 0 .. PROCESSES - 1) {
					owed = owed - (JOB(k) == JOB(i) && state[k] == RUNS -> 2 * used[k] : 0)
				}
				assert(STOPS || owed >= -HALF - OVERSHOOT) /* overshoot */
			:: else
			fi
		:: else
		fi
	}
}

inline tick(user)
{
	check();
	used[user] = (open[user] && state[user] != DEAD && used[user] < AGE_MOST -> used[user] + 1 : used[user]);
	pass()
}

inline pass()
{
	phase = (JOBS == 1 -> 0 : (phase + 1) % (2 * TURN));
	for (i : 0 .. JOBS - 1) {
		age[i] = (age[i] < AGE_MOST -> age[i] + 1 : AGE_MOST)
	}
	for (i : 0 .. PROCESSES - 1) {
		lag[i] = (step[i] > 0 && lag[i] < AGE_MOST -> lag[i] + 1 : lag[i]);
		left[i] = (step[i] == 0 && left[i] > 0 -> left[i] - 1 : left[i]);
		paused[i] = (state[i] != RUNS || open[i] -> 0 : (paused[i] < 16 -> paused[i] + 1 : 16))
	}
}

#define ALL_REST (RESTING(0) && RESTING(1) && (PROCESSES < 3 || RESTING(PROCESSES - 1)))
#ifdef RACE
#define BUSY(m) false
#else
#define BUSY(m) (state[m] == RUNS && step[m] > 0)
#endif
#define FREE(n) ((n == 0 || !BUSY(0)) && (n == 1 || !BUSY(1)))
#define CAN_STEP(n) (n < PROCESSES && FREE(n) && state[n] == RUNS && !(step[n] == 0 && left[n] > 0))

active proctype everything()
{
	byte i, k, n;
	short owed;
end:	do
	:: atomic { /* a look goes on by one step, of any process that runs */
		select(n : 0 .. PROCESSES - 1);
		if
		:: CAN_STEP(n) -> d_step { look(n); i = 0; k = 0; n = 0; owed = 0 }
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
			i = 0; k = 0; n = 0; owed = 0
		}
	   }
	:: atomic { /* kill -9 */
		select(n : 0 .. PROCESSES - 1);
		if
		:: state[n] != DEAD -> d_step {
			state[n] = DEAD; open[n] = false; used[n] = 0; left[n] = 0; paused[n] = 0;
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
		:: state[n] == STOPPED -> d_step { state[n] = RUNS; n = 0 }
		:: else -> n = 0
		fi
	   }
	od
}
