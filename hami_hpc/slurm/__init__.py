# SPDX-License-Identifier: Apache-2.0
"""Slurm's own commands and configuration files, as this machine has them."""
