"""The apps of workloads on several processes, with streams that fill their tables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tidemill.app import App
from tidemill.table import Table
from tidemill_bench.workloads import hotel, movie, tpcc, ycsb

#: The prefix of the streams that fill tables; the table's name follows.
FILLING = "filling."


def app(workload: str, options: Mapping[str, Any]) -> App:
    """Returns the app of a workload.

    >>> [stream.name for stream in app("hotel", {}).streams if stream.origin == "input"][-1]
    'filling.booking'
    """
    match workload:
        case "ycsb-t":
            # Accounts need no initial rows: an unused account has the initial balance.
            return ycsb.app(options.get("program") != "traced")
        case "tpcc":
            return filled(tpcc.app())
        case "hotel":
            return filled(hotel.app())
        case "movie":
            return filled(movie.app())
        case _:
            raise KeyError(workload)


def filled(made: App) -> App:
    """Adds a stream of initial rows for each table to the app, but not for indexes."""
    for table in [table for table in made.tables.values() if table.keeps is None]:
        _fill(made, table)
    return made


def _fill(made: App, table: Table) -> None:
    columns = {column.name: column.ty for column in table.schema.columns}
    rows = made.stream(f"{FILLING}{table.name}", schema=columns)

    @made.transaction(rows, name=f"fill.{table.name}")
    def fill(tx: Any, e: Any) -> None:
        table.insert({name: getattr(e, name) for name in columns})
