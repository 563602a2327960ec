"""The workloads that run on several processes: their apps, with a way to fill their tables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tidemill.app import App
from tidemill.table import Table
from tidemill.workloads import hotel, movie, tpcc, ycsb

#: The streams that fill tables are called so, and then as the table.
FILLING = "filling."


def app(workload: str, options: Mapping[str, Any]) -> App:
    """The app of a workload.

    >>> [stream.name for stream in app("hotel", {}).streams if stream.origin == "input"][-1]
    'filling.booking'
    """
    match workload:
        case "ycsb-t":
            # An account that nobody has used has what accounts begin with.
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
    """The app with a stream for each table, whose events are rows that it begins with. The engine
    keeps indexes."""
    for table in [table for table in made.tables.values() if table.keeps is None]:
        _fill(made, table)
    return made


def _fill(made: App, table: Table) -> None:
    columns = {column.name: column.ty for column in table.schema.columns}
    rows = made.stream(f"{FILLING}{table.name}", schema=columns)

    @made.transaction(rows, name=f"fill.{table.name}")
    def fill(tx: Any, e: Any) -> None:
        table.insert({name: getattr(e, name) for name in columns})
