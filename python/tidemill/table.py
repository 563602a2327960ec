"""Tables: shared state, read and written inside handlers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from tidemill.context import current, local
from tidemill.errors import ProgramError
from tidemill.index import Index
from tidemill.index import declare as declare_index
from tidemill.keywords import known_keywords
from tidemill.names import check, of_rows
from tidemill.ranges import check_alone, check_limit, with_prefix
from tidemill.source import here
from tidemill.types import Column, Json, Schema

if TYPE_CHECKING:
    from tidemill.app import App
    from tidemill.entity import Entity
    from tidemill.stream import Stream


class Table:
    """A table of an app; inside a transaction ``table[key]`` is a row.

    For several key columns write ``table[a, b]``. A row that is missing reads as the defaults of
    its columns, and ``table[key].exists()`` tells whether it is there. Setting a column writes
    it: ``table[key].balance -= 5``. ``del table[key]`` deletes a row. ``key in table`` tells
    whether a row exists, in functions that run with real values.

    :meth:`tidemill.App.table` makes tables.
    """

    def __init__(
        self,
        app: App,
        id: int,
        name: str,
        key: tuple[str, ...],
        schema: Schema,
        partition_prefix: int | None,
        at: str,
        history: tuple[int | None, int | None] | None = None,
        ordered: bool = False,
        keeps: Json = None,
    ) -> None:
        self.app = app
        self.id = id
        self.name = name
        self.key = key
        self.schema = schema
        self.partition_prefix = partition_prefix
        self.at = at
        self.history = history
        self.ordered = ordered
        #: The index or window for which the engine writes the table; None where programs write it.
        self.keeps = keeps
        #: The kind of entity whose rows the table has, if it has any.
        self.entity: Entity | None = None
        #: The span of the history, where it was given as a text or timedelta.
        self.span: object = None
        #: A stream whose time is an int and whose handlers use the table, if there is one.
        self.counts: Stream | None = None
        owner = f"table {name}"
        if keeps is None:
            check(owner, "a row", schema.names, of_rows(), at)
        self.key_columns = tuple(schema.find(owner, column, at) for column in key)
        # The number of values of a key, which each access to a row compares.
        self._parts = len(key)

    def __getitem__(self, key: object) -> Any:
        """Returns the row with this key; for several key columns ``table[a, b]``."""
        values = key if isinstance(key, tuple) else (key,)
        if len(values) != self._parts:
            self.key_values(key)
        transaction = local.transaction or current(f"table {self.name} is read")
        return transaction.row(self, values)

    def __delitem__(self, key: object) -> None:
        """Deletes the row with this key, if it exists."""
        current(f"a row of table {self.name} is deleted").row(self, self.key_values(key)).delete()

    def __setitem__(self, key: object, value: object) -> None:
        raise ProgramError(
            f"a row of table {self.name} can't be assigned whole",
            f"write {self.name}.upsert(...), or set columns: {self.name}[key].column = value",
            here(),
        )

    def __contains__(self, key: object) -> bool:
        transaction = current(f"table {self.name} is read")
        return transaction.contains(self, self.key_values(key))

    def scan(
        self,
        start: object = None,
        end: object = None,
        *,
        prefix: object = None,
        limit: int | None = None,
        reverse: bool = False,
    ) -> Any:
        """Returns the rows of a range of keys, in key order.

        In a traced handler the result can only be aggregated:
        ``accounts.scan(10, 20).balance.sum()``. A function that runs with real values
        (``opaque=True``, procedures, triggers) gets a list of rows.

        Args:
            start: The first key of the range, inclusive. For several key columns it is a tuple of
                the leading ones. The default is None, no bound.
            end: The key after the range, exclusive, in the same form. The default is None.
            prefix: The beginning of the keys' texts or bytes, instead of the bounds. For several
                key columns it is a tuple of leading values, of which the last is such a beginning.
                The default is None.
            limit: The largest number of rows. The default is all.
            reverse: Whether the rows are in reverse order, so that a limit gives the last ones. The
                default is False. A traced handler can't give a limit or a reverse order.

        Returns:
            The rows, or an object to aggregate them with.

        Raises:
            ProgramError: The table was not declared with ``ordered=True``, a bound has more
                values than the key, both bounds and a prefix are given, or there is no transaction.

        Example:
            >>> import tidemill as tm
            >>> app = tm.App("shop")
            >>> items = app.table("items", key="id", id=int, price=int, ordered=True)
            >>> by_price = items.index("price", name="by_price")
            >>> @app.procedure
            ... def prices(tx, first: int):
            ...     return [item.price for item in items.scan(first, limit=2)]
            >>> @app.procedure
            ... def put(tx, id: int, price: int):
            ...     items.upsert(id=id, price=price)
            >>> with app.start() as mill:
            ...     for id in range(5):
            ...         mill.call(put, id=id, price=10 * id)
            ...     mill.call(prices, first=2)
            [20, 30]
        """
        if not self.ordered:
            raise ProgramError(
                f"table {self.name} can't be read by ranges: its keys are in no order",
                "declare it with ordered=True",
                here(),
            )
        check_limit(limit)
        transaction = current(f"table {self.name} is read")
        if prefix is not None:
            check_alone(start, end)
            columns = [self.schema.columns[column] for column in self.key_columns]
            first, last = with_prefix(f"table {self.name}", columns, prefix)
            return transaction.scan(self, first, last, limit, reverse)
        bounds = []
        for bound in (start, end):
            values = () if bound is None else bound if isinstance(bound, tuple) else (bound,)
            if len(values) > len(self.key):
                raise ProgramError(
                    f"table {self.name} has the key ({', '.join(self.key)}), but a bound with "
                    f"{len(values)} values was given",
                    "",
                    here(),
                )
            bounds.append(values)
        return transaction.scan(self, bounds[0], bounds[1], limit, reverse)

    @known_keywords
    def index(self, *columns: str, unique: bool = False, name: str | None = None) -> Index:
        """Declares an index of the table's rows by other columns than the key.

        Functions that run with real values can look rows up in it. The engine maintains it in a
        table of its own.

        Args:
            *columns: The names of the indexed columns, at least one.
            unique: Whether no two rows may have the same values in these columns. A transaction
                that would insert a second such row aborts. The default is False.
            name: The name of the index's table. The default is ``TABLE.by_COLUMNS``.

        Returns:
            The index.

        Raises:
            ProgramError: No column is given, a column is unknown or can't be indexed, or the name
                is taken.

        Example:
            >>> import tidemill as tm
            >>> app = tm.App("shop")
            >>> items = app.table("items", key="id", id=int, price=int, ordered=True)
            >>> by_price = items.index("price", name="by_price")
            >>> @app.procedure
            ... def at(tx, price: int):
            ...     return [item.id for item in by_price[price]]
            >>> with app.start() as mill:
            ...     mill.call(at, price=3)
            []
        """
        at = here()
        if not columns:
            raise ProgramError(
                f"table {self.name}: an index needs at least one column", "name one", at
            )
        if self.keeps is not None:
            raise ProgramError(
                f"table {self.name} belongs to the engine",
                "declare the index on a table of the app",
                at,
            )
        return declare_index(self, columns, unique, name, at)

    def __iter__(self) -> NoReturn:
        raise ProgramError(
            f"table {self.name} can't be iterated over in a transaction",
            "read rows by their keys, or a range with scan(); from outside use "
            "mill.table(...).rows()",
            here(),
        )

    def insert(self, row: Mapping[str, object] | None = None, /, **columns: object) -> Any:
        """Inserts a row; the transaction aborts when the row exists already.

        Args:
            row: Values by column, as a dict. The default is none.
            **columns: More values by column. They win over ``row``.

        Returns:
            The row. Columns without a value have their defaults.

        Raises:
            ProgramError: A column is unknown, a value is missing, or there is no transaction.

        Example:
            >>> import tidemill as tm
            >>> app = tm.App("shop")
            >>> items = app.table("items", key="id", id=int, price=int, ordered=True)
            >>> by_price = items.index("price", name="by_price")
            >>> @app.procedure
            ... def add(tx, id: int):
            ...     items.insert(id=id, price=3)
            >>> with app.start() as mill:
            ...     mill.call(add, id=1)
            ...     mill.table(items)[1]
            {'id': 1, 'price': 3}
        """
        values = columns if row is None else {**row, **columns}
        transaction = local.transaction or current(f"a row of table {self.name} is inserted")
        return transaction.insert(self, values, False)

    def upsert(self, row: Mapping[str, object] | None = None, /, **columns: object) -> Any:
        """Inserts a row, or replaces all columns of the row that exists.

        Args:
            row: Values by column, as a dict. The default is none.
            **columns: More values by column. They win over ``row``.

        Returns:
            The row. Columns without a value have their defaults.

        Raises:
            ProgramError: A column is unknown, a value is missing, or there is no transaction.

        Example:
            >>> import tidemill as tm
            >>> app = tm.App("shop")
            >>> items = app.table("items", key="id", id=int, price=int, ordered=True)
            >>> by_price = items.index("price", name="by_price")
            >>> @app.procedure
            ... def put(tx, id: int, price: int):
            ...     items.upsert(id=id, price=price)
            >>> with app.start() as mill:
            ...     mill.call(put, id=1, price=3)
            ...     mill.call(put, id=1, price=4)
            ...     mill.table(items)[1]
            {'id': 1, 'price': 4}
        """
        values = columns if row is None else {**row, **columns}
        transaction = local.transaction or current(f"a row of table {self.name} is upserted")
        return transaction.insert(self, values, True)

    def key_values(self, key: object) -> tuple[object, ...]:
        """Returns the values of the key columns that a subscript gives.

        Args:
            key: The value of the key column, or a tuple of the values of several.

        Returns:
            One value for each key column.

        Raises:
            ProgramError: The number of values differs from the number of key columns.
        """
        values = key if isinstance(key, tuple) else (key,)
        if len(values) != len(self.key):
            raise ProgramError(
                f"table {self.name} has the key ({', '.join(self.key)}), but {len(values)} "
                f"value{'s were' if len(values) != 1 else ' was'} given",
                f"write {self.name}[{', '.join(self.key)}]",
                here(),
            )
        return values

    def row_values(self, values: Mapping[str, object], at: str) -> dict[int, object]:
        """Returns the values of a new row by column index.

        Args:
            values: The values by the column's name.
            at: The line in the user's code, for errors.

        Returns:
            The values by the column's index.

        Raises:
            ProgramError: A column is unknown, or a value is missing.
        """
        owner = f"table {self.name}"
        found = {self.schema.find(owner, name, at): value for name, value in values.items()}
        for index, column in enumerate(self.schema.columns):
            in_key = index in self.key_columns
            if index not in found and (in_key or self.needs_value(index)):
                raise ProgramError(
                    f"a new row of {owner} needs a value for column '{column.name}'",
                    "it is part of the key"
                    if in_key
                    else "give one, or give the column a default, or make it tm.optional",
                    at,
                )
        return found

    def settable(self, name: str, at: str) -> int:
        """Returns the index of a column that can be set.

        Args:
            name: The column's name.
            at: The line in the user's code, for errors.

        Returns:
            The column's index.

        Raises:
            ProgramError: The column is unknown, or part of the key.
        """
        index = self.schema.find(f"table {self.name}", name, at)
        if index in self.key_columns:
            raise ProgramError(
                f"table {self.name}: '{name}' is part of the key and can't be set",
                "delete the row and insert another",
                at,
            )
        return index

    def needs_value(self, index: int) -> bool:
        """Returns whether a new row needs a value for a column outside the key."""
        from tidemill.types import MISSING

        column = self.schema.columns[index]
        return index not in self.key_columns and not column.nullable and column.default is MISSING

    def json(self) -> Json:
        """Returns the table in the form that the engine reads."""
        return {
            "name": self.name,
            "key": list(self.key_columns),
            "schema": self.schema.json(),
            "partition_prefix": self.partition_prefix,
            **({"history": self._history_json()} if self.history else {}),
            **({"ordered": True} if self.ordered else {}),
            **({"keeps": self.keeps} if self.keeps else {}),
            "at": self.at,
        }

    def _history_json(self) -> Json:
        time_us, versions = self.history or (None, None)
        given = {"time_us": time_us, "versions": versions}
        return {name: value for name, value in given.items() if value is not None}

    def __repr__(self) -> str:
        return f"<table {self.name}: {self.schema}>"


def add_kept(
    app: App,
    name: str,
    key: tuple[str, ...],
    columns: Sequence[Column],
    at: str,
    ordered: bool,
    keeps: Json,
    prefix: int | None = None,
) -> Table:
    """Adds a table to an app that only the engine writes."""
    app._name("table", name, app.tables.values(), at)
    schema = Schema(columns)
    made = Table(app, len(app.tables), name, key, schema, prefix, at, None, ordered, keeps)
    app.tables[name] = made
    return made
