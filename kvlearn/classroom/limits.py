"""Run a command with limits on memory, processes, files, as an unprivileged user: a script of its own.

    python limits.py '{"RLIMIT_NOFILE": 512}' UID COMMAND...      UID - = stay who you are

It stands between the sandbox and the kernel: what it sets, no program that it starts can undo. Standard
library alone, and run by its path, so that nothing is imported before the limits hold.
"""

import json
import os
import resource
import sys


def main(limits: str, uid: str, *command: str) -> None:
    for name, most in json.loads(limits).items():
        which = getattr(resource, name)
        hard = resource.getrlimit(which)[1]
        if hard != resource.RLIM_INFINITY:
            most = min(most, hard)
        resource.setrlimit(which, (most, most))
    if uid != "-":
        # Groups first: once the user is gone, so is the right to change them.
        os.setgroups([])
        os.setresgid(int(uid), int(uid), int(uid))
        os.setresuid(int(uid), int(uid), int(uid))
    os.execvp(command[0], command)


if __name__ == "__main__":
    main(*sys.argv[1:])
