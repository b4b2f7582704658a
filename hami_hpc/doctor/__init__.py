# SPDX-License-Identifier: Apache-2.0
"""What `hami-hpc doctor` looks at. Every check reads and changes nothing, on the node or in Slurm."""
