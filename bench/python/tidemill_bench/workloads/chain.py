"""A chain of procedures, each of which feeds the next one, or of triggers inside one."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from typing import Any

from tidemill.app import App
from tidemill.stream import Stream


def app(options: Mapping[str, Any], inside: bool = False) -> App:
    """Returns the app. With ``inside``, links are triggers. ``length`` is the benchmark's option.

    >>> [handler.name for handler in app({"length": 3}).handlers]
    ['p1', 'p2', 'p3']
    >>> [trigger.name for trigger in app({"length": 3}, inside=True).triggers]
    ['t2', 't3']
    """
    made = App("chain")
    streams = [made.stream(f"s{number}", n=int) for number in range(options.get("length", 1) + 1)]

    def link(to: Stream) -> Callable[[Any, Any], None]:
        def body(tx: Any, given: Any) -> None:
            for e in given:
                tx.emit(to, n=e.n + 1)

        return body

    def trigger(to: Stream) -> Callable[[Any, Any], None]:
        def body(tx: Any, e: Any) -> None:
            tx.emit(to, n=e.n + 1)

        return body

    for number, (taken, to) in enumerate(itertools.pairwise(streams), 1):
        if inside and number > 1:
            made.trigger(taken, name=f"t{number}", emits=[to])(trigger(to))
            continue
        made.procedure(taken, name=f"p{number}", emits=[to])(link(to))
    return made
