"""The first steps of a command, before it loads its modules. The package imports this module first.

Ctrl-C ends the process without a traceback. Commands that execute an app start again with a fixed
hash seed.
"""

import os
import signal
import sys
import threading

#: The commands that execute an app's functions.
SEEDED = ("run", "coordinator", "worker", "inspect", "schema")


def is_command() -> bool:
    """Returns whether this process is a command of ``tidemill``."""
    name = os.path.basename(sys.argv[0]) if sys.argv else ""
    module = zip(sys.orig_argv, sys.orig_argv[1:], strict=False)
    return name in ("tidemill", "tidemill.exe") or ("-m", "tidemill.cli") in module


def fix_hash_seed() -> None:
    """Starts a command that executes an app again, with a fixed hash seed.

    A seed that the user has set stays.

    Opaque functions may iterate over sets of texts, whose order depends on the seed. With one seed
    for all runs they give the same results.
    """
    if "PYTHONHASHSEED" not in os.environ and sys.argv[1:2] and sys.argv[1] in SEEDED:
        environment = {**os.environ, "PYTHONHASHSEED": "0"}
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], environment)


def loaded() -> None:
    """Makes Ctrl-C a ``KeyboardInterrupt`` again, because the modules are loaded."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)


if is_command() and threading.current_thread() is threading.main_thread():
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    fix_hash_seed()
