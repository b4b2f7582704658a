# SPDX-License-Identifier: Apache-2.0
"""What accounting reads: sacct and pyslurm, Slurm's notations, and the usage records of the nodes."""
