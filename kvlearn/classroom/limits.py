"""Run a command with limits on memory, processes, files, as an unprivileged user: a script of its own.

    python limits.py '{"RLIMIT_NOFILE": 512}' UID COMMAND...      UID - = stay who you are

It stands between the sandbox and the kernel: what it sets, no program that it starts can undo. Standard
library alone, and run by its path, so that nothing is imported before the limits hold.
"""

import ctypes
import json
import os
import platform
import resource
import struct
import sys

# Calls that a notebook does without, by the kernel's numbers: walls of its own (namespaces, mounts), memory
# that belongs to no process (memfd, System V), notes to other processes of its user (keys, ptrace), and parts
# of the kernel where faults are found again and again.
REFUSED = {
    "x86_64": {
        "unshare": 272, "setns": 308, "mount": 165, "umount2": 166, "pivot_root": 155, "chroot": 161,
        "memfd_create": 319, "shmget": 29, "semget": 64, "msgget": 68, "add_key": 248, "request_key": 249,
        "keyctl": 250, "ptrace": 101, "process_vm_readv": 310, "process_vm_writev": 311, "bpf": 321,
        "perf_event_open": 298, "userfaultfd": 323, "io_uring_setup": 425,
    },
    "aarch64": {
        "unshare": 97, "setns": 268, "mount": 40, "umount2": 39, "pivot_root": 41, "chroot": 51,
        "memfd_create": 279, "shmget": 194, "semget": 190, "msgget": 186, "add_key": 217, "request_key": 218,
        "keyctl": 219, "ptrace": 117, "process_vm_readv": 270, "process_vm_writev": 271, "bpf": 280,
        "perf_event_open": 241, "userfaultfd": 282, "io_uring_setup": 425,
    },
}  # fmt: skip
ARCHITECTURE = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}  # AUDIT_ARCH_...
CLONE = {"x86_64": 56, "aarch64": 220}
CLONE3, NEW_NAMESPACES = 435, 0x7E020000  # CLONE_NEWUSER and the like
LOAD, IF_EQUAL, IF_AT_LEAST, IF_ANY_BIT, RETURN = (
    0x20,
    0x15,
    0x35,
    0x45,
    0x06,
)  # BPF_LD | BPF_W | BPF_ABS, ...
ALLOW, REFUSE, NO_SUCH_CALL = 0x7FFF0000, 0x00050001, 0x00050026  # SECCOMP_RET_ERRNO with EPERM, ENOSYS
PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 38, 22, 2


def refusing(machine: str) -> list[tuple[int, int, int, int]]:
    """The kernel's filter of calls (seccomp, classic BPF): (code, jump if true, if false, number)."""
    calls = sorted(REFUSED[machine].values())
    end = len(calls) + 5  # lines from the first comparison to `allow`; `refuse` is behind it
    lines = [
        (LOAD, 0, 0, 4),
        (IF_EQUAL, 1, 0, ARCHITECTURE[machine]),
        (RETURN, 0, 0, REFUSE),
        (LOAD, 0, 0, 0),
    ]
    lines.append((IF_AT_LEAST, end + 1, 0, 0x40000000))  # numbers of x32, an ABI of x86_64 that nobody uses
    lines += [(IF_EQUAL, end - place, 0, call) for place, call in enumerate(calls)]
    lines.append((IF_EQUAL, 0, 1, CLONE3))  # its flags lie in memory, where no filter looks: use clone
    lines.append((RETURN, 0, 0, NO_SUCH_CALL))
    lines.append((IF_EQUAL, 0, 2, CLONE[machine]))
    lines += [(LOAD, 0, 0, 16), (IF_ANY_BIT, 1, 0, NEW_NAMESPACES)]  # the call's first argument
    return [*lines, (RETURN, 0, 0, ALLOW), (RETURN, 0, 0, REFUSE)]


def refuse_calls(machine: str) -> None:
    lines = refusing(machine)
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *line) for line in lines))
    program = struct.pack("HxxxxxxQ", len(lines), ctypes.addressof(code))  # struct sock_fprog
    libc = ctypes.CDLL(None, use_errno=True)
    for option, value, more in (
        (PR_SET_NO_NEW_PRIVS, 1, 0),
        (PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.c_char_p(program)),
    ):
        if libc.prctl(option, value, more, 0, 0):
            raise OSError(ctypes.get_errno(), "the kernel takes no filter of calls (seccomp)")


def be_ended_first() -> None:
    """If the machine runs out of memory, let Linux kill student code, not the grader."""
    try:
        with open("/proc/self/oom_score_adj", "w") as file:
            file.write("1000")
    except OSError:  # some containers do not allow it
        pass


def main(limits: str, uid: str, *command: str) -> None:
    be_ended_first()
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
    if platform.machine() in REFUSED:
        refuse_calls(platform.machine())
    os.execvp(command[0], command)


if __name__ == "__main__":
    main(*sys.argv[1:])
