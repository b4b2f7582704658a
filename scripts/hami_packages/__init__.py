# SPDX-License-Identifier: Apache-2.0
"""Makes Debian packages, RPMs and tarballs of what `make install` installs (docs/install.md)."""
