# SPDX-License-Identifier: Apache-2.0
# Simulated libcuda.so.1 and libnvidia-ml.so.1, and the commands that make and read a simulated machine.
SIM := $(BUILD)/sim
SIM_LIBS := $(SIM)/libcuda.so.1 $(SIM)/libnvidia-ml.so.1
SIM_KERNEL := $(SIM)/libhami-sim-kernel.so
SIM_MPS := $(SIM)/nvidia-cuda-mps-control $(SIM)/nvidia-cuda-mps-server
SIM_TOOLS := $(SIM)/sim-machine $(SIM)/sim-state $(SIM_MPS)
SIM_CORE := $(patsubst %.c,$(SIM)/obj/%.o,$(wildcard sim/core/*.c))
SIM_CUDA := $(patsubst %.c,$(SIM)/obj/%.o,$(wildcard sim/cuda/*.c))
SIM_NVML := $(patsubst %.c,$(SIM)/obj/%.o,$(wildcard sim/nvml/*.c))
SIM_KERNEL_OBJ := $(patsubst %.c,$(SIM)/obj/%.o,$(wildcard sim/kernel/*.c))
SIM_CFLAGS := $(CFLAGS) $(CSTD) -fPIC -fvisibility=hidden -isystem $(CUDA_INC) -iquote sim/core

.PHONY: sim test-sim
sim: $(SIM_LIBS) $(SIM_KERNEL) $(SIM_TOOLS) $(SIM)/libcuda.so $(SIM)/libnvidia-ml.so $(SIM)/models
all: sim

$(SIM)/obj/%.o: %.c
	@mkdir -p $(@D)
	$(CC) $(SIM_CFLAGS) -MMD -MP -c $< -o $@

$(SIM)/libcuda.so.1: $(SIM_CORE) $(SIM_CUDA) sim/cuda/libcuda.map
	$(CC) $(SOFLAGS) $(LDSTD) -Wl,-soname,libcuda.so.1 -Wl,--version-script,sim/cuda/libcuda.map \
		$(SIM_CORE) $(SIM_CUDA) -o $@

$(SIM)/libnvidia-ml.so.1: $(SIM_CORE) $(SIM_NVML) sim/nvml/libnvidia-ml.map
	$(CC) $(SOFLAGS) $(LDSTD) -Wl,-soname,libnvidia-ml.so.1 -Wl,--version-script,sim/nvml/libnvidia-ml.map \
		$(SIM_CORE) $(SIM_NVML) -o $@

# Preloaded behind an interposer: answers libcuda's ioctls.
$(SIM_KERNEL): $(SIM_CORE) $(SIM_KERNEL_OBJ) sim/kernel/libhami-sim-kernel.map
	$(CC) $(SOFLAGS) $(LDSTD) -Wl,-soname,libhami-sim-kernel.so -Wl,--version-script,sim/kernel/libhami-sim-kernel.map \
		$(SIM_CORE) $(SIM_KERNEL_OBJ) -o $@

$(SIM)/lib%.so: $(SIM)/lib%.so.1
	ln -sf $(notdir $<) $@

$(SIM)/sim-%: $(SIM)/obj/sim/tools/sim-%.o $(SIM_CORE)
	$(CC) $(LDSTD) $^ -o $@

# Programs of their own: nothing of the machine's state is in them.
$(SIM)/nvidia-cuda-mps-control: $(patsubst %,$(SIM)/obj/sim/mps/%.o,control daemon commands partitions)
	$(CC) $(LDSTD) $^ -o $@

$(SIM)/nvidia-cuda-mps-server: $(SIM)/obj/sim/mps/server.o
	$(CC) $(LDSTD) $^ -o $@

$(SIM)/models: $(wildcard sim/models/*.conf sim/models/*.tsv)
	@mkdir -p $@
	cp $^ $@/
	@touch $@

-include $(wildcard $(SIM)/obj/sim/*/*.d)

# One program for each behaviour; each makes a machine of its own.
SIM_TESTS := $(patsubst ../tests/native/sim/%.c,$(SIM)/tests/%,$(wildcard ../tests/native/sim/*.c))
$(SIM)/tests/%: ../tests/native/sim/%.c $(wildcard ../tests/native/sim/*.h) sim/cuda/api.def $(SIM_LIBS)
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(CSTD) -isystem $(CUDA_INC) $< $(LDSTD) $(SIM_LIBS) -ldl -o $@

# Those in kernel/ stand in an interposer's place, with the simulated kernel behind them.
SIM_KERNEL_TESTS := $(patsubst ../tests/native/sim/kernel/%.c,$(SIM)/tests/kernel/%,$(wildcard ../tests/native/sim/kernel/*.c))
$(SIM)/tests/kernel/%: ../tests/native/sim/kernel/%.c $(wildcard ../tests/native/sim/*.h ../tests/native/sim/kernel/*.h) \
		include/rm_abi.h include/uvm_abi.h sim/core/sim_rm.h $(SIM_LIBS) $(SIM_KERNEL)
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(CSTD) -isystem $(CUDA_INC) $< $(LDSTD) -Wl,--no-as-needed $(SIM_KERNEL) $(SIM_LIBS) -ldl -o $@

# What libcuda counts by itself without a kernel, and the kernel counts with it.
SIM_COUNTED := memory_is_counted_to_the_byte the_gpu_never_gives_more_than_it_has killed_processes_leave_nothing \
	physical_memory_is_mapped_and_shared another_process_opens_an_ipc_handle pools_arrays_and_graphs_are_counted \
	contexts_come_and_go a_forked_child_starts_over
SIM_COUNTED_TESTS := $(patsubst %,$(SIM)/tests/counted_by_the_kernel/%,$(SIM_COUNTED))
$(SIM)/tests/counted_by_the_kernel/%: ../tests/native/sim/%.c $(wildcard ../tests/native/sim/*.h) $(SIM_LIBS) $(SIM_KERNEL)
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(CSTD) -isystem $(CUDA_INC) $< $(LDSTD) -Wl,--no-as-needed $(SIM_KERNEL) $(SIM_LIBS) -ldl -o $@

# Leaks are not looked for: a test may end without taking down its contexts, whose memory the driver keeps for the
# process's life, as the real one does.
test: test-sim
test-sim: sim $(SIM_TESTS) $(SIM_KERNEL_TESTS) $(SIM_COUNTED_TESTS)
	@failed=0; for t in $(SIM_TESTS) $(SIM_KERNEL_TESTS) $(SIM_COUNTED_TESTS); do \
		if ASAN_OPTIONS=detect_leaks=0 LD_LIBRARY_PATH=$(SIM) SIM_BIN=$(SIM) timeout 120 $$t; then echo "ok    sim: $$(echo $${t#$(SIM)/tests/} | tr _/ '  ')"; \
		else echo "FAIL  sim: $$(echo $${t#$(SIM)/tests/} | tr _/ '  ')"; failed=1; fi; done; exit $$failed
