"""GrepSum: reads some large records and writes what they come to into the first."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tidemill.app import App
from tidemill.errors import SettingError
from tidemill.types import INT, TIMESTAMP, column

#: Values are less than this.
MODULUS = 1 << 20
#: Words of a record that nobody reads.
UNREAD = 14
#: Records of a transaction, at most.
LENGTH_MAX = 10


def app(opaque: bool, options: Mapping[str, Any]) -> App:
    """The app, traced or with opaque functions; ``length``, ``average``, ``computed`` and ``keys``
    are those of the benchmark.

    >>> [handler.path for handler in app(False, {"length": 3, "computed": 0.1}).handlers]
    ['traced', 'traced']
    """
    length, keys = options.get("length", 2), options.get("keys", 122_880)
    average = options.get("average", False)
    if not 1 <= length <= LENGTH_MAX:
        raise SettingError(f"--length {length}: it must be 1 to {LENGTH_MAX}")

    def written(total: Any, count: int) -> Any:
        return total // count if average else total % MODULUS

    made = App("gs")
    unread: dict[str, Any] = {f"p{word}": column(int, default=0) for word in range(1, UNREAD + 1)}
    records = made.table("records", key="id", id=int, value=column(int, default=0), **unread)
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

    return made
