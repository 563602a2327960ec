"""Ctrl-C while the command line loads its modules: the process ends without a traceback.

The package imports this module first.
"""

import os
import signal
import sys
import threading


def is_command() -> bool:
    """Returns whether this process is a command of ``tidemill``."""
    name = os.path.basename(sys.argv[0]) if sys.argv else ""
    module = zip(sys.orig_argv, sys.orig_argv[1:], strict=False)
    return name in ("tidemill", "tidemill.exe") or ("-m", "tidemill.cli") in module


def loaded() -> None:
    """Makes Ctrl-C a ``KeyboardInterrupt`` again, because the modules are loaded."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)


if is_command() and threading.current_thread() is threading.main_thread():
    signal.signal(signal.SIGINT, signal.SIG_DFL)
