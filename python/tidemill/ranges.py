"""The arguments of scans: bounds, prefixes and limits."""

from __future__ import annotations

from typing import Any, Final

from tidemill.errors import ProgramError, Untraceable
from tidemill.expr import is_symbolic
from tidemill.source import here
from tidemill.types import Column

#: The bounds of a scan: leading values of keys. With None as the second bound, the rows whose keys
#: begin with the first one.
Bounds = tuple[tuple[object, ...], "tuple[object, ...] | None"]

_LAST_CHARACTER: Final = 0x10FFFF
_SURROGATES: Final = (0xD800, 0xDFFF)


def check_limit(limit: object) -> None:
    """Refuses a limit that is not a number of rows.

    >>> check_limit(3)
    """
    is_number = isinstance(limit, int) and not isinstance(limit, bool) and limit >= 0
    if limit is not None and not is_number:
        raise ProgramError(f"limit is a number of rows, not {limit!r}", "", here())


def with_prefix(whose: str, columns: list[Column], prefix: object) -> Bounds:
    """Returns the bounds of the rows whose keys begin with a prefix.

    The last value of the prefix is the beginning of a text or of bytes. Those before it are whole
    values of the leading columns.

    >>> with_prefix("table t", [Column.of("iban", str)], "DE")
    (('DE',), ('DF',))
    """
    values = prefix if isinstance(prefix, tuple) else (prefix,)
    if not 0 < len(values) <= len(columns):
        raise ProgramError(
            f"{whose} is ordered by ({', '.join(c.name for c in columns)}), but a prefix with "
            f"{len(values)} values was given",
            "",
            here(),
        )
    column, last = columns[len(values) - 1], values[-1]
    if is_symbolic(last):
        raise Untraceable("the prefix of a scan is a constant where a handler is traced")
    if not isinstance(last, str if column.ty.kind == "str" else bytes):
        raise ProgramError(
            f"{whose}: prefix={prefix!r} does not end with the beginning of a text or of bytes for "
            f"column '{column.name}', which is {column.ty}",
            "give start= and end= for other ranges",
            here(),
        )
    if not last:
        return values[:-1], None
    following = _after(last)
    if following is None:
        raise ProgramError(f"{whose}: no value comes after the prefix {last!r}", "", here())
    return values, (*values[:-1], following)


def _after(prefix: Any) -> object:
    """Returns the first value after all that begin with a prefix, or None if there is none."""
    if isinstance(prefix, bytes):
        kept = prefix.rstrip(b"\xff")
        return kept[:-1] + bytes([kept[-1] + 1]) if kept else None
    kept = prefix.rstrip(chr(_LAST_CHARACTER))
    if not kept:
        return None
    code = ord(kept[-1]) + 1
    if _SURROGATES[0] <= code <= _SURROGATES[1]:
        code = _SURROGATES[1] + 1
    return kept[:-1] + chr(code)


def check_alone(start: object, end: object) -> None:
    """Refuses bounds beside a prefix."""
    if start is not None or end is not None:
        raise ProgramError("a scan has start and end, or a prefix", "leave out one of them", here())
