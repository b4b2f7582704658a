# SPDX-License-Identifier: Apache-2.0
# libhami-hpc.so: the interposer.
INTERPOSER := $(BUILD)/libhami-hpc.so
INTERPOSER_SRC := $(wildcard interposer/*.c) interposer/dlsym.S
INTERPOSER_OBJ := $(patsubst interposer/%,$(BUILD)/interposer/%.o,$(INTERPOSER_SRC))
INTERPOSER_FLAGS := -fPIC -fvisibility=hidden -Iinclude -isystem $(CUDA_INC)

all: $(INTERPOSER)

$(BUILD)/interposer/%.o: interposer/% $(wildcard interposer/*.h) interposer/hooks.def include/hami_contract.h
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(INTERPOSER_FLAGS) -c $< -o $@

$(INTERPOSER): $(INTERPOSER_OBJ) interposer/exports.map
	$(CC) $(CFLAGS) -shared -o $@ $(INTERPOSER_OBJ) -Wl,--version-script=interposer/exports.map \
		-Wl,-z,defs,-z,relro,-z,now,-soname,libhami-hpc.so $(LDFLAGS) -lpthread -ldl
