# SPDX-License-Identifier: Apache-2.0
"""`python -m hami_hpc.cli` is hami-hpc."""

from hami_hpc.cli import main

main(prog_name="hami-hpc")
