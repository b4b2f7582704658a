# SPDX-License-Identifier: Apache-2.0
# hami-hpc-watch, a process of root's in each step whose device memory can be moved. It needs libc alone.
WATCH := $(BUILD)/hami-hpc-watch
WATCH_OBJ := $(patsubst %.c,$(BUILD)/%.o,$(wildcard watch/*.c))

all: $(WATCH)
$(WATCH_OBJ): $(BUILD)/%.o: %.c $(wildcard watch/*.h)
	@mkdir -p $(@D)
	$(CC) $(CSTD) $(CFLAGS) -c $< -o $@
$(WATCH): $(WATCH_OBJ)
	$(CC) $(CFLAGS) $^ -o $@ $(LDSTD)
