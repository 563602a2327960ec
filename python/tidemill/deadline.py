"""Ends calls that take too long: a thread that interrupts the thread of the call."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from tidemill._native import Watched


#: Seconds between two interruptions of one call, and between two looks at least.
AGAIN: Final = 0.1
LOOK_MIN: Final = 0.001


class Overdue(BaseException):
    """Raised in a function whose time is up. No ``except Exception`` catches it."""


class Calls:
    """The calls of threads, as somebody sees them who looks at them now and then.

    Nobody tells of calls: their numbers are looked at, eight times in what a call may take. So one
    is interrupted when its time is up, or a quarter of it later at most; looks are a millisecond
    apart at least.
    """

    def __init__(self) -> None:
        # By thread: the call that was seen last, and when it is interrupted.
        self._seen: dict[Watched, tuple[int, float]] = {}

    def add(self, watched: Watched) -> None:
        """A thread's calls are looked at from now on."""
        self._seen.setdefault(watched, (0, 0.0))

    def look(self, now: float) -> float | None:
        """Interrupts those whose time is up; how long to wait before the next look, if there is
        something to look at."""
        limits = {one: one.limit() for one in self._seen}
        looks: list[float] = []
        for one, of in limits.items():
            if of is None:
                del self._seen[one]
                continue
            looks.append(of / 8e6)
            call, limit = one.running() or (0, 0)
            last, until = self._seen[one]
            if call != last:
                self._seen[one] = (call, now + limit / 1e6)
            elif call and now >= until:
                # Again and again: a function may catch it and go on.
                one.interrupt(call, Overdue)
                self._seen[one] = (call, now + AGAIN)
                looks.append(AGAIN)
        return max(min(looks), LOOK_MIN) if looks else None


class Watch:
    """Watches the calls of threads; its own thread begins with the first one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._calls = Calls()
        self._come = threading.Event()
        self._thread: threading.Thread | None = None

    def look(self, watched: Watched) -> None:
        """Looks at a thread's calls from now on."""
        with self._lock:
            self._calls.add(watched)
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._watch, name="tidemill-deadline", daemon=True
                )
                self._thread.start()
        self._come.set()

    def _watch(self) -> None:
        while True:
            self._come.clear()
            with self._lock:
                wait = self._calls.look(time.monotonic())
            self._come.wait(wait)


#: Watches all calls of this process.
WATCH: Final = Watch()
