# SPDX-License-Identifier: Apache-2.0
"""What `hami-hpc render` writes for Slurm: the lines, the files, and how they lie beside a site's own."""
