# SPDX-License-Identifier: Apache-2.0
"""Reads sacct and pyslurm, Slurm's notations, and the nodes' usage records."""
