"""Indexes: access to the rows of a table by other columns than its key."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tidemill import again
from tidemill.context import current, local
from tidemill.errors import ProgramError
from tidemill.ranges import check_alone, check_limit, with_prefix
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
        found: list[Any] = transaction.find(self, self._bound(key), None, None, False)
        return found

    def scan(
        self,
        start: object = None,
        end: object = None,
        *,
        prefix: object = None,
        limit: int | None = None,
        reverse: bool = False,
    ) -> Any:
        """Returns the rows of a range of the index, in its order.

        Args:
            start: The first value of the range, inclusive, or a tuple of values of the leading
                columns. The default is None, no bound.
            end: The value after the range, exclusive, in the same form. The default is None.
            prefix: The beginning of the indexed texts or bytes, instead of the bounds. For several
                columns it is a tuple of leading values, of which the last is such a beginning.
                The default is None.
            limit: The largest number of rows. The default is all.
            reverse: Whether the rows are in reverse order, so that a limit gives the last ones. The
                default is False.

        Returns:
            A list of rows.

        Raises:
            ProgramError: A bound has more values than the index has columns, both bounds and a
                prefix are given, or there is no transaction.

        Example:
            >>> import tidemill as tm
            >>> app = tm.App("shop")
            >>> items = app.table("items", key="id", id=int, price=int, ordered=True)
            >>> by_price = items.index("price", name="by_price")
            >>> @app.procedure
            ... def cheapest(tx):
            ...     return [item.id for item in by_price.scan(limit=1)]
            >>> @app.procedure
            ... def put(tx, id: int, price: int):
            ...     items.upsert(id=id, price=price)
            >>> with app.start() as mill:
            ...     mill.call(put, id=1, price=7)
            ...     mill.call(put, id=2, price=5)
            ...     mill.call(cheapest)
            [2]
        """
        check_limit(limit)
        transaction = current(f"{self} is read")
        if prefix is not None:
            check_alone(start, end)
            indexed = [self.entries.schema.find(str(self), c, here()) for c in self.columns]
            columns = [self.entries.schema.columns[column] for column in indexed]
            first, last = with_prefix(str(self), columns, prefix)
            return transaction.find(self, first, last, limit, reverse)
        bounds = [() if bound is None else self._bound(bound) for bound in (start, end)]
        return transaction.find(self, bounds[0], bounds[1], limit, reverse)

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
        raise ProgramError(f"{owner}: an index names a column twice", "name each one once", at)
    chosen = name or f"{table.name}.by_{'_'.join(columns)}"
    earlier = table.app.indexes.get(chosen)
    if again.interactive() and earlier is not None:
        again.refuse_running(table.app, "index", chosen, at)
        if (earlier.table, earlier.columns, earlier.unique) == (table, tuple(columns), unique):
            return earlier
        raise again.changed("index", chosen, at)
    table.app._name("table", chosen, table.app.tables.values(), at)
    both = [*indexed, *(c for c in table.key_columns if c not in indexed)]
    made = [Column(table.schema.columns[c].name, table.schema.columns[c].ty) for c in both]
    key = [column.name for column in (made[: len(indexed)] if unique else made)]
    keeps = {"index": {"of": table.id, "columns": indexed}}
    # Entries are in the partition of their rows where both keys begin with the same columns.
    # Elsewhere entries with equal values share a partition.
    prefix = table.partition_prefix
    if prefix is None or indexed[:prefix] != list(table.key_columns[:prefix]):
        prefix = len(indexed)
    # Imported here because that module imports this one.
    from tidemill.table import add_kept

    entries = add_kept(table.app, chosen, tuple(key), made, at, True, keeps, prefix)
    made_index = table.app.indexes[chosen] = Index(table, tuple(columns), entries, unique)
    return made_index
