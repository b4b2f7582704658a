# SPDX-License-Identifier: Apache-2.0
"""`hami-hpc render`: the lines and files that it writes for Slurm, and the merges that it leaves to the site."""
