# SPDX-License-Identifier: Apache-2.0
# libhami-hpc.so, the interposer, and the conformance programs that show what it does.
INTERPOSER := $(BUILD)/libhami-hpc.so
INTERPOSER_SRC := $(wildcard interposer/*.c interposer/*/*.c interposer/*/*.S)
# In the folders of their sources: two files of one name in different layers have two objects.
INTERPOSER_OBJ := $(patsubst interposer/%,$(BUILD)/interposer/%.o,$(INTERPOSER_SRC))
INTERPOSER_FLAGS := -fPIC -fvisibility=hidden -Iinclude -Iinterposer -isystem $(CUDA_INC) -Wmissing-prototypes
CONFORMANCE := $(patsubst ../tests/native/interposer/%.c,$(BUILD)/conformance/%,$(wildcard ../tests/native/interposer/*.c))

COMPUTE := $(patsubst ../tests/native/compute/%.c,$(BUILD)/compute/%,$(wildcard ../tests/native/compute/*.c))
# Programs of jobs with several slices.
SEVERAL := $(patsubst ../tests/native/several/%.c,$(BUILD)/several/%,$(wildcard ../tests/native/several/*.c))
# Programs that ask the resource manager themselves: no libcuda.
RM_HEADERS := include/rm_abi.h sim/core/sim_rm.h
RM := $(patsubst ../tests/native/rm/%.c,$(BUILD)/rm/%,$(wildcard ../tests/native/rm/*.c))
UNIT_SRC := $(filter-out ../tests/native/unit/fuzz_%,$(wildcard ../tests/native/unit/*.c))
UNIT := $(patsubst ../tests/native/unit/%.c,$(BUILD)/unit/%,$(UNIT_SRC))
REGION_PARTS := $(addprefix interposer/region/,record.c trust.c descriptor.c region.c slots.c glance.c budget.c latency.c) interposer/arbitration/budget.c
UNIT_PARTS := interposer/limits/ending.c $(addprefix interposer/arbitration/,forecast.c level.c mean.c parts.c rounds.c slice.c terms.c use.c) $(addprefix interposer/base/,clock.c table.c uuid.c) $(REGION_PARTS)
UNIT_HEADERS := $(wildcard interposer/*/*.h) include/hami_contract.h
UNIT_FLAGS := -Iinclude -Iinterposer -isystem $(CUDA_INC) -DHAMI_LOCK_PATIENCE_MS=100
FUZZ := $(patsubst ../tests/native/unit/%.c,$(BUILD)/fuzz/%,$(wildcard ../tests/native/unit/fuzz_*.c))
FUZZ_SECONDS ?= 5
BENCH := $(addprefix $(BUILD)/bench/,interposer_calls agent_tenant)
# The rules of sharing time alone, for tests and the study in Python. No part of an installation.
ARBITRATION := $(BUILD)/libhami-arbitration.so

all: $(INTERPOSER) conformance $(UNIT) $(BENCH) $(ARBITRATION)

