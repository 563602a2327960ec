"""The workloads of ``tidemill bench`` as Python programs, by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tidemill.app import App
from tidemill_bench.workloads import chain, gs, hotel, leaderboard, movie, sl, tp, tpcc, ycsb

#: The function that makes each workload's app. Its arguments are whether functions are opaque, and
#: the options of the run.
WORKLOADS: dict[str, Callable[[bool, Mapping[str, Any]], App]] = {
    "sl": lambda opaque, _: sl.app(opaque),
    "gs": gs.app,
    "tp": lambda opaque, _: tp.app(opaque),
    # Its procedures are always functions.
    "leaderboard": lambda _, options: leaderboard.app(options),
    "ycsb-t": lambda opaque, _: ycsb.app(opaque),
    # The engine finds the rows of these functions by running them.
    "tpcc": lambda *_: tpcc.app(),
    "hotel": lambda *_: hotel.app(),
    "movie": lambda *_: movie.app(),
    "pe-triggers": lambda _, options: chain.app(options),
    "ee-triggers": lambda _, options: chain.app(options, inside=True),
}
