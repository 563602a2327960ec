"""Indexes: the rows of a table by other columns than its key."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tidemill.context import current, local
from tidemill.errors import ProgramError
from tidemill.limits import check_limit
from tidemill.source import here

if TYPE_CHECKING:
    from tidemill.table import Table


class Index:
    """The rows of a table by some of their columns, which the engine keeps in order.

    Made by :meth:`tidemill.Table.index`. It is looked into by functions that run with real values
    (``opaque=True``, procedures, triggers). Rows with a null in one of the columns are not found.

    >>> import tidemill as tm
    >>> app = tm.App("people")
    >>> people = app.table("people", key="id", id=int, city=str)
    >>> by_city = people.index("city")
    >>> @app.procedure
    ... def move(tx, id: int, city: str):
    ...     people[id].city = city
    ...     return [row.id for row in by_city[city]]
    >>> with app.start() as mill:
    ...     mill.call(move, id=7, city="Rome"), mill.call(move, id=4, city="Rome")
    ([7], [4, 7])
    """

    def __init__(
        self, table: Table, columns: tuple[str, ...], entries: Table, unique: bool
    ) -> None:
        self.table = table
        self.columns = columns
        #: The table in which the engine keeps it.
        self.entries = entries
        self.unique = unique
        #: For each key column of the table, where entries have it.
        self.places = tuple(entries.schema.names.index(name) for name in table.key)

    def __getitem__(self, key: object) -> list[Any]:
        """The rows with these values, one for each leading column that is given, in order."""
        transaction = local.transaction or current(f"{self} is read")
        found: list[Any] = transaction.find(self, self._bound(key), None, None)
        return found

    def scan(self, start: object = None, end: object = None, *, limit: int | None = None) -> Any:
        """The rows whose columns are not before ``start`` and are before ``end``, in their order;
        without bound where it is None. A bound may be a tuple of the leading columns."""
        bounds = [() if bound is None else self._bound(bound) for bound in (start, end)]
        check_limit(limit)
        return current(f"{self} is read").find(self, bounds[0], bounds[1], limit)

    def _bound(self, key: object) -> tuple[object, ...]:
        values = key if isinstance(key, tuple) else (key,)
        if not values or len(values) > len(self.columns):
            raise ProgramError(
                f"{self} is by ({', '.join(self.columns)}), but {len(values)} values were given",
                "",
                here(),
            )
        return values

    def __repr__(self) -> str:
        return f"<index {self.entries.name}>"
