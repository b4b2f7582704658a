# SPDX-License-Identifier: Apache-2.0
"""What the records held of the GPUs, and what that costs."""
