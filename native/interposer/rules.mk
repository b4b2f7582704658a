# SPDX-License-Identifier: Apache-2.0
# libhami-hpc.so, the interposer, and the conformance programs that show what it does.
INTERPOSER := $(BUILD)/libhami-hpc.so
INTERPOSER_SRC := $(wildcard interposer/*.c) interposer/dlsym.S
INTERPOSER_OBJ := $(patsubst interposer/%,$(BUILD)/interposer/%.o,$(INTERPOSER_SRC))
INTERPOSER_FLAGS := -fPIC -fvisibility=hidden -Iinclude -isystem $(CUDA_INC)
CONFORMANCE := $(patsubst ../tests/native/interposer/%.c,$(BUILD)/conformance/%,$(wildcard ../tests/native/interposer/*.c))

COMPUTE := $(patsubst ../tests/native/compute/%.c,$(BUILD)/compute/%,$(wildcard ../tests/native/compute/*.c))
UNIT := $(patsubst ../tests/native/unit/%.c,$(BUILD)/unit/%,$(wildcard ../tests/native/unit/*.c))
UNIT_OBJ := $(addprefix $(BUILD)/interposer/,duty.c.o table.c.o region.c.o)

all: $(INTERPOSER) conformance $(UNIT)

$(BUILD)/interposer/%.o: interposer/% $(wildcard interposer/*.h) interposer/hooks.def include/hami_contract.h
	@mkdir -p $(@D)
	$(CC) $(CSTD) $(CFLAGS) $(INTERPOSER_FLAGS) -c $< -o $@

$(INTERPOSER): $(INTERPOSER_OBJ) interposer/exports.map
	$(CC) $(LDSTD) -shared -o $@ $(INTERPOSER_OBJ) -Wl,--version-script=interposer/exports.map \
		$(if $(SAN),,-Wl$(comma)-z$(comma)defs) -Wl,-z,relro,-z,now,-soname,libhami-hpc.so -ldl

# Linked against the simulation for its names only: on a GPU node the loader finds the driver's libraries instead.
.PHONY: conformance
conformance: $(CONFORMANCE) $(COMPUTE)
$(BUILD)/conformance/%: ../tests/native/interposer/%.c ../tests/native/interposer/check.h $(BUILD)/sim/libcuda.so.1 \
		$(BUILD)/sim/libnvidia-ml.so.1
	@mkdir -p $(@D)
	$(CC) $(CSTD) $(CFLAGS) -isystem $(CUDA_INC) $< -o $@ $(LDSTD) $(BUILD)/sim/libcuda.so.1 \
		$(BUILD)/sim/libnvidia-ml.so.1 -ldl
$(BUILD)/compute/%: ../tests/native/compute/%.c ../tests/native/interposer/check.h $(BUILD)/sim/libcuda.so.1
	@mkdir -p $(@D)
	$(CC) $(CSTD) $(CFLAGS) -isystem $(CUDA_INC) $< -o $@ $(LDSTD) $(BUILD)/sim/libcuda.so.1

# The parts that know nothing of the driver, from the inside.
$(BUILD)/unit/%: ../tests/native/unit/%.c ../tests/native/unit/check.h $(UNIT_OBJ)
	@mkdir -p $(@D)
	$(CC) $(CSTD) $(CFLAGS) -Iinclude -Iinterposer $< -o $@ $(LDSTD) $(UNIT_OBJ)
