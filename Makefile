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

# A shell that has read .cluster/env speaks to that cluster. What is made or tested here has its own, or none.
ifdef HAMI_HPC_DEMO
unexport SLURM_CONF HAMI_HPC_CONFIG HAMI_HPC_NODE HAMI_HPC_DEMO HAMI_SIM LD_LIBRARY_PATH
endif

VENV := .venv
PYTHON := $(VENV)/bin/python
PYTEST := scripts/reachable $(PYTHON) -m pytest -p no:cacheprovider
CLUSTER := PYTHONPATH=tests/cluster $(PYTHON) -m harness
# Of the demo: nodes with GPUs, each with a slurmd. A cluster for each number, .cluster-4 and so on.
NODES ?= 1
CLUSTER_DIR ?= .cluster$(if $(filter-out 1,$(NODES)),-$(NODES))
CUDA_INC = $(firstword $(wildcard $(VENV)/lib/python3*/site-packages/nvidia/cu13/include))

# Where `make install` installs files; all paths are below DESTDIR, if that is set.
PREFIX ?= /usr
SYSCONFDIR ?= /etc
LIBDIR ?= $(PREFIX)/lib/hami-hpc
LIBEXECDIR ?= $(PREFIX)/libexec/hami-hpc
DATADIR ?= $(PREFIX)/share/hami-hpc
UNITDIR ?= $(PREFIX)/lib/systemd/system
PLUGINDIR ?= $(shell scripts/slurm-plugindir)
# Where the plugins are built, whose files name LIBDIR: a build for another LIBDIR may go elsewhere.
PLUGIN_BUILD ?= $(CURDIR)/build/slurm-plugins
ZSHDIR ?= $(PREFIX)/share/zsh/site-functions
TMPFILESDIR ?= $(PREFIX)/lib/tmpfiles.d

WARNINGS := -Wall -Wextra -Wconversion -Wsign-conversion -Wshadow -Wformat=2 -Werror

.PHONY: help needs-root setup setup-test generate build native plugins examples lint test test-native sanitized test-sanitizers test-with-address test-with-thread test-all-points test-unit mutate \
	test-cluster test-packages test-vm test-matrix check-slurm-releases record-slurm-versions test-pyslurm test-gpu bench bench-gpu bench-time bench-neighbours bench-collectives bench-peers bench-suspend bench-swap bench-turns \
	bench-churn bench-honest bench-nodes bench-fair-share bench-submit bench-interposer bench-latency bench-mig bench-packing bench-prolog bench-accounting bench-metrics bench-agent sim-time check-time-model demo demo-stop docs \
	check-places install installed uninstall packages-tree deb rpm dist dist-node dist-controller dist-accounting wheel clean

help: ## list these targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1|\2/p' $(firstword $(MAKEFILE_LIST)) | column -t -s '|'

# make names the target that was asked for in MAKECMDGOALS.
needs-root:
	@[ "$$(id -u)" -eq 0 ] || { echo "make $(MAKECMDGOALS): a private Slurm starts jobs of several users, which needs root: sudo make $(MAKECMDGOALS)" >&2; exit 1; }

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
	@$(MAKE) -C slurm-plugins BUILD='$(PLUGIN_BUILD)' LIBDIR=$(LIBDIR) LIBEXECDIR=$(LIBEXECDIR)

examples: build/examples/slice

build/examples/slice: examples/slice.c | native
	@mkdir -p $(@D)
	gcc -std=gnu11 -O2 $(WARNINGS) -isystem $(CUDA_INC) $< -o $@ build/native/sim/libcuda.so.1

