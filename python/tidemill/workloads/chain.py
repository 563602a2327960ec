"""A chain of procedures, each of which feeds the next one."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from typing import Any

from tidemill.app import App
from tidemill.stream import Stream


def app(options: Mapping[str, Any]) -> App:
    """The app; ``length`` is that of the benchmark.

    >>> [handler.name for handler in app({"length": 3}).handlers]
    ['p1', 'p2', 'p3']
    """
    made = App("chain")
    streams = [made.stream(f"s{number}", n=int) for number in range(options.get("length", 1) + 1)]

    def link(to: Stream) -> Callable[[Any, Any], None]:
        def body(tx: Any, given: Any) -> None:
            for e in given:
                tx.emit(to, n=e.n + 1)

        return body

    for number, (taken, to) in enumerate(itertools.pairwise(streams), 1):
        made.procedure(taken, name=f"p{number}", emits=[to])(link(to))
    return made
