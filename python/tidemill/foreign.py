"""Data of other libraries: times of numpy, and tables of pyarrow and pandas."""

from __future__ import annotations

import re
import sys
from typing import Any, Final

from tidemill.errors import InputError

#: The units of a fixed length, in microseconds.
_MICROSECONDS: Final = {
    "us": 1,
    "ms": 1_000,
    "s": 1_000_000,
    "m": 60_000_000,
    "h": 3_600_000_000,
    "D": 86_400_000_000,
    "W": 604_800_000_000,
}
#: The finer units: how many of them are a microsecond.
_FINER: Final = {"ns": 10**3, "ps": 10**6, "fs": 10**9, "as": 10**12}


def microseconds(value: Any) -> int | None:
    """Returns a ``datetime64`` or ``timedelta64`` of numpy in microseconds; None for ``NaT``.

    >>> import numpy as np
    >>> microseconds(np.datetime64("1970-01-02", "ns")), microseconds(np.timedelta64("NaT"))
    (86400000000, None)
    """
    import numpy as np

    if np.isnat(value):
        return None
    unit, count = np.datetime_data(value.dtype)
    if unit in ("Y", "M") and value.dtype.kind == "M":
        days = value.astype("datetime64[D]")
        if days.astype(value.dtype) != value:
            raise ValueError(f"{value} is out of range")
        value, unit, count = days, "D", 1
    units = int(value.astype("int64")) * count
    if unit in _FINER:
        whole, rest = divmod(units, _FINER[unit])
        if rest:
            raise ValueError(f"{value} is finer than microseconds")
    elif unit in _MICROSECONDS:
        whole = units * _MICROSECONDS[unit]
    else:
        raise ValueError(f"{value!r} has no unit of a fixed length")
    if not -(2**63) <= whole < 2**63:
        raise ValueError(f"{value} is out of range")
    return whole


def is_times(column: Any) -> bool:
    """Returns whether a column of values is an array of numpy's times."""
    return getattr(getattr(column, "dtype", None), "kind", "") == "M" and _is_of(column, "numpy")


def times(column: Any) -> tuple[list[int | None], int, str]:
    """Returns the times of an array of numpy in microseconds.

    Returns also the first row that can't be converted, or -1, and the reason.
    """
    import numpy as np

    unit, count = np.datetime_data(column.dtype)
    factor = _MICROSECONDS.get(unit, 0) * count
    divisor = _FINER.get(unit, 0) // count if count in (1, 10, 100, 1000) else 0
    numbers, missing = column.astype("int64"), np.isnat(column)
    wrong = None
    if factor:
        wrong = np.abs(numbers) > (2**63 - 1) // factor
        numbers = numbers * factor
    elif divisor:
        wrong = numbers % divisor != 0
        numbers = numbers // divisor
    if wrong is not None and not np.any(wrong & ~missing):
        found: list[int | None] = numbers.tolist()
        for place in np.flatnonzero(missing):
            found[int(place)] = None
        return found, -1, ""
    found = []
    for row, value in enumerate(column):
        try:
            found.append(microseconds(value))
        except ValueError as error:
            return found, row, str(error)
    return found, -1, ""


def checked(owner: str, rows: Any, column: str) -> Any:
    """Returns rows or a column with Arrow's interface, after a check of their buffers.

    Only pyarrow knows the lengths of its buffers, so it checks that they are long enough. The
    receiver checks the values in them.
    """
    if _is_of(rows, "pandas"):
        import pyarrow as pa

        try:
            rows = _of_pandas(rows)
        except pa.ArrowException as error:
            why = "; ".join(str(part) for part in error.args)
            raise InputError(f"{owner}: {why}", "give each column one type") from None
    if _is_of(rows, "polars"):
        rows = _without_nulls(rows)
    if not _is_of(rows, "pyarrow") or not hasattr(rows, "validate"):
        return rows
    pa = sys.modules["pyarrow"]
    for name, values in _columns(rows, column):
        first = 0
        for chunk in getattr(values, "chunks", [values]):
            try:
                chunk.validate()
            except pa.ArrowInvalid as error:
                place = re.search(r"(?:slot|index) (\d+)", str(error))
                row = f", row {first + int(place[1])}" if place else ""
                what = f"column '{name}'{row}: it" if name else f"the data{row}"
                raise InputError(
                    f"{owner}: {what} is not valid Arrow: {error}",
                    "the program that made the data has a fault; validate(full=True) finds it",
                ) from None
            first += len(chunk)
    return rows


def index_help(rows: Any, column: str) -> str:
    """Returns how to send a frame of pandas without a named index, if the column is one."""
    is_index = _is_of(rows, "pandas") and column in getattr(rows.index, "names", ())
    return "it is the frame's index: send frame.reset_index(drop=True)" if is_index else ""


def _without_nulls(rows: Any) -> Any:
    """Converts columns of the null type to bools that are null.

    polars exports the null type with a buffer, which Arrow's interface forbids.
    """
    import polars as pl

    if isinstance(rows, pl.Series):
        ty = _without_null(rows.dtype)
        return rows if ty == rows.dtype else rows.cast(ty)
    if not isinstance(rows, pl.DataFrame):
        return rows
    types = {name: (ty, _without_null(ty)) for name, ty in rows.schema.items()}
    casts = [pl.col(name).cast(to) for name, (ty, to) in types.items() if ty != to]
    return rows.with_columns(casts) if casts else rows


def _without_null(ty: Any) -> Any:
    import polars as pl

    if ty == pl.Null:
        return pl.Boolean
    if isinstance(ty, pl.List):
        return pl.List(_without_null(ty.inner))
    if isinstance(ty, pl.Array):
        return pl.Array(_without_null(ty.inner), ty.size)
    if isinstance(ty, pl.Struct):
        return pl.Struct({field.name: _without_null(field.dtype) for field in ty.fields})
    return ty


def _of_pandas(rows: Any) -> Any:
    """Converts data of pandas as its own interface does, with a named index as a column.

    A named index is a column whether pandas stores it as numbers or as a range.
    """
    import pyarrow as pa

    if not hasattr(rows, "columns"):
        return pa.Array.from_pandas(rows)
    is_named = any(name is not None for name in rows.index.names)
    return pa.Table.from_pandas(rows, preserve_index=True if is_named else None)


def _columns(rows: Any, column: str) -> list[tuple[str, Any]]:
    names = getattr(rows, "column_names", None)
    if names is None:
        names = getattr(getattr(rows, "schema", None), "names", None)
    if names is None or not hasattr(rows, "columns"):
        return [(column, rows)]
    return list(zip(names, rows.columns, strict=True))


def _is_of(value: Any, library: str) -> bool:
    module = type(value).__module__
    return module == library or module.startswith(f"{library}.")
