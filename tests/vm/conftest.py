# SPDX-License-Identifier: Apache-2.0
"""Gives the tests here their machine."""

from from_packages import installed, machine

__all__ = ["installed", "machine"]
