"""Columns of a declaration, with the line of the app in what is refused."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tidemill.errors import ProgramError
from tidemill.keywords import near_keyword
from tidemill.types import Schema, declared_columns


def columns_at(
    at: str,
    owner: str,
    schema: object,
    columns: Mapping[str, object],
    declares: Callable[..., object] | None = None,
) -> Schema:
    """Returns the columns of a table, stream or window that is declared at this line.

    Args:
        at: The line of the app, for errors that name none.
        owner: What has the columns, such as ``"table accounts"``.
        schema: A dataclass, a TypedDict or a mapping, or None.
        columns: More columns, from keywords.
        declares: The method that takes those keywords. A column that is no column may be a
            misspelled argument of it.

    Raises:
        ProgramError: A column has no type, or a name is wrong.
    """
    try:
        return declared_columns(owner, schema, columns)
    except ProgramError as error:
        wrong = [name for name in columns if f"column '{name}'" in error.what]
        near = near_keyword(declares, wrong[0]) if declares and wrong else None
        help = f"did you mean the argument '{near}'?" if near else error.help
        raise ProgramError(error.what, help, error.at or at) from None