lint: setup-test ## contract up to date, ruff, mypy, clang-format, shell syntax
	$(PYTHON) -m hami_hpc.contract.generate --check
	$(VENV)/bin/ruff check .
	$(VENV)/bin/mypy
	git ls-files -z --cached --others --exclude-standard -- 'native/*.[ch]' 'slurm-plugins/*.[ch]' 'tests/*.[ch]' \
		'examples/*.[ch]' 'benchmarks/*.[ch]' ':!native/include/hami_contract.h' | xargs -0 $(VENV)/bin/clang-format --dry-run --Werror
	for script in scripts/setup scripts/reachable scripts/slurm-plugindir scripts/build-info scripts/install scripts/at-one-place scripts/in-use scripts/uninstall scripts/use-python scripts/slurm-source scripts/slurm-chroot scripts/pyslurm scripts/wheel scripts/check-time-model prolog/prolog prolog/epilog prolog/resize prolog/suspend containers/enroot/50-hami-hpc.sh \
		accounting/ingest accounting/month .ci/run scripts/hami_packages/install scripts/hami_packages/maintainer/* \
		tests/packages/make-base; do sh -n "$$script"; done

# Daemons, clocks and a loaded machine: three tests of a run may fail once. Each is named at the end, with how it failed.
SECOND_TRY := --reruns 1 --max-suite-reruns 3 --rerun-show-tracebacks

# One recipe, so that the order does not depend on how make is called, and the last line is pytest's count.
test: needs-root setup-test ## every tier that needs no GPU
	@$(MAKE) -j$(shell nproc) --output-sync=target lint build sanitized
	@$(MAKE) test-native
	@$(MAKE) test-sanitizers
	$(PYTEST) $$(grep -rlF mark.quiet tests --include='test_*.py') -m quiet $(SECOND_TRY) # collecting all others takes a minute
	HAMI_HPC_TESTS_IN_MEMORY=1 PYTHONPATH=tests $(PYTEST) tests -p all_tiers -m "not gpu and not quiet" -n 7 --dist loadscope --durations=15 $(SECOND_TRY)

test-native: setup-test build ## the C parts' own tests
	@scripts/reachable $(MAKE) -C native test

sanitized: # builds what test-sanitizers runs
	@$(MAKE) -C native SAN=address,undefined all
	@$(MAKE) -C native SAN=thread all

test-sanitizers: setup-test ## the same with address, undefined-behaviour and thread sanitizers, side by side
	@$(MAKE) -j2 --output-sync=target test-with-address test-with-thread

test-with-address:
	@PYTEST_ADDOPTS='$(SECOND_TRY)' scripts/reachable $(MAKE) -C native SAN=address,undefined test
test-with-thread:
	@PYTEST_ADDOPTS='$(SECOND_TRY)' scripts/reachable $(MAKE) -C native SAN=thread test-interposer

# Not part of `make test`, which tries each tenth of these points, others with each commit.
test-all-points: needs-root setup-test build ## unit and native tests with all variants, and stages, store and render killed at every line and call
	HAMI_TEST_EACH=1 HAMI_HPC_TESTS_IN_MEMORY=1 PYTHONPATH=tests $(PYTEST) tests/unit tests/native -m "not gpu and not quiet" -n 6 --dist loadscope $(SECOND_TRY)

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
# the source of that release's Slurm, where the archive does not have it. MATRIX: some of the files.
SLURM_SRC_trixie ?=
SLURM_SRC_forky ?=
SLURM_SUITES ?= here trixie forky
MATRIX ?= $(filter-out tests/cluster/test_docs.py tests/cluster/test_mpi.py,$(wildcard tests/cluster/test_*.py)) \
	$(wildcard tests/versions/live_*.py)
IN_CHROOT = $(if $(filter-out here,$(1)),SLURM_SRC='$(SLURM_SRC_$(1))' scripts/slurm-chroot $(1))
MATRIX_RESULT = $(if $(filter-out here,$(1)),build/chroot/$(1)/checkout/)build/matrix.tsv

test-matrix: setup-test build ## the cluster tier on each Slurm: 22.05 here, 24.11 and 26.05 in chroots; SLURM_SUITES=forky MATRIX=tests/cluster/test_quota.py
	@bad=0; $(foreach suite,$(SLURM_SUITES),\
		$(call IN_CHROOT,$(suite)) make native plugins examples >build/$(suite)-build.log 2>&1 || \
			{ tail -n 5 build/$(suite)-build.log; echo "SLURM_SRC_$(suite)=/path is the place for that source"; exit 1; }; \
		$(call IN_CHROOT,$(suite)) env HAMI_HPC_RECORD=build/records $(PYTHON) tests/versions/matrix.py run build/matrix.tsv $(MATRIX) || bad=1;) \
	$(PYTHON) tests/versions/matrix.py table $(foreach suite,$(SLURM_SUITES),$(call MATRIX_RESULT,$(suite))); exit $$bad

check-slurm-releases: SLURM_GIT ?= https://github.com/SchedMD/slurm.git
check-slurm-releases: setup-test ## build Slurm's plugins for each release from 22.05 on, and look for what its daemons would miss
	$(PYTHON) tests/versions/releases.py $(SLURM_GIT) build/releases

record-slurm-versions: MATRIX = $(wildcard tests/versions/live_*.py)
record-slurm-versions: test-matrix ## keep what sacct printed on each Slurm for the unit tests
	@records=tests/unit/test_accounting/records; \
	cp build/records/* $$records/22.05; \
	cp build/chroot/trixie/checkout/build/records/* $$records/24.11; \
	cp build/chroot/forky/checkout/build/records/* $$records/26.05

# Not part of `make test`: it needs root, debootstrap and Debian's archive, and makes accounting's package of 125 MB.
ALONE = unshare --net --mount --propagation private --pid --fork --kill-child --mount-proc

test-packages: ZSHDIR = $(PREFIX)/share/zsh/vendor-completions
test-packages: setup-test deb ## the Debian packages, tarballs and RPMs in a fresh chroot without network
	tests/packages/make-base build/packages-base/root
	@$(PACKAGE) tar --role node
	$(ALONE) $(PYTEST) tests/packages/live_*.py

# VM is the virtual machine's Debian: this release, trixie or forky. RunInJob is of Slurm 24.05 and later, so not of bookworm.
VM_TESTS ?= $(filter-out $(if $(filter bookworm,$(VM)),%/live_run_in_job.py),$(wildcard tests/vm/live_*.py))
VM_PACKAGES := linux-image-amd64 initramfs-tools systemd-sysv dbus libpam-systemd openssh-server openssh-client libpam-slurm-adopt

test-vm: needs-root setup-test build deb ## jobs, sessions by ssh, suspension, power cuts and full disks in a virtual machine with cgroup version 2; VM=trixie, VM=forky; VM_TESTS=tests/vm/live_ends.py
	@PYTHONPATH=tests/vm:tests/packages:scripts $(PYTHON) -c 'import sys, virtual; sys.exit(virtual.missing() or 0)'
	tests/packages/make-base build/vm/$(VM) $(VM) $(VM_PACKAGES)
	HAMI_HPC_VM=$(VM) $(filter-out --net,$(ALONE)) $(PYTEST) $(VM_TESTS)

test-gpu: build ## on a machine with a real NVIDIA GPU
	HAMI_TEST_GPU=1 $(PYTEST) tests/native/test_interposer.py tests/gpu -rs

bench-gpu: build ## the interposer on a real GPU, side by side with native
	$(PYTHON) tests/gpu/bench_interposer.py

bench-time: build ## the GPU's time on a real GPU: caps, mixtures, latency-critical jobs; SECTIONS="caps latency"
	$(PYTHON) tests/gpu/bench_time.py $(SECTIONS)

bench-neighbours: build ## latency-critical requests beside work of every kind on a real GPU; LOADS="a b" WORK="4 contexts,memsets"
	$(PYTHON) tests/gpu/bench_neighbours.py

bench-collectives: build ## all-reduces and DDP training on two real GPUs under limits; CASES="cap 25;cap 50"
	$(PYTHON) tests/gpu/bench_collectives.py

bench-peers: build ## the interposer beside HAMi-core on a real GPU; HAMI_CORE=its libvgpu.so
	$(PYTHON) tests/gpu/bench_peers.py

bench-suspend: build ## jobs that Slurm suspends on a real GPU, as root on a machine without Slurm; DEBS=folder (tests/gpu/slurm_on_gpu.sh download)
	tests/gpu/suspend_on_gpu.sh

bench-swap: native ## device memory to the host and back on a real GPU, as root; GIB:PINNED_MIB of each program in PROGRAMS
	python3 tests/gpu/bench_swap.py $(PROGRAMS)

bench-turns: build ## jobs that take turns on a real GPU whose memory is oversold; as bench-suspend. SECTIONS, TRAIN_S, GIB, TURN_S
	tests/gpu/turns_on_gpu.sh

bench: bench-prolog bench-accounting bench-metrics bench-agent bench-mig ## all measurements

bench-latency: build ## what it costs to measure requests of latency-critical jobs, on the simulation
	$(PYTHON) benchmarks/bench_latency.py

bench-mig: setup-test ## where MIG instances are placed, and the shards that they take, against the best possible
	$(PYTHON) benchmarks/bench_mig.py

bench-packing: setup-test ## slices packed by the dominant share, against an exact packer, whole GPUs and MIG, in a simulation; FILE=trace.csv
	$(PYTHON) benchmarks/bench_packing.py $(if $(FILE),--trace '$(FILE)')

bench-prolog: build ## prolog's and epilog's time, against an empty python3
	$(PYTHON) benchmarks/bench_prolog.py

bench-churn: build ## many jobs of all modes on a private Slurm with 8 simulated GPUs, with prologs killed at random; JOBS=1000 SEED=1
	$(PYTHON) benchmarks/bench_churn.py --jobs $(JOBS) --seed $(SEED)

bench-honest: build setup-test ## honest programs under the strictest settings of the agent for an hour; MINUTES=60
	$(PYTHON) benchmarks/bench_honest.py --minutes $(or $(MINUTES),60)

bench-nodes: build ## mixed jobs of 1, 2, 4 slices on 1 or 2 of six simulated nodes at once, against an exact packer; JOBS=200 SEED=1
	$(PYTHON) benchmarks/bench_nodes.py --jobs $(if $(filter command line environment,$(origin JOBS)),$(JOBS),200) --seed $(SEED)

bench-fair-share: build ## two accounts with shares of 2:1 want all GPUs of a private Slurm, for 30 minutes
	$(PYTHON) benchmarks/bench_fair_share.py

bench-submit: build ## sbatch and scheduling cycles with the filters and plugins, beside a Slurm without; 1,000 nodes, 10,000 jobs
	$(PYTHON) benchmarks/bench_submit.py

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

# The generator prints a notice about its own next release before each build.
docs: ## the documents as a site, with search, in build/site: open build/site/index.html, or serve the folder
	@scripts/setup docs
	@mkdir -p build
	@NO_MKDOCS_2_WARNING=1 $(VENV)/bin/python -m mkdocs build --strict >build/docs.log 2>&1 || \
		{ grep -v '^INFO' build/docs.log >&2; exit 1; }
	@echo "build/site/index.html"

demo: needs-root ## start a private Slurm with two simulated H200s and follow one request through it; NODES=4: over several nodes
	@scripts/setup
	@echo "Building (log: build/build.log)"
	@$(MAKE) build >build/build.log 2>&1 || { tail -n 30 build/build.log; echo "make build failed" >&2; exit 1; }
	@echo "Starting the private cluster in $(CLUSTER_DIR)"
	@$(CLUSTER) story --dir $(CLUSTER_DIR) --nodes $(NODES)
	@printf '\nThe cluster keeps running. Point a shell at it with:   . %s/env\nStop it with:                         %s\n' \
		"$(CLUSTER_DIR)" "make demo-stop$(if $(filter-out 1,$(NODES)), NODES=$(NODES))"

demo-stop: ## stop the demo's cluster
	@if [ -x $(PYTHON) ]; then $(CLUSTER) down --dir $(CLUSTER_DIR); else echo "nothing was running"; fi

# What pip installs, and its options: a site without a package index sets its own here.
PIP_INSTALL ?= .[accounting]

PLACES = DESTDIR='$(DESTDIR)' PREFIX='$(PREFIX)' SYSCONFDIR='$(SYSCONFDIR)' LIBDIR='$(LIBDIR)' \
	LIBEXECDIR='$(LIBEXECDIR)' DATADIR='$(DATADIR)' UNITDIR='$(UNITDIR)' PLUGINDIR='$(PLUGINDIR)' ZSHDIR='$(ZSHDIR)' \
	TMPFILESDIR='$(TMPFILESDIR)' PIP_INSTALL='$(PIP_INSTALL)'

check-places:
	@$(PLACES) scripts/install check

install: check-places build ## install; honours DESTDIR, PREFIX and SYSCONFDIR
	@scripts/at-one-place '$(DESTDIR)$(LIBDIR)' $(MAKE) --no-print-directory installed

installed:
	@$(MAKE) -C slurm-plugins install BUILD='$(PLUGIN_BUILD)' DESTDIR='$(DESTDIR)' LIBDIR='$(LIBDIR)' LIBEXECDIR='$(LIBEXECDIR)' PLUGINDIR='$(PLUGINDIR)'
	@$(PLACES) scripts/install

# Packages are made from what `make install` puts below build/packages/installed, with the system's Python.
PACKAGES := $(CURDIR)/build/packages
VERSION ?=
PACKAGE_PIP ?= .[metrics,top]
PACKAGE = $(PLACES) DESTDIR='$(PACKAGES)/installed' PLUGIN_BUILD='$(PLUGIN_BUILD)' PYTHONPATH=scripts \
	$(PYTHON) -m hami_packages --version '$(VERSION)' --target '$(PACKAGES)'

packages-tree: check-places build
	@rm -rf $(PACKAGES)/installed
	@PATH=/usr/bin:/bin:$$PATH $(MAKE) install DESTDIR='$(PACKAGES)/installed' PIP_INSTALL='$(PACKAGE_PIP)' \
		ZSHDIR='$(ZSHDIR)' >/dev/null

# Another release's packages are made in its chroot, whose copy of the checkout has no history to take a version from.
HERE := $(shell . /etc/os-release && echo "$$VERSION_CODENAME")
VM ?= $(HERE)
ifeq ($(VM),$(HERE))
deb: ZSHDIR = $(PREFIX)/share/zsh/vendor-completions
deb: packages-tree ## Debian packages for the installed Slurm, in build/packages; VERSION=1.2.3; VM=trixie or forky: for that release's Slurm
	@$(PACKAGE) deb
else
deb: needs-root setup
	@version='$(VERSION)'; \
	version=$${version:-$$(PYTHONPATH=scripts $(PYTHON) -c 'from hami_packages.release import version; print(version())')}; \
	SLURM_SRC='$(SLURM_SRC_$(VM))' scripts/slurm-chroot $(VM) make deb VERSION="$$version" | \
		sed 's|^/checkout/|build/chroot/$(VM)/checkout/|' || \
		{ echo "where Slurm's source is missing: make $(MAKECMDGOALS) VM=$(VM) SLURM_SRC_$(VM)=/path/to/it" >&2; exit 1; }
endif

rpm: packages-tree ## RPMs for the installed Slurm, in build/packages; without rpmbuild their spec alone
	@$(PACKAGE) rpm

dist: packages-tree ## all three tarballs, in build/packages
	@$(PACKAGE) tar

dist-node: packages-tree ## the tarball for nodes with GPUs
	@$(PACKAGE) tar --role node

dist-controller: packages-tree ## the tarball for controller and login hosts
	@$(PACKAGE) tar --role controller

dist-accounting: packages-tree ## the tarball for the machine that makes bills
	@$(PACKAGE) tar --role accounting

wheel: setup ## the wheel of the commands, in build/packages, for pip and the site's own index; VERSION=1.2.3
	@version=$$(PYTHONPATH=scripts $(PYTHON) -c 'import sys; from hami_packages.release import version; print(version(sys.argv[1]))' '$(VERSION)'); \
	scripts/wheel '$(PACKAGES)' "$$version"

uninstall: ## remove the installed files; with FORCE=1 also while vgpu jobs run or Slurm's files name them
	@DESTDIR='$(DESTDIR)' SYSCONFDIR='$(SYSCONFDIR)' LIBDIR='$(LIBDIR)' LIBEXECDIR='$(LIBEXECDIR)' DATADIR='$(DATADIR)' \
		FORCE='$(FORCE)' scripts/uninstall

clean: ## delete build/ (a running demo keeps running; it has its own copies)
	rm -rf build
