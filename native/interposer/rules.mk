# SPDX-License-Identifier: Apache-2.0
# libhami-hpc.so, the interposer, and the conformance programs that show what it does.
INTERPOSER := $(BUILD)/libhami-hpc.so
INTERPOSER_SRC := $(wildcard interposer/*.c) interposer/dlsym.S
INTERPOSER_OBJ := $(patsubst interposer/%,$(BUILD)/interposer/%.o,$(INTERPOSER_SRC))
INTERPOSER_FLAGS := -fPIC -fvisibility=hidden -Iinclude -isystem $(CUDA_INC)
CONFORMANCE := $(patsubst ../tests/native/interposer/%.c,$(BUILD)/conformance/%,$(wildcard ../tests/native/interposer/*.c))

all: $(INTERPOSER) conformance

$(BUILD)/interposer/%.o: interposer/% $(wildcard interposer/*.h) interposer/hooks.def include/hami_contract.h
	@mkdir -p $(@D)
	$(CC) $(CSTD) $(CFLAGS) $(INTERPOSER_FLAGS) -c $< -o $@

$(INTERPOSER): $(INTERPOSER_OBJ) interposer/exports.map
	$(CC) $(LDSTD) -shared -o $@ $(INTERPOSER_OBJ) -Wl,--version-script=interposer/exports.map \
		$(if $(SAN),,-Wl$(comma)-z$(comma)defs) -Wl,-z,relro,-z,now,-soname,libhami-hpc.so -ldl

# Linked against the simulation for its names only: on a GPU node the loader finds the driver's libraries instead.
.PHONY: conformance
conformance: $(CONFORMANCE)
$(BUILD)/conformance/%: ../tests/native/interposer/%.c ../tests/native/interposer/check.h $(BUILD)/sim/libcuda.so.1 \
		$(BUILD)/sim/libnvidia-ml.so.1
	@mkdir -p $(@D)
	$(CC) $(CSTD) $(CFLAGS) -isystem $(CUDA_INC) $< -o $@ $(LDSTD) $(BUILD)/sim/libcuda.so.1 \
		$(BUILD)/sim/libnvidia-ml.so.1 -ldl
