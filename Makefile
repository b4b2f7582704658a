# SPDX-License-Identifier: Apache-2.0
# `make` lists the targets. Everything built goes under build/; see docs/architecture.md for the parts.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
MAKEFLAGS += --no-print-directory
.DEFAULT_GOAL := help

ifneq ($(words $(CURDIR)),1)
$(error The path '$(CURDIR)' holds a blank, which neither make nor Slurm's configuration can express. \
Move the checkout to a path without blanks)
endif

VENV := .venv
PYTHON := $(VENV)/bin/python
PYTEST := $(PYTHON) -m pytest -p no:cacheprovider
CLUSTER := PYTHONPATH=tests/cluster $(PYTHON) -m harness
CLUSTER_DIR ?= .cluster
CUDA_INC = $(firstword $(wildcard $(VENV)/lib/python3*/site-packages/nvidia/cu13/include))

# Where `make install` installs files; all paths are below DESTDIR, if that is set.
PREFIX ?= /usr
SYSCONFDIR ?= /etc
LIBDIR ?= $(PREFIX)/lib/hami-hpc
LIBEXECDIR ?= $(PREFIX)/libexec/hami-hpc
DATADIR ?= $(PREFIX)/share/hami-hpc
UNITDIR ?= $(PREFIX)/lib/systemd/system
PLUGINDIR ?= /usr/lib/$(shell $(CC) -print-multiarch)/slurm-wlm
ZSHDIR ?= $(PREFIX)/share/zsh/site-functions

WARNINGS := -Wall -Wextra -Wconversion -Wsign-conversion -Wshadow -Wformat=2 -Werror

.PHONY: help setup setup-test generate build native plugins examples lint test test-native test-sanitizers test-unit mutate \
	test-cluster test-slurm-versions record-slurm-versions test-pyslurm test-gpu bench bench-gpu bench-time bench-peers \
	bench-churn bench-interposer bench-latency bench-mig bench-prolog bench-accounting bench-metrics bench-agent sim-time check-time-model demo demo-stop \
	check-places install uninstall clean

help: ## list these targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1|\2/p' $(firstword $(MAKEFILE_LIST)) | column -t -s '|'

setup: ## install what is missing: Debian packages (as root) and .venv
	@scripts/setup

setup-test:
	@scripts/setup test

generate: setup ## write the contract's outputs (C header, Lua table, Python constants, reference page)
	$(PYTHON) -m hami_hpc.contract.generate

build: setup native plugins examples ## build everything

native:
	@$(MAKE) -C native

plugins:
	@$(MAKE) -C slurm-plugins LIBDIR=$(LIBDIR)

examples: build/examples/slice

build/examples/slice: examples/slice.c | native
	@mkdir -p $(@D)
	gcc -std=gnu11 -O2 $(WARNINGS) -isystem $(CUDA_INC) $< -o $@ build/native/sim/libcuda.so.1

lint: setup-test ## contract up to date, ruff, mypy, clang-format, shell syntax
	$(PYTHON) -m hami_hpc.contract.generate --check
	$(VENV)/bin/ruff check .
	$(VENV)/bin/mypy
	git ls-files -z --cached --others --exclude-standard -- 'native/*.[ch]' 'slurm-plugins/*.[ch]' 'tests/*.[ch]' \
		'examples/*.[ch]' 'benchmarks/*.[ch]' ':!native/include/hami_contract.h' | xargs -0 clang-format --dry-run --Werror
	for script in scripts/setup scripts/build-info scripts/install scripts/uninstall scripts/slurm-source scripts/slurm-chroot scripts/pyslurm scripts/check-time-model prolog/prolog prolog/epilog \
		accounting/ingest accounting/month .ci/run; do sh -n "$$script"; done

# One recipe, so that the order does not depend on how make is called, and the last line is pytest's count.
test: setup-test ## every tier that needs no GPU
	@$(MAKE) lint
	@$(MAKE) build
	@$(MAKE) test-native
	@$(MAKE) test-sanitizers
	PYTHONPATH=tests $(PYTEST) tests -p all_tiers -m "not gpu" -n 4 --dist loadscope --no-loadscope-reorder --durations=15

test-native: setup-test build ## the C parts' own tests
	@$(MAKE) -C native test

test-sanitizers: setup-test ## the same under address and undefined-behaviour sanitizers
	@$(MAKE) -C native SAN=address,undefined test
	@$(MAKE) -C native SAN=thread test-interposer

test-unit: setup-test build ## Python and Lua, without a cluster
	$(PYTEST) tests -m "not gpu and not cluster"

# Not part of `make test`: a sample of 300 takes minutes, all of it hours. SAMPLE=0: all; ONLY: globs of files.
SAMPLE ?= 300
SEED ?= 1
JOBS ?= 1000
ONLY ?= *
CHILDREN ?= 1

mutate: setup-test build ## change the program one token at a time: do the unit tests notice? SAMPLE=300 SEED=1 ONLY='hami_hpc/core/*' CHILDREN=1
	@$(PYTHON) -c 'import mutmut' 2>/dev/null || $(PYTHON) -m pip install --quiet -e '.[mutate]'
	PYTHONPATH=tests/mutation $(PYTHON) tests/mutation/mutate.py --sample $(SAMPLE) --seed $(SEED) --only '$(ONLY)' --children $(CHILDREN)

test-cluster: setup-test build ## on a private Slurm of its own, in .cluster-test
	$(PYTEST) tests -m cluster

test-pyslurm: setup-test build ## records through pyslurm, built from PYSLURM_SOURCE (its GitHub, or a git repository at hand)
	library=$$(scripts/pyslurm) && PYTHONPATH=$$library $(PYTEST) tests/cluster/live_pyslurm.py

# Not part of `make test`: it needs root, debootstrap and Debian's archive. SLURM_SRC_trixie=/path, SLURM_SRC_forky=/path:
# the source of that release's Slurm, where the archive does not have it.
SLURM_SUITES ?= trixie forky
IN_CHROOT = SLURM_SRC='$(SLURM_SRC_$(1))' scripts/slurm-chroot $(1)

test-slurm-versions: setup ## plugins, jobs, accounting and QoS on Slurm 24.11 and 26.05, each in a chroot of its Debian release
	@$(foreach suite,$(SLURM_SUITES),\
		$(call IN_CHROOT,$(suite)) env HAMI_HPC_RECORD=build/records $(PYTEST) tests/versions/live_*.py; \
		$(call IN_CHROOT,$(suite)) make native plugins examples >build/$(suite)-build.log 2>&1 || \
			{ tail -n 5 build/$(suite)-build.log; echo "SLURM_SRC_$(suite)=/path is the place for that source"; exit 1; }; \
		$(call IN_CHROOT,$(suite)) $(PYTEST) tests/cluster --ignore tests/cluster/test_docs.py -n 2 --dist loadscope;)

record-slurm-versions: test-slurm-versions ## keep what sacct printed there, and here, for the unit tests
	HAMI_HPC_RECORD=build/records $(PYTEST) tests/versions/live_*.py
	@records=tests/unit/test_accounting/records; \
	cp build/records/* $$records/22.05; \
	cp build/chroot/trixie/checkout/build/records/* $$records/24.11; \
	cp build/chroot/forky/checkout/build/records/* $$records/26.05

test-gpu: build ## on a machine with a real NVIDIA GPU
	HAMI_TEST_GPU=1 $(PYTEST) tests/native/test_interposer.py tests/gpu -rs

bench-gpu: build ## the interposer on a real GPU, side by side with native
	$(PYTHON) tests/gpu/bench_interposer.py

bench-time: build ## the GPU's time on a real GPU: caps, mixtures, latency-critical jobs; SECTIONS="caps latency"
	$(PYTHON) tests/gpu/bench_time.py $(SECTIONS)

bench-peers: build ## the interposer beside HAMi-core on a real GPU; HAMI_CORE=its libvgpu.so
	$(PYTHON) tests/gpu/bench_peers.py

bench: bench-prolog bench-accounting bench-metrics bench-agent bench-mig ## all measurements

bench-latency: build ## what it costs to measure requests of latency-critical jobs, on the simulation
	$(PYTHON) benchmarks/bench_latency.py

bench-mig: setup-test ## where MIG instances are placed, and the shards that they take, against the best possible
	$(PYTHON) benchmarks/bench_mig.py

bench-prolog: build ## prolog's and epilog's time, against an empty python3
	$(PYTHON) benchmarks/bench_prolog.py

bench-churn: build ## many jobs of all modes on a private Slurm with 8 simulated GPUs, with prologs killed at random; JOBS=1000 SEED=1
	$(PYTHON) benchmarks/bench_churn.py --jobs $(JOBS) --seed $(SEED)

bench-interposer: build ## what the interposer adds to calls and starts, on the simulation
	$(PYTHON) benchmarks/bench_interposer.py

bench-accounting: setup ## accounting of many jobs
	$(PYTHON) benchmarks/bench_accounting.py
	$(PYTHON) benchmarks/bench_accounts.py

bench-metrics: setup-test ## CPU time and memory of the metrics of 8 GPUs and 80 jobs
	$(PYTHON) benchmarks/bench_metrics.py

bench-agent: build ## CPU time and memory of the agent, and of the metrics, with 8 simulated GPUs and 80 tenants
	$(PYTHON) benchmarks/bench_agent.py

sim-time: build ## the study of how a GPU's time is shared: tables and charts of docs/time-study.md
	$(PYTHON) benchmarks/time_study.py --page docs/time-study.md

check-time-model: setup-test ## spin checks the model of the keepers that share a GPU
	@scripts/check-time-model

demo: ## start a private Slurm with two simulated H200s and follow one request through it
	@scripts/setup
	@echo "Building (log: build/build.log)"
	@$(MAKE) build >build/build.log 2>&1 || { tail -n 30 build/build.log; echo "make build failed" >&2; exit 1; }
	@echo "Starting the private cluster in $(CLUSTER_DIR)"
	@$(CLUSTER) story --dir $(CLUSTER_DIR)
	@printf '\nThe cluster keeps running. Point a shell at it with:   . %s/env\nStop it with:                         %s\n' \
		"$(CLUSTER_DIR)" "make demo-stop"

demo-stop: ## stop the demo's cluster
	@if [ -x $(PYTHON) ]; then $(CLUSTER) down --dir $(CLUSTER_DIR); else echo "nothing was running"; fi

# What pip installs, and its options: a site without a package index sets its own here.
PIP_INSTALL ?= .[accounting]

PLACES = DESTDIR='$(DESTDIR)' PREFIX='$(PREFIX)' SYSCONFDIR='$(SYSCONFDIR)' LIBDIR='$(LIBDIR)' \
	LIBEXECDIR='$(LIBEXECDIR)' DATADIR='$(DATADIR)' UNITDIR='$(UNITDIR)' PLUGINDIR='$(PLUGINDIR)' ZSHDIR='$(ZSHDIR)' \
	PIP_INSTALL='$(PIP_INSTALL)'

check-places:
	@$(PLACES) scripts/install check

install: check-places build ## install; honours DESTDIR, PREFIX and SYSCONFDIR
	@$(MAKE) -C slurm-plugins install DESTDIR='$(DESTDIR)' LIBDIR='$(LIBDIR)' PLUGINDIR='$(PLUGINDIR)'
	@$(PLACES) scripts/install

uninstall: ## remove the installed files; with FORCE=1 also while vgpu jobs run or Slurm's files name them
	@DESTDIR='$(DESTDIR)' SYSCONFDIR='$(SYSCONFDIR)' LIBDIR='$(LIBDIR)' FORCE='$(FORCE)' scripts/uninstall

clean: ## delete build/ (a running demo keeps running; it has its own copies)
	rm -rf build
