# SPDX-License-Identifier: Apache-2.0
"""hami-hpc-watch after slurmstepd was killed, where another process than init gets what that leaves."""

from __future__ import annotations

import subprocess
import sys

from conformance import BUILD

# As a container's first process. What it starts starts the watch and is killed; it keeps the watch's standard input
# open, as a process does that slurmstepd has forked. Prints the state of its own program.
SUPERVISOR = r"""
import ctypes, os, re, signal, subprocess, sys, time

def status(pid, pattern):
    return re.search(pattern, open(f"/proc/{pid}/status").read())[1]

ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER
own, (read, write) = subprocess.Popen(["sleep", "600"]), os.pipe()
start = ["sh", "-c", 'exec 3<&0; "$@" <&3 3<&- & echo $!; wait', "sh", *sys.argv[1:]]
slurmstepd = subprocess.Popen(start, stdin=read, stdout=subprocess.PIPE)
watch = int(slurmstepd.stdout.readline())
while not int(status(watch, "SigBlk:\t(.*)"), 16):
    time.sleep(0.01)
os.write(write, b"%d\n" % own.pid)
own.send_signal(signal.SIGSTOP)
slurmstepd.kill()
slurmstepd.wait()
assert int(status(watch, "PPid:\t(.*)")) == os.getpid()
os.kill(watch, signal.SIGTSTP)
time.sleep(1)
print(status(own.pid, "State:\t(.)"))
own.kill()
os.kill(watch, signal.SIGKILL)
"""


def test_programs_of_others_stay_stopped() -> None:
    words = (sys.executable, "-c", SUPERVISOR, str(BUILD / "hami-hpc-watch"), "--job", "7", "--program", "/bin/true")
    done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, check=True, text=True)
    assert done.stdout == "T\n"
