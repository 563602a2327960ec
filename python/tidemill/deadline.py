"""Ends calls that take too long: a thread that interrupts the thread of the call."""

from __future__ import annotations

import ctypes
import math
import threading
import time
from typing import Final


class Overdue(BaseException):
    """Raised in a function whose time is up. No ``except Exception`` catches it."""


class Call:
    """A call under a deadline."""

    __slots__ = ("fired", "thread", "until")

    def __init__(self, thread: int, until: float) -> None:
        self.thread = thread
        self.until = until
        self.fired = False


class Watch:
    """Watches calls; its thread begins with the first one.

    Calls come and go far more often than one is overdue, so the thread is not told of each: it
    looks again when the first of those that it has seen would be, and is woken only when one begins
    that has less time, or when it has seen none.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._calls: dict[int, Call] = {}
        self._come = threading.Event()
        self._thread: threading.Thread | None = None
        #: When the thread looks again.
        self._looks = 0.0

    def begin(self, seconds: float) -> Call:
        """A call begins on this thread."""
        call = Call(threading.get_ident(), time.monotonic() + seconds)
        with self._lock:
            self._calls[call.thread] = call
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._watch, name="tidemill-deadline", daemon=True
                )
                self._thread.start()
            if call.until < self._looks:
                self._looks = call.until
                self._come.set()
        return call

    def end(self, call: Call) -> None:
        """It has ended; whoever was interrupted in the last moment swallows that here."""
        with self._lock:
            self._calls.pop(call.thread, None)
        if call.fired:
            try:
                # The interrupt is on its way, and comes between two instructions.
                for _ in range(1_000_000):
                    pass
            except Overdue:
                pass

    def _watch(self) -> None:
        while True:
            with self._lock:
                self._come.clear()
                now = time.monotonic()
                for call in self._calls.values():
                    if now >= call.until:
                        # Again and again: a function may catch it and go on.
                        call.fired = True
                        call.until = now + 0.1
                        _interrupt(call.thread)
                self._looks = min((c.until for c in self._calls.values()), default=math.inf)
            waits = None if self._looks == math.inf else max(self._looks - now, 0.001)
            self._come.wait(waits)


def _interrupt(thread: int) -> None:
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(Overdue))


#: Watches all calls of this process.
WATCH: Final = Watch()
