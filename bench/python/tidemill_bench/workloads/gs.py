"""GrepSum: reads some large records and writes a result into the first."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tidemill.app import App
from tidemill.errors import SettingError
from tidemill.types import INT, TIMESTAMP, column
from tidemill.window import sliding

#: The bound of the values.
MODULUS = 1 << 20
#: The words of padding in a record.
UNREAD = 14
#: The largest number of records in a transaction.
LENGTH_MAX = 10
#: The number of records whose windows a transaction reads.
WINDOW_KEYS = 100


def app(opaque: bool, options: Mapping[str, Any]) -> App:
    """Returns the app, traced or with opaque functions. ``length``, ``average``, ``computed``,
    ``keys`` and ``window`` are options of the benchmark.

    >>> [handler.path for handler in app(False, {"length": 3, "computed": 0.1}).handlers]
    ['traced', 'traced']
    """
    length, keys = options.get("length", 2), options.get("keys", 122_880)
    average, window = options.get("average", False), options.get("window")
    if not 1 <= length <= LENGTH_MAX:
        raise SettingError(f"--length {length}: it must be 1 to {LENGTH_MAX}")

    def written(total: Any, count: int) -> Any:
        return total // count if average else total % MODULUS

    made = App("gs")
    unread: dict[str, Any] = {f"p{word}": column(int, default=0) for word in range(1, UNREAD + 1)}
    history = None if window is None else (f"{window}us", None)
    records = made.table(
        "records", key="id", id=int, value=column(int, default=0), history=history, **unread
    )
    names = [f"key{number}" for number in range(length)]
    columns: dict[str, Any] = dict.fromkeys([*names, "least"], int)
    sums = made.stream("sums", time="at", at=TIMESTAMP, **columns)
    out = {"key": INT, "value": INT}

    @made.transaction(sums, name="sum", opaque=opaque, out=out)
    def add(tx: Any, e: Any) -> Any:
        rows = [records[getattr(e, name)] for name in names]
        total = rows[0].value
        for row in rows[1:]:
            total = total + row.value
        tx.require(total >= e.least, "the sum is too small")
        value = written(total, length)
        rows[0].value = value
        return {"key": e.key0, "value": value}

    if options.get("computed", 0) > 0:
        follows = made.stream("follows", time="at", at=TIMESTAMP, key0=int, least=int)

        @made.transaction(follows, opaque=opaque, out=out)
        def follow(tx: Any, e: Any) -> Any:
            value = records[e.key0].value
            key = value % keys
            row = records[key]
            total = value + row.value
            tx.require(total >= e.least, "the sum is too small")
            value = written(total, 2)
            row.value = value
            return {"key": key, "value": value}

    if window is not None:
        read = [f"key{number}" for number in range(WINDOW_KEYS)]
        columns = dict.fromkeys([*read, "least"], int)
        reads = made.stream("reads", time="at", at=TIMESTAMP, **columns)

        @made.transaction(reads, opaque=opaque, out=out)
        def look(tx: Any, e: Any) -> Any:
            total = 0
            for name in read:
                total += records[getattr(e, name)].over(sliding(f"{window}us")).value.sum()
            tx.require(total >= e.least, "the sum is too small")
            return {"key": e.key0, "value": total}

    return made