$(ARBITRATION): $(wildcard interposer/arbitration/*.[ch]) include/hami_contract.h
	@mkdir -p $(@D)
	$(CC) $(CSTD) $(CFLAGS) -fPIC -shared -Wmissing-prototypes -Iinclude -Iinterposer $(filter %.c,$^) -o $@ $(LDSTD)

$(BUILD)/interposer/%.o: interposer/% include/old_glibc.h
	@mkdir -p $(@D)
	$(CC) $(CSTD) $(CFLAGS) $(INTERPOSER_FLAGS) -include old_glibc.h -MMD -MP -c $< -o $@
-include $(INTERPOSER_OBJ:.o=.d)

# Which build it is: asked at each make, and linked again when it changed (scripts/build-info).
.PHONY: force
force:
$(BUILD)/build_info.c: force
	@$(ROOT)/scripts/build-info $@
$(BUILD)/build_info.o: $(BUILD)/build_info.c
	$(CC) $(CSTD) $(CFLAGS) -fPIC -c $< -o $@

# Before glibc 2.34 these were libraries of their own; later ones have them, empty, for such programs (include/old_glibc.h).
OLD_LIBRARIES := $(if $(SAN),,-Wl$(comma)--no-as-needed -l:libpthread.so.0 -l:libdl.so.2)

$(INTERPOSER): $(INTERPOSER_OBJ) $(BUILD)/build_info.o interposer/exports.map
	$(CC) $(LDSTD) -shared -o $@ $(INTERPOSER_OBJ) $(BUILD)/build_info.o -Wl,--version-script=interposer/exports.map \
		$(if $(SAN),,-Wl$(comma)-z$(comma)defs) -Wl,-z,relro,-z,now,-soname,libhami-hpc.so $(OLD_LIBRARIES) -ldl

# Linked against the simulation for its names only: on a GPU node the loader finds the driver's libraries instead.
.PHONY: conformance
conformance: $(CONFORMANCE) $(COMPUTE) $(SEVERAL) $(RM)
$(BUILD)/several/%: ../tests/native/several/%.c ../tests/native/several/several.h \
		../tests/native/interposer/check.h include/hami_hpc.h $(BUILD)/sim/libcuda.so.1 \
		$(BUILD)/sim/libnvidia-ml.so.1
	@mkdir -p $(@D)
	$(CC) $(CSTD) $(CFLAGS) -isystem $(CUDA_INC) $< -o $@ $(LDSTD) $(BUILD)/sim/libcuda.so.1 \
		$(BUILD)/sim/libnvidia-ml.so.1
$(BUILD)/rm/%: ../tests/native/rm/%.c ../tests/native/rm/client.h ../tests/native/interposer/check.h $(RM_HEADERS)
	@mkdir -p $(@D)
	$(CC) $(CSTD) $(CFLAGS) -isystem $(CUDA_INC) $< -o $@ $(LDSTD)
$(BUILD)/conformance/%: ../tests/native/interposer/%.c ../tests/native/interposer/check.h $(BUILD)/sim/libcuda.so.1 \
		$(BUILD)/sim/libnvidia-ml.so.1
	@mkdir -p $(@D)
	$(CC) $(CSTD) $(CFLAGS) -isystem $(CUDA_INC) $< -o $@ $(LDSTD) $(BUILD)/sim/libcuda.so.1 \
		$(BUILD)/sim/libnvidia-ml.so.1 -ldl
$(BUILD)/compute/%: ../tests/native/compute/%.c ../tests/native/interposer/check.h include/hami_hpc.h $(BUILD)/sim/libcuda.so.1
	@mkdir -p $(@D)
	$(CC) $(CSTD) $(CFLAGS) -isystem $(CUDA_INC) $< -o $@ $(LDSTD) $(BUILD)/sim/libcuda.so.1

$(BUILD)/bench/%: ../benchmarks/%.c ../tests/native/interposer/check.h $(BUILD)/sim/libcuda.so.1
	@mkdir -p $(@D)
	$(CC) $(CSTD) $(CFLAGS) -isystem $(CUDA_INC) $< -o $@ $(LDSTD) $(BUILD)/sim/libcuda.so.1

# Programs that evade the interposer, and an honest one. None with sanitizers, which no static program can have, and no
# static one where there is no static libc (a package of its own on some distributions).
STATIC_LIBC := $(wildcard $(shell $(CC) -print-file-name=libc.a))
EVADER_SRC := $(filter-out $(if $(STATIC_LIBC),,%/static.c),$(wildcard ../tests/native/evaders/*.c))
EVADERS := $(patsubst ../tests/native/evaders/%.c,$(BUILD)/evaders/%,$(EVADER_SRC))
EVADER_DRIVER := $(BUILD)/sim/libcuda.so.1 -ldl
$(BUILD)/evaders/static: EVADER_DRIVER := -static $(SIM_CORE) $(SIM_CUDA)
$(BUILD)/evaders/raw $(BUILD)/evaders/dlmopen: EVADER_DRIVER := -ldl
.PHONY: evaders
evaders: $(EVADERS) $(BUILD)/evaders/libpreloaded_first.so
$(if $(SAN),,conformance: evaders)
$(BUILD)/evaders/%: ../tests/native/evaders/%.c ../tests/native/evaders/evader.h include/hami_contract.h \
		$(BUILD)/sim/libcuda.so.1
	@mkdir -p $(@D)
	$(CC) $(CSTD) $(CFLAGS) -isystem $(CUDA_INC) $< -o $@ $(LDSTD) $(EVADER_DRIVER)
$(BUILD)/evaders/libpreloaded_first.so: ../tests/native/evaders/preloaded_first.c ../tests/native/evaders/evader.h
	@mkdir -p $(@D)
	$(CC) $(CSTD) $(CFLAGS) -isystem $(CUDA_INC) -DAS_LIBRARY -shared -fPIC $< -o $@ $(LDSTD) -ldl

# The parts that know nothing of the driver, from the inside; less patient than in a job.
$(BUILD)/unit/%: ../tests/native/unit/%.c ../tests/native/unit/check.h $(UNIT_PARTS) $(UNIT_HEADERS)
	@mkdir -p $(@D)
	$(CC) $(CSTD) $(CFLAGS) $(UNIT_FLAGS) $< $(UNIT_PARTS) -o $@ $(LDSTD)

# These include what they test, the first with a libcuda of its own.
$(BUILD)/unit/a_capture_waits_for_its_own_gpu $(BUILD)/unit/a_context_has_the_number_of_its_groups: interposer/limits/outstanding.c interposer/limits/known.c interposer/base/lock.c
$(BUILD)/unit/the_gate_measures_each_context: interposer/limits/gate.c interposer/limits/known.c interposer/base/lock.c
$(BUILD)/unit/a_thread_that_ends_inside_a_hold_leaves_it: interposer/limits/hold.c
$(BUILD)/unit/timeslices_of_copies_hold_though_groups_go: interposer/limits/channels.c
$(BUILD)/unit/a_hint_holds_the_gpu_until_the_next_launch: interposer/limits/placeholder.c
$(BUILD)/unit/what_waits_for_all_ends_a_placeholder: interposer/hooks/sync.c
$(BUILD)/unit/clients_of_an_mps_server_name_its_group: interposer/driver/rm_objects.c interposer/base/lock.c
$(BUILD)/unit/segments_of_pools_are_known: interposer/driver/movable.c interposer/limits/trim.c interposer/base/lock.c

# The same inputs each time; a crash leaves its input beside the log and says how to run it again.
#   make fuzz FUZZ_SECONDS=600
.PHONY: fuzz fuzzers
fuzzers: $(FUZZ)
$(BUILD)/fuzz/%: ../tests/native/unit/%.c ../tests/native/unit/check.h $(UNIT_PARTS) $(UNIT_HEADERS)
	@mkdir -p $(@D)
	clang -std=gnu11 -D_GNU_SOURCE -pthread $(WARN) -O1 -g $(UNIT_FLAGS) -UHAMI_LOCK_PATIENCE_MS \
		-DHAMI_LOCK_PATIENCE_MS=4 -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=all \
		$< $(REGION_PARTS) $(addprefix interposer/arbitration/,level.c mean.c parts.c rounds.c slice.c terms.c) -o $@
fuzz: fuzzers
	@for f in $(FUZZ); do $$f -seed=1 -max_total_time=$(FUZZ_SECONDS) -max_len=512 -timeout=10 -artifact_prefix=$(BUILD)/fuzz/ \
		2>$$f.log || { tail -n 40 $$f.log; exit 1; }; tail -n 1 $$f.log; done

# With a sanitizer: the same tests on that build, less those that only take long.
INTERPOSER_TESTS := $(addprefix ../tests/native/test_,interposer.py interposer_units.py compute.py latency.py announced.py \
	trace_times.py mig_parts.py swap.py swap_ends.py swap_pools.py \
	$(if $(findstring address,$(SAN)),slices_in_one_process.py max_processes.py mps_turns.py))
SLOW_TESTS := any_usage_record or rests_while or two_ or tenants or shares_follow or paused_tenant
# Of the tests of moved memory those that move much of it, or wait. All were run with both sanitizers.
SLOW_TESTS += or each_family or calls_wait_while or said_to_be_away or room_on_the_gpu or away_needs_no_room or \
	cannot_be_moved_says or record_does_not_allow or child_of_a_program or made_while_memory_is_away or \
	call_of_it_waits or not_begun_waits or middle_of_a_move_in or kernel_such_segments_stay or need_the_kernel_has_none
SLOW_TESTS += or (whatever_of_them_is_free and not 64) or kernel_does_not_reach or room_for_nothing_else or \
	a_program_says_while or what_stays_is_counted or refused_on_the_way_back_only
SLOW_TESTS += $(if $(findstring thread,$(SAN)),or kernel_that_does_not_end or killed_while_away or without_a_context \
	or while_its_memory_is_copied or whatever_of_them_is_free or come_back_when_the_gpu_has_room)
# GCC 12's address sanitizer may hold its allocator's lock in a child forked beside threads: the child's calloc hangs.
NOT_HERE := $(SLOW_TESTS)$(if $(findstring address,$(SAN)), or a_forked_child_has_a_table)
$(if $(SAN),test: test-interposer)
.PHONY: test-interposer
test-interposer: all
	HAMI_TEST_BUILD=$(BUILD) $(PYTHON) -m pytest -q -p no:cacheprovider -n 4 --dist loadscope $(INTERPOSER_TESTS) -k "not ($(NOT_HERE))"

# The library in Python itself, so that the sanitizer has to be there before Python. Not with SAN=thread: no threads.
test: $(if $(findstring address,$(SAN)),test-arbitration)
.PHONY: test-arbitration
test-arbitration: $(ARBITRATION)
	HAMI_TEST_BUILD=$(BUILD) $(if $(SAN),LD_PRELOAD="$$($(CC) -print-file-name=libasan.so) \
		$$($(CC) -print-file-name=libubsan.so)" ASAN_OPTIONS=detect_leaks=0 \
		UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1 )$(PYTHON) -m pytest -q -p no:cacheprovider \
		../tests/native/test_arbitration.py ../tests/native/test_use.py ../tests/native/test_budget.py ../tests/native/test_forecast.py \
		../tests/native/test_slices_in_step.py
