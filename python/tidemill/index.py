"""Indexes: access to the rows of a table by other columns than its key."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tidemill.context import current, local
from tidemill.errors import ProgramError
from tidemill.limits import check_limit
from tidemill.source import here
from tidemill.types import Column

if TYPE_CHECKING:
    from tidemill.table import Table


class Index:
    """An ordered index of a table by some of its columns, which the engine maintains.

    ``index[value]`` is the list of the rows with this value. For several columns ``index[a, b]``
    gives the values of the leading columns. Functions that run with real values (``opaque=True``,
    procedures, triggers) can read an index. It does not contain rows with a null in one of its
    columns. :meth:`tidemill.Table.index` makes indexes.

    Example:
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
        #: The table in which the engine stores the index.
        self.entries = entries
        self.unique = unique
        #: The position of each key column of the indexed table among the columns of an entry.
        self.places = tuple(entries.schema.names.index(name) for name in table.key)

    def __getitem__(self, key: object) -> list[Any]:
        """Returns the rows with these values of the leading columns, in the index's order."""
        transaction = local.transaction or current(f"{self} is read")
        found: list[Any] = transaction.find(self, self._bound(key), None, None)
        return found

    def scan(self, start: object = None, end: object = None, *, limit: int | None = None) -> Any:
        """Returns the rows of a range of the index, in its order.

        Args:
            start: The first value of the range, inclusive, or a tuple of values of the leading
                columns. The default is None, no bound.
            end: The value after the range, exclusive, in the same form. The default is None.
            limit: The largest number of rows. The default is all.

        Returns:
            A list of rows.

        Raises:
            ProgramError: A bound has more values than the index has columns, or there is no
                transaction.
        """
        bounds = [() if bound is None else self._bound(bound) for bound in (start, end)]
        check_limit(limit)
        return current(f"{self} is read").find(self, bounds[0], bounds[1], limit)

    def _bound(self, key: object) -> tuple[object, ...]:
        values = key if isinstance(key, tuple) else (key,)
        if not values or len(values) > len(self.columns):
            raise ProgramError(
                f"{self} has the columns ({', '.join(self.columns)}), but {len(values)} values "
                "were given",
                "",
                here(),
            )
        return values

    def __repr__(self) -> str:
        return f"<index {self.entries.name}>"


def declare(table: Table, columns: Sequence[str], unique: bool, name: str | None, at: str) -> Index:
    """Declares an index of a table; :meth:`Table.index` calls it."""
    owner = f"table {table.name}"
    indexed = [table.schema.find(owner, column, at) for column in columns]
    for place in indexed:
        ty = table.schema.columns[place].ty
        if ty.kind in ("list", "any"):
            raise ProgramError(
                f"{owner}: '{table.schema.columns[place].name}' is {ty}, which can't be indexed",
                "",
                at,
            )
    if len(set(indexed)) < len(indexed):
        raise ProgramError(f"{owner}: an index has each column once", "", at)
    chosen = name or f"{table.name}.by_{'_'.join(columns)}"
    table.app._name("table", chosen, table.app.tables, at)
    both = [*indexed, *(c for c in table.key_columns if c not in indexed)]
    made = [Column(table.schema.columns[c].name, table.schema.columns[c].ty) for c in both]
    key = [column.name for column in (made[: len(indexed)] if unique else made)]
    keeps = {"index": {"of": table.id, "columns": indexed}}
    # Entries are in the partition of their rows where both keys begin with the same columns.
    # Elsewhere entries with equal values share a partition.
    prefix = table.partition_prefix
    if prefix is None or indexed[:prefix] != list(table.key_columns[:prefix]):
        prefix = len(indexed)
    entries = table.app._kept(chosen, tuple(key), made, at, True, keeps, prefix)
    return Index(table, tuple(columns), entries, unique)
