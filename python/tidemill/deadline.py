"""Ends calls that take too long: a thread that interrupts the thread of the call."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from tidemill._native import Watched


class Overdue(BaseException):
    """Raised in a function whose time is up. No ``except Exception`` catches it."""


class Watch:
    """Watches the calls of threads; its own thread begins with the first one.

    Nobody tells it of calls: it looks at their numbers, eight times in what a call may take. So one
    is interrupted when its time is up, or a quarter of it later at most.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._watched: list[Watched] = []
        self._come = threading.Event()
        self._thread: threading.Thread | None = None

    def look(self, watched: Watched) -> None:
        """Looks at a thread's calls from now on."""
        with self._lock:
            self._watched.append(watched)
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._watch, name="tidemill-deadline", daemon=True
                )
                self._thread.start()
        self._come.set()

    def _watch(self) -> None:
        # By thread: the call that was seen last, and when it is interrupted.
        seen: dict[Watched, tuple[int, float]] = {}
        while True:
            self._come.clear()
            with self._lock:
                limits = {one: one.limit() for one in self._watched}
                self._watched = [one for one, limit in limits.items() if limit is not None]
            seen = {one: seen.get(one, (0, 0.0)) for one in self._watched}
            now = time.monotonic()
            looks = [limit / 8e6 for limit in limits.values() if limit is not None]
            for one in self._watched:
                call, limit = one.running() or (0, 0)
                last, until = seen[one]
                if call != last:
                    seen[one] = (call, now + limit / 1e6)
                elif call and now >= until:
                    # Again and again: a function may catch it and go on.
                    one.interrupt(call, Overdue)
                    seen[one] = (call, now + 0.1)
                    looks.append(0.1)
            self._come.wait(max(min(looks), 0.001) if looks else None)


#: Watches all calls of this process.
WATCH: Final = Watch()
