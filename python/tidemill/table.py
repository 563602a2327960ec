"""Tables: shared state, read and written inside handlers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NoReturn

from tidemill.context import current, local
from tidemill.errors import ProgramError
from tidemill.limits import check_limit
from tidemill.names import check, of_rows
from tidemill.source import here
from tidemill.types import Json, Schema

if TYPE_CHECKING:
    from tidemill.app import App
    from tidemill.index import Index
    from tidemill.stream import Stream


class Table:
    """A table of an app. Inside a handler ``table[key]`` is a row; a missing row has its defaults.

    Made by :meth:`tidemill.App.table`.
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
        #: What the engine keeps in it, if programs may not write it.
        self.keeps = keeps
        #: The history, where it is given in hours or seconds.
        self.span: object = None
        #: A stream whose time is an int, where one writes the table.
        self.counts: Stream | None = None
        owner = f"table {name}"
        if keeps is None:
            check(owner, "a row", schema.names, of_rows(), at)
        self.key_columns = tuple(schema.find(owner, column, at) for column in key)
        # How many values a key has, at hand where every row is looked for.
        self._parts = len(key)

    def __getitem__(self, key: object) -> Any:
        """The row with this key; for several key columns ``table[a, b]``."""
        values = key if isinstance(key, tuple) else (key,)
        if len(values) != self._parts:
            self.key_values(key)
        transaction = local.transaction or current(f"table {self.name} is read")
        return transaction.row(self, values)

    def __delitem__(self, key: object) -> None:
        """Removes the row with this key, if it is there."""
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

    def scan(self, start: object = None, end: object = None, *, limit: int | None = None) -> Any:
        """The rows whose keys are not before ``start`` and are before ``end``, in key order;
        without bound where it is None. For several key columns a bound is a tuple of the leading
        ones.

        In a handler that is traced it can be aggregated: ``accounts.scan(10, 20).balance.sum()``.
        A function that runs with real values (``opaque=True``) gets the rows, at most ``limit``.
        """
        if not self.ordered:
            raise ProgramError(
                f"table {self.name} can't be read by ranges: its keys are in no order",
                "declare it with ordered=True",
                here(),
            )
        check_limit(limit)
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
        return current(f"table {self.name} is read").scan(self, bounds[0], bounds[1], limit)

    def index(self, *columns: str, unique: bool = False, name: str | None = None) -> Index:
        """An index: the table's rows by these columns, for functions that run with real values.

        The engine keeps it in a table of its own, ``TABLE.by_COLUMNS`` unless ``name`` says
        otherwise. With ``unique=True`` no two rows may have the same there: a transaction that
        would make a second one aborts.
        """
        at = here()
        if not columns:
            raise ProgramError(f"table {self.name}: an index is by a column or several", "", at)
        if self.keeps is not None:
            raise ProgramError(f"table {self.name} is kept by the engine", "", at)
        return self.app.add_index(self, columns, unique, name, at)

    def __iter__(self) -> NoReturn:
        raise ProgramError(
            f"table {self.name} can't be iterated over in a transaction",
            "read rows by their keys, or a range with scan(); from outside use "
            "mill.table(...).rows()",
            here(),
        )

    def insert(self, row: Mapping[str, object] | None = None, /, **columns: object) -> Any:
        """Makes a row; the transaction aborts when it is there already."""
        values = columns if row is None else {**row, **columns}
        transaction = local.transaction or current(f"a row of table {self.name} is inserted")
        return transaction.insert(self, values, False)

    def upsert(self, row: Mapping[str, object] | None = None, /, **columns: object) -> Any:
        """Makes a row or replaces it whole; columns that are not given get their defaults."""
        values = columns if row is None else {**row, **columns}
        transaction = local.transaction or current(f"a row of table {self.name} is upserted")
        return transaction.insert(self, values, True)

    def key_values(self, key: object) -> tuple[object, ...]:
        """The values of the key columns that a subscript gives."""
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
        """Values of a new row by column, checked: no unknown column, none missing."""
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
        """The index of a column outside the key."""
        index = self.schema.find(f"table {self.name}", name, at)
        if index in self.key_columns:
            raise ProgramError(
                f"table {self.name}: '{name}' is part of the key and can't be set",
                "delete the row and insert another",
                at,
            )
        return index

    def needs_value(self, index: int) -> bool:
        """Whether a new row must be given a value for a column outside the key."""
        from tidemill.types import MISSING

        column = self.schema.columns[index]
        return index not in self.key_columns and not column.nullable and column.default is MISSING

    def json(self) -> Json:
        """As the engine reads it."""
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
