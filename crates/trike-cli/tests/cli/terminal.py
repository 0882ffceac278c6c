"""Talks to a command through a terminal: terminal.py LINE... -- COMMAND ARG...

Waits for the prompt, or a question, before each line, prints everything that the terminal showed, and exits as the command did.
A prompt that does not come within a minute is a failure.
"""

import os
import pty
import re
import select
import sys
import time

split = sys.argv.index("--")
lines, command = sys.argv[1:split], sys.argv[split + 1 :]
pid, terminal = pty.fork()
if pid == 0:
    os.environ["TERM"] = "xterm"
    os.execv(command[0], command)
shown = b""
# What moves the cursor and sets colours.
CODES = re.compile(rb"\x1b\[[0-9;?]*[A-Za-z]|\r")


def read(until, start):
    """Reads until the text shown since `start` ends with `until`, or to the end when that is None."""
    global shown
    deadline = time.monotonic() + 60
    while until is None or not CODES.sub(b"", shown[start:]).endswith(until):
        if not select.select([terminal], [], [], max(0, deadline - time.monotonic()))[0]:
            sys.exit(f"no {until!r} within a minute; shown: {shown!r}")
        try:
            data = os.read(terminal, 4096)
        except OSError:
            # Linux says so when the other side is closed.
            data = b""
        if not data:
            if until is None:
                return
            sys.exit(f"the command ended without {until!r}; shown: {shown!r}")
        shown += data


for line in lines:
    read((b"> ", b"[y/N] "), len(shown))
    # The byte 3 is Ctrl-C, which a terminal turns into a signal.
    os.write(terminal, line.encode() + (b"" if line == "\x03" else b"\n"))
read(None, 0)
_, status = os.waitpid(pid, 0)
sys.stdout.buffer.write(shown)
sys.exit(os.waitstatus_to_exitcode(status))
