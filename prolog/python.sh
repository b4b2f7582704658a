# SPDX-License-Identifier: Apache-2.0
# Sets $python: the interpreter of the checkout that these files are in, else of the installation. The installation's path
# does not contain the link that make install changes, so that all modules of a run are of one installation.
python=${0%/*}/../.venv/bin/python3
if [ ! -x "$python" ]; then
	back=$PWD
	cd -P /usr/lib/hami-hpc/venv && python=$PWD/bin/python3
	cd "$back" 2>/dev/null || cd /
fi
