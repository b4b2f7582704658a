# SPDX-License-Identifier: Apache-2.0
# hami-hpc-measure, one tenant of `hami-hpc baseline`. It finds libcuda when it runs.
MEASURE := $(BUILD)/hami-hpc-measure

all: $(MEASURE)
$(MEASURE): measure/measure.c
	@mkdir -p $(@D)
	$(CC) $(CSTD) $(CFLAGS) -isystem $(CUDA_INC) $< -o $@ $(LDSTD) -ldl
