# SPDX-License-Identifier: Apache-2.0
"""All states of one GPU's MIG instances, and how well a rule of placement does in the long run.

A state is the set of instances on the GPU; jobs arrive at random (Poisson), one rate for each profile, and end at
random (exponential, mean 1). A job that fits is placed, one that does not is lost. A rule of placement is then a Markov
chain, and the best rule that knows the rates and not the future follows from policy iteration: Puterman, Markov
Decision Processes, 8.6 (average reward, unichain).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from hami_hpc.core.mig_layout import Instance, Profile, choose_start, legal_starts

Place = tuple[int, int]  # index of the profile, start
State = tuple[Place, ...]  # sorted
Rule = list[list[int]]  # state, profile -> the state after placing, -1: it does not fit


def instances_of(state: State, profiles: tuple[Profile, ...]) -> tuple[Instance, ...]:
    return tuple(
        Instance(n, profiles[index].profile_id, start, profiles[index].size, "")
        for n, (index, start) in enumerate(state)
    )


class Gpu:
    """Every state of a GPU with these profiles; what may follow each."""

    def __init__(self, profiles: tuple[Profile, ...]) -> None:
        self.profiles = profiles
        self.states: list[State] = [()]
        self.number: dict[State, int] = {(): 0}
        self.placed: list[list[dict[int, int]]] = []  # state, profile -> start -> state
        for state in self.states:  # grows meanwhile
            taken = instances_of(state, profiles)
            rows: list[dict[int, int]] = []
            for index, profile in enumerate(profiles):
                starts = legal_starts(profile, profiles, taken)
                rows.append({start: self._add((*state, (index, start))) for start in starts})
            self.placed.append(rows)
        self.ended = [[self.number[state[:i] + state[i + 1 :]] for i in range(len(state))] for state in self.states]

    def _add(self, places: State) -> int:
        state = tuple(sorted(places))
        if state not in self.number:
            self.number[state] = len(self.states)
            self.states.append(state)
        return self.number[state]

    def counts(self, state: int) -> tuple[int, ...]:
        """Returns the instances of a state by profile."""
        places = self.states[state]
        return tuple(sum(index == each for each, _ in places) for index in range(len(self.profiles)))

    def rule(self, pick: Callable[[Profile, State, dict[int, int]], int]) -> Rule:
        """Returns the rule that picks one of the starts that are legal."""
        return [
            [
                starts[pick(profile, state, starts)] if starts else -1
                for profile, starts in zip(self.profiles, rows, strict=True)
            ]
            for state, rows in zip(self.states, self.placed, strict=True)
        ]

    def first_fit(self) -> Rule:
        return self.rule(lambda _profile, _state, starts: min(starts))

    def chosen(self) -> Rule:
        """Returns the product's rule, hami_hpc.core.mig_layout.choose_start."""

        def pick(profile: Profile, state: State, starts: dict[int, int]) -> int:
            start = choose_start(profile, self.profiles, instances_of(state, self.profiles))
            assert start is not None
            assert start in starts
            return start

        return self.rule(pick)


class Traffic:
    """Arrivals of each profile per mean run time, and what an accepted job of it counts."""

    def __init__(self, gpu: Gpu, mix: Sequence[float], load: float, worth: Sequence[float]) -> None:
        slices = max(profile.size for profile in gpu.profiles)
        mean = sum(part * profile.size for part, profile in zip(mix, gpu.profiles, strict=True)) / slices / sum(mix)
        self.gpu = gpu
        self.rates = [load / mean * part / sum(mix) for part in mix]
        self.worth = worth
        self.offered = sum(rate * one for rate, one in zip(self.rates, worth, strict=True))
        self.step = sum(self.rates) + max(len(state) for state in gpu.states)  # events per time, of every state

    def _chain(self, rule: Rule) -> tuple[np.ndarray, np.ndarray]:
        size = len(rule)
        moves, reward = np.zeros((size, size)), np.zeros(size)
        for state, row in enumerate(rule):
            for after in self.gpu.ended[state]:
                moves[state, after] += 1
            for rate, worth, after in zip(self.rates, self.worth, row, strict=True):
                if after >= 0:
                    moves[state, after] += rate
                    reward[state] += rate * worth
            moves[state, state] += self.step - moves[state].sum()
        return moves / self.step, reward / self.step

    def evaluate(self, rule: Rule) -> tuple[float, np.ndarray]:
        """Returns which part of what arrives is accepted in the long run, and the value of each state."""
        moves, reward = self._chain(rule)
        equations = np.eye(len(rule)) - moves
        equations[:, 0] = 1  # the gain, in the place of the value of the empty GPU, which is 0
        solved = np.linalg.solve(equations, reward)
        values = solved.copy()
        values[0] = 0
        return float(solved[0]) * self.step / self.offered, values

    def best(self, rule: Rule) -> tuple[float, Rule]:
        """Returns the largest part that any rule accepts, and that rule. Begins with `rule`."""
        while True:
            part, values = self.evaluate(rule)
            better = [
                [
                    max(starts.values(), key=lambda after, now=now: (round(values[after], 9), after == now))
                    if starts
                    else -1
                    for starts, now in zip(rows, row, strict=True)
                ]
                for rows, row in zip(self.gpu.placed, rule, strict=True)
            ]
            if better == rule:
                return part, rule
            rule = better

    def refused(self, rule: Rule, admits: Callable[[tuple[int, ...]], bool]) -> float:
        """Returns which part of the jobs that `admits` lets through (counts with the job) finds no place."""
        moves, _ = self._chain(rule)
        equations = (np.eye(len(rule)) - moves).T
        equations[0] = 1  # the probabilities are 1 together
        parts = np.linalg.solve(equations, np.eye(len(rule))[0])
        tried = lost = 0.0
        for state, row in enumerate(rule):
            counts = self.gpu.counts(state)
            for index, (rate, after) in enumerate(zip(self.rates, row, strict=True)):
                if admits((*counts[:index], counts[index] + 1, *counts[index + 1 :])):
                    tried += parts[state] * rate
                    lost += parts[state] * rate if after < 0 else 0
        return float(lost / tried)
