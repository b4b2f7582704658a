# SPDX-License-Identifier: Apache-2.0
# Sets $python: the interpreter of the installation, else of the checkout that these files lie in.
python=/usr/lib/hami-hpc/venv/bin/python3
[ -x "${0%/*}/../.venv/bin/python3" ] && python=${0%/*}/../.venv/bin/python3
