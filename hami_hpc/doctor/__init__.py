# SPDX-License-Identifier: Apache-2.0
"""The checks of `hami-hpc doctor`. They only read: no check changes the node or Slurm."""
