# SPDX-License-Identifier: Apache-2.0
"""Runs hami-hpc for `python -m hami_hpc.cli`."""

from hami_hpc.cli import main

main(prog_name="hami-hpc")
