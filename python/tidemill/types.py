"""Types of columns.

>>> str(list_of(decimal(2)))
'list(decimal(2))'
>>> Column.of("balance", decimal(2, default=0)).json()["default"]
{'decimal': [0, 2]}
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import decimal as dec
import math
import types
import typing
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Final, TypeAlias

from tidemill.errors import ProgramError
from tidemill.keywords import known_keywords

SCALE_MAX: Final = 18
INT_MIN: Final = -(2**63)
INT_MAX: Final = 2**63 - 1
EPOCH: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
MICROSECOND: Final = dt.timedelta(microseconds=1)
#: The first and the last microsecond of the years 1 to 9999, since 1970.
YEARS_US: Final = (-62_135_596_800_000_000, 253_402_300_799_999_999)

Json: TypeAlias = Any

#: The type of a last parameter that receives the caller of a procedure or a function of an entity:
#: ``"client:NAME"`` for a client with a token, ``"function:NAME"`` for a function of the app, and
#: None for a client without a name and for ``mill.call``.
Caller: TypeAlias = Annotated[str | None, "caller"]


class _Missing:
    def __repr__(self) -> str:
        return "MISSING"


MISSING: Final = _Missing()


@dataclasses.dataclass(frozen=True)
class DataType:
    """The type of a column or an expression."""

    kind: str
    #: The digits after the point, for decimals.
    scale: int = 0
    #: The type of the items, for lists.
    item: DataType | None = None

    def json(self) -> Json:
        """Returns the type in the form that the engine reads."""
        if self.kind == "decimal":
            return {"decimal": self.scale}
        if self.item is not None:
            return {"list": self.item.json()}
        return self.kind

    @staticmethod
    def from_json(value: Json) -> DataType:
        """Returns the type for its JSON form; the inverse of :meth:`json`."""
        if isinstance(value, str):
            return DataType(value)
        if "decimal" in value:
            return DataType("decimal", value["decimal"])
        return DataType("list", item=DataType.from_json(value["list"]))

    def __str__(self) -> str:
        if self.kind == "decimal":
            return f"decimal({self.scale})"
        if self.item is not None:
            return f"list({self.item})"
        return self.kind

    def stores_in(self, column: DataType) -> bool:
        """Returns whether a value of this type may be stored in a column of type ``column``."""
        return (
            self == column
            or (self.kind == "int" and column.kind in ("float", "decimal"))
            or (self.kind == "decimal" and column.kind == "decimal")
        )


@dataclasses.dataclass(frozen=True)
class ColumnType:
    """The type of a declared column: its data type, whether it may be null, and its default."""

    ty: DataType
    nullable: bool = False
    default: object = MISSING


INT: Final = DataType("int")
FLOAT: Final = DataType("float")
BOOL: Final = DataType("bool")
STR: Final = DataType("str")
BYTES: Final = DataType("bytes")
TIMESTAMP: Final = DataType("timestamp")
ANY: Final = DataType("any")

#: The type of points in time: microseconds since 1970 in UTC, and a ``datetime`` in Python.
#: In declarations ``datetime.datetime`` means the same.
timestamp: Final = TIMESTAMP
#: The type of any value of msgpack: None, bool, int, float, str, bytes, list or dict.
any_value: Final = ANY

#: The objects that a declaration takes as a type.
TypeLike: TypeAlias = "type | DataType | ColumnType | types.UnionType | types.GenericAlias"

_PLAIN: Final[Mapping[object, DataType]] = {
    int: INT,
    float: FLOAT,
    bool: BOOL,
    str: STR,
    bytes: BYTES,
    dt.datetime: TIMESTAMP,
    Any: ANY,
}


def column_type(given: object) -> ColumnType:
    """Returns the type of a declared column.

    >>> column_type(int).ty == INT, column_type(int | None).nullable
    (True, True)
    >>> print(column_type(typing.Annotated[dec.Decimal, decimal(2)]).ty)
    decimal(2)
    """
    if isinstance(given, ColumnType):
        return given
    if isinstance(given, DataType):
        return ColumnType(given)
    try:
        plain = _PLAIN.get(given)
    except TypeError:
        plain = None
    if plain is not None:
        return ColumnType(plain)
    origin, arguments = typing.get_origin(given), typing.get_args(given)
    if origin is typing.Annotated:
        return _annotated(given, *arguments)
    if origin in (typing.Required, typing.NotRequired):
        return column_type(arguments[0])
    if origin in (typing.Union, types.UnionType) and type(None) in arguments:
        others = [a for a in arguments if a is not type(None)]
        if len(others) == 1:
            return optional(others[0])
    if origin is list and len(arguments) == 1:
        return ColumnType(list_of(arguments[0]))
    if given is dec.Decimal:
        raise ProgramError(
            "a decimal needs its digits after the point",
            "write tm.decimal(2), or Annotated[Decimal, tm.decimal(2)] in an annotation",
        )
    if given is list:
        raise ProgramError("a list needs the type of its items", "write tm.list(int)")
    if callable(given) and getattr(given, "__module__", "").startswith("tidemill"):
        raise ProgramError(
            f"tm.{getattr(given, '__name__', given)} is a function, not a type",
            "call it: tm.decimal(2), or tm.list(int)",
        )
    if given in (dt.date, dt.time, dt.timedelta):
        raise ProgramError(
            f"{given!r} is not the type of a column",
            "a day is a tm.timestamp at midnight, or a text such as '2026-01-31'; a span is an int",
        )
    raise ProgramError(
        f"{given!r} is not the type of a column",
        "use int, float, bool, str, bytes, tm.timestamp, tm.decimal(2), tm.list(int), tm.any, or "
        "tm.optional of one of them",
    )


def _annotated(given: object, plain: object, *notes: object) -> ColumnType:
    """Returns the type of ``Annotated[plain, *notes]``; notes of other libraries are ignored."""
    found = [note for note in notes if isinstance(note, DataType | ColumnType)]
    if not found:
        return column_type(plain)
    if len(found) > 1:
        raise ProgramError(f"{given!r} has {len(found)} types of a column", "remove all but one")
    declared = column_type(found[0])
    if not _matches(plain, declared.ty, declared.nullable):
        name = plain.__name__ if isinstance(plain, type) else str(plain)
        null = " that may be null" if declared.nullable else ""
        raise ProgramError(
            f"an annotation says {name} to type checkers, and {declared.ty}{null} to Tidemill",
            "make both parts agree, as in Annotated[Decimal, tm.decimal(2)]",
        )
    return declared


def _matches(plain: object, ty: DataType, nullable: bool) -> bool:
    """Returns whether a type of Python has the values of a column's type."""
    if plain is Any:
        return True
    origin, arguments = typing.get_origin(plain), typing.get_args(plain)
    if origin is typing.Annotated:
        return _matches(arguments[0], ty, nullable)
    if origin in (typing.Union, types.UnionType) and type(None) in arguments:
        others = [a for a in arguments if a is not type(None)]
        return nullable and len(others) == 1 and _matches(others[0], ty, False)
    if nullable:
        return False
    if ty.item is not None:
        # Items may be null in every list.
        inner = _matches(arguments[0], ty.item, False) if arguments else True
        return list in (origin, plain) and (inner or _matches(arguments[0], ty.item, True))
    if ty.kind == "decimal":
        return plain is dec.Decimal
    try:
        return ty == ANY or _PLAIN.get(plain) == ty
    except TypeError:
        return False


def data_type(given: object) -> DataType:
    """Returns a type without null and default, for casts and for items of lists."""
    column = column_type(given)
    if column.nullable or column.default is not MISSING:
        raise ProgramError(
            "null and defaults belong to columns, not to types inside others",
            "give a plain type here, such as int",
        )
    return column.ty


@typing.overload
def decimal(scale: int) -> DataType: ...
@typing.overload
def decimal(scale: int, *, default: object) -> ColumnType: ...
@known_keywords
def decimal(scale: int, *, default: object = MISSING) -> DataType | ColumnType:
    """Returns the type of exact decimal numbers, which have 64 bits.

    Args:
        scale: The number of digits after the point, 0 to 18.
        default: The column's default, an int or ``decimal.Decimal``. The default is none.

    Returns:
        The type.

    Raises:
        ProgramError: The scale is out of range.

    Example:
        >>> print(decimal(2))
        decimal(2)

    Type checkers refuse a call in an annotation. There, write a name for the type:

        >>> from decimal import Decimal
        >>> from typing import Annotated
        >>> Money = Annotated[Decimal, decimal(2)]
        >>> def pay(tx, amount: Money): ...
    """
    if isinstance(scale, bool) or not isinstance(scale, int) or not 0 <= scale <= SCALE_MAX:
        raise ProgramError(f"a decimal's scale is 0 to {SCALE_MAX}, not {scale!r}")
    ty = DataType("decimal", scale)
    return ty if default is MISSING else ColumnType(ty, default=default)


def list_of(item: object) -> DataType:
    """Returns the type of lists whose items have one type. Its public name is ``tm.list``.

    An item may be null, so ``tm.list(int | None)`` means the same as ``tm.list(int)``.

    Args:
        item: The type of the items.

    Returns:
        The type.

    Raises:
        ProgramError: The type of the items is unknown, or has a default.

    Example:
        >>> import tidemill as tm
        >>> print(tm.list(int))
        list(int)
    """
    column = column_type(item)
    if column.default is not MISSING:
        raise ProgramError("the items of a list have no default", "give the column the default")
    return DataType("list", item=column.ty)


def optional(given: object) -> ColumnType:
    """Returns the type of a column that may be null; ``int | None`` means the same.

    Args:
        given: The type, such as ``int``, or the result of :func:`column`.

    Returns:
        The type of the column.

    Raises:
        ProgramError: The type is unknown.

    Example:
        >>> optional(int).nullable
        True
    """
    return dataclasses.replace(column_type(given), nullable=True)


@known_keywords
def column(given: object, *, default: object = MISSING, optional: bool = False) -> ColumnType:
    """Returns the type of a column with a default, or of one that may be null.

    A row that is missing reads as the defaults. A new row has the default where no value is given.

    Args:
        given: The type, such as ``int``.
        default: The default. The default is no default: a new row needs a value.
        optional: Whether the column may be null. The default is False.

    Returns:
        The type of the column.

    Raises:
        ProgramError: The type is unknown.

    Example:
        >>> column(int, default=0).default
        0
    """
    base = column_type(given)
    chosen = base.default if default is MISSING else default
    return dataclasses.replace(base, default=chosen, nullable=base.nullable or optional)


@dataclasses.dataclass(frozen=True)
class Column:
    """A named column of a schema."""

    name: str
    ty: DataType
    nullable: bool = False
    default: object = MISSING

    @staticmethod
    def of(name: str, given: object) -> Column:
        """Returns the column of a declaration."""
        declared = column_type(given)
        made = Column(name, declared.ty, declared.nullable, declared.default)
        made.json()
        return made

    def json(self) -> Json:
        """Returns the column in the form that the engine reads."""
        default = None
        if self.default is not MISSING:
            default = default_json(self.name, self.default, self.ty)
        return {
            "name": self.name,
            "type": self.ty.json(),
            "nullable": self.nullable,
            "default": default,
        }


def default_json(name: str, value: object, ty: DataType) -> Json:
    """Returns a default, converted to the column's type, in the form that the engine reads."""
    if ty.kind == "any" and value is not None:
        raise ProgramError(f"column '{name}': a column of type any has no default but None")
    value = _plain(value)
    if (
        ty.kind == "decimal"
        and isinstance(value, int | dec.Decimal)
        and not isinstance(value, bool)
    ):
        return {"decimal": [decimal_units(dec.Decimal(value), ty.scale), ty.scale]}
    if ty.kind == "float" and isinstance(value, int) and not isinstance(value, bool):
        try:
            value = float(value)
        except OverflowError:
            raise ProgramError(f"column '{name}': its default is too large for a float") from None
    try:
        found, json = constant(value)
    except TypeError as error:
        raise ProgramError(f"column '{name}': {error}") from None
    if isinstance(value, list | tuple) and found is None:
        # A list without items, or of nulls only, fits every list type and no other type.
        fits, kind = ty.kind == "list", "a list"
    else:
        fits, kind = found is None or found == ty, str(found)
    if not fits:
        raise ProgramError(f"column '{name}' is {ty}, but its default {value!r} is {kind}")
    for number in _parts(json, "float"):
        if not math.isfinite(number):
            raise ProgramError(f"column '{name}': a default can't be {number}")
    for us in _parts(json, "timestamp"):
        if not YEARS_US[0] <= us <= YEARS_US[1]:
            raise ProgramError(f"column '{name}': its default is outside of the years 1 to 9999")
    return json


def _parts(json: Json, kind: str) -> Iterator[Any]:
    """Yields the values of a kind in a constant."""
    if isinstance(json, dict):
        if kind in json:
            yield json[kind]
        for item in json.get("list", []):
            yield from _parts(item, kind)


def decimal_units(value: dec.Decimal, scale: int) -> int:
    """Returns a decimal as an int, in units of its last digit at the given scale.

    >>> decimal_units(dec.Decimal("1.50"), 2), decimal_units(dec.Decimal("0E-999999"), 2)
    (150, 0)
    """
    if not value.is_finite():
        raise ProgramError(f"a decimal can't be {value}")
    sign, figures, exponent = value.as_tuple()
    assert isinstance(exponent, int)
    digits = "".join(map(str, figures)).lstrip("0")
    kept = digits.rstrip("0")
    shift = exponent + len(digits) - len(kept) + scale
    if not kept:
        return 0
    if shift < 0:
        raise ProgramError(f"{value} has more than {scale} digits after the point")
    if len(kept) + shift > len(str(INT_MAX)):
        raise ProgramError(f"{value} is out of range for decimal({scale})")
    size: int = int(kept) * 10**shift
    units = -size if sign else size
    if not INT_MIN <= units <= INT_MAX:
        raise ProgramError(f"{value} is out of range for decimal({scale})")
    return units


def checked_int(value: int) -> int:
    """Returns the integer, and raises if it does not fit 64 bits."""
    if not INT_MIN <= value <= INT_MAX:
        raise ProgramError(f"{_shown(value)} is outside the 64 bits of an int")
    return value


def _shown(value: int) -> str:
    """Returns an int as text for an error; Python refuses to write thousands of digits."""
    bits = value.bit_length()
    return str(value) if bits <= 256 else f"an int of {bits} bits"


def microseconds(value: dt.datetime | dt.timedelta) -> int:
    """Returns a datetime since 1970, or a duration, in microseconds.

    Times of pandas have nanoseconds, and are in UTC where they have no time zone.
    """
    if getattr(value, "nanosecond", 0) or getattr(value, "nanoseconds", 0):
        raise ProgramError(f"{value} is finer than microseconds")
    if isinstance(value, dt.timedelta):
        return checked_int(value // MICROSECOND)
    if hasattr(value, "nanosecond"):
        plain: dt.datetime = getattr(value, "to_pydatetime")()  # noqa: B009
        value = plain.replace(tzinfo=plain.tzinfo or dt.UTC)
    if value.utcoffset() is None:
        raise ProgramError(
            f"{value.isoformat()} has no time zone, so it may be any of many moments",
            "write .replace(tzinfo=timezone.utc) where it is UTC, and .astimezone() where it is "
            "local time",
        )
    return (value - EPOCH) // MICROSECOND


def constant(value: object) -> tuple[DataType | None, Json]:
    """Returns the type and the JSON form of a constant.

    The type is None for None, which fits every type, and for an empty list, which fits every list.
    Raises ``TypeError`` for a value that can't be part of a program.

    >>> constant(dec.Decimal("1.50"))
    (DataType(kind='decimal', scale=2, item=None), {'decimal': [150, 2]})
    """
    if value is None or _is_not_a_time(value):
        return None, "null"
    if isinstance(value, bool):
        return BOOL, {"bool": value}
    if isinstance(value, int):
        return INT, {"int": checked_int(int(value))}
    if isinstance(value, float):
        return FLOAT, {"float": float(value)}
    if isinstance(value, str):
        return STR, {"str": str(value)}
    if isinstance(value, bytes | bytearray):
        return BYTES, {"bytes": [*value]}
    if isinstance(value, dt.datetime):
        return TIMESTAMP, {"timestamp": microseconds(value)}
    if isinstance(value, dt.timedelta):
        return INT, {"int": microseconds(value)}
    if isinstance(value, dec.Decimal):
        return _decimal_constant(value)
    if isinstance(value, list | tuple):
        found = [constant(item) for item in value]
        kinds = {ty for ty, _ in found if ty is not None}
        if len(kinds) > 1:
            raise ProgramError("the items of a list must be of one type")
        inner = kinds.pop() if kinds else None
        ty = None if inner is None else DataType("list", item=inner)
        return ty, {"list": [json for _, json in found]}
    if type(value).__module__ == "numpy" and type(value).__name__ in ("datetime64", "timedelta64"):
        return _numpys_time(value)
    plain = _plain(value)
    if plain is not value:
        return constant(plain)
    raise TypeError(f"a value of type {type(value).__name__} can't be part of a program")


def _plain(value: Any) -> object:
    """Returns a number of numpy as a number of Python, and other values unchanged.

    Arrays are not numbers, whatever their length. Times of numpy are converted elsewhere.
    """
    module, name = type(value).__module__, type(value).__name__
    if module != "numpy" or name in ("datetime64", "timedelta64") or hasattr(value, "__len__"):
        return value
    item: object = value.item()
    # For some types, such as `longdouble`, `item()` returns the same object.
    return value if type(item).__module__ == "numpy" else item


def _is_not_a_time(value: object) -> bool:
    """Returns whether a value is pandas' NaT, a datetime that equals nothing."""
    return isinstance(value, dt.datetime) and value != value


def _numpys_time(value: Any) -> tuple[DataType | None, Json]:
    from tidemill.foreign import microseconds

    try:
        us = microseconds(value)
    except ValueError as error:
        raise ProgramError(str(error)) from None
    if us is None:
        return None, "null"
    return (TIMESTAMP, {"timestamp": us}) if value.dtype.kind == "M" else (INT, {"int": us})


def _decimal_constant(value: dec.Decimal) -> tuple[DataType, Json]:
    exponent = value.as_tuple().exponent
    scale = min(SCALE_MAX, max(0, -exponent)) if isinstance(exponent, int) else 0
    return DataType("decimal", scale), {"decimal": [decimal_units(value, scale), scale]}


def duration_us(given: object, unit_is_time: bool, what: str) -> int:
    """Returns a duration, a text such as "2s" or a timedelta, in microseconds.

    For a stream whose time is an int the duration must be an int, in the same unit.

    >>> duration_us("1.5s", True, "out_of_orderness"), duration_us(7, False, "out_of_orderness")
    (1500000, 7)
    """
    units = {"us": 1, "ms": 1_000, "s": 1_000_000, "m": 60_000_000, "min": 60_000_000}
    units |= {"h": 3_600_000_000, "d": 86_400_000_000}
    if not unit_is_time:
        if isinstance(given, int) and not isinstance(given, bool) and given >= 0:
            return given
        raise other_unit(f"{what}={given!r}", what)
    if isinstance(given, dt.timedelta):
        result = microseconds(given)
    elif isinstance(given, str):
        text = given.strip()
        number = text.rstrip("abcdefghijklmnopqrstuvwxyz ")
        unit = text[len(number) :].strip()
        try:
            result = int(dec.Decimal(number) * units[unit])
        except (KeyError, dec.InvalidOperation):
            raise ProgramError(
                f"{what}={given!r} is not a duration", 'write it like "5ms", "2s", "1h"'
            ) from None
    else:
        raise ProgramError(
            f"{what}={given!r} has no unit", 'write it like "5ms", "2s", "1h", or as a timedelta'
        )
    if result < 0:
        raise ProgramError(f"{what}={given!r} is negative")
    return result


def other_unit(owner: str, what: str, stream: str = "", at: str = "") -> ProgramError:
    """Returns the error for a span in hours or seconds where time is an int of unknown unit."""
    whose = f"the time of stream {stream}" if stream else "the stream's time"
    return ProgramError(f"{owner}: {whose} is an int, so {what} is an int in the same unit", "", at)


class Schema:
    """The columns of a table or a stream, in order."""

    def __init__(self, columns: typing.Iterable[Column]) -> None:
        self.columns = tuple(columns)
        self.index = {column.name: i for i, column in enumerate(self.columns)}

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the columns, in order."""
        return tuple(self.index)

    def find(self, owner: str, name: str, at: str | None = None) -> int:
        """Returns the index of a column; the error for an unknown one names the nearest."""
        found = self.index.get(name)
        if found is None:
            raise unknown(f"{owner} has no column '{name}'", name, self.names, "columns", at)
        return found

    def json(self) -> Json:
        """Returns the columns in the form that the engine reads."""
        return [column.json() for column in self.columns]

    def __len__(self) -> int:
        return len(self.columns)

    def __str__(self) -> str:
        return ", ".join(f"{c.name}: {c.ty}{'?' if c.nullable else ''}" for c in self.columns)


def unknown(
    what: str, given: str, known: typing.Iterable[str], plural: str, at: str | None
) -> ProgramError:
    """Returns the error for an unknown name, with the nearest known name or all of them."""
    from tidemill._native import nearest

    names = list(known)
    near = nearest(given, names)
    if near is not None:
        return ProgramError(what, f"did you mean '{near}'?", at)
    return ProgramError(what, f"its {plural} are {', '.join(names)}" if names else "", at)


def declared_columns(owner: str, schema: object, columns: Mapping[str, object]) -> Schema:
    """Returns the columns of a declaration: those of ``schema`` first, then the keywords."""
    made: list[Column] = []
    for name, given in [*_schema_items(owner, schema), *columns.items()]:
        if not isinstance(name, str) or not name:
            raise ProgramError(f"{owner}: a column's name is a text, not {name!r}")
        if any(column.name == name for column in made):
            raise ProgramError(f"{owner} has two columns named '{name}'")
        try:
            made.append(Column.of(name, given))
        except ProgramError as error:
            what = (
                error.what if error.what.startswith("column ") else f"column '{name}': {error.what}"
            )
            raise ProgramError(f"{owner}, {what}", error.help) from None
    if not made:
        raise ProgramError(f"{owner} has no columns", "give at least one, for example id=int")
    return Schema(made)


def _schema_items(owner: str, schema: object) -> list[tuple[str, object]]:
    if schema is None:
        return []
    if isinstance(schema, Schema):
        return [(c.name, ColumnType(c.ty, c.nullable, c.default)) for c in schema.columns]
    if isinstance(schema, Mapping):
        return list(schema.items())
    if isinstance(schema, type):
        try:
            hints = typing.get_type_hints(schema, include_extras=True)
        except Exception as error:
            raise ProgramError(
                f"{owner}: the types of {schema.__name__} can't be read: {error}",
                "define these types above the class, at the top level of a module",
            ) from None
        defaults = (
            {f.name: f.default for f in dataclasses.fields(schema)}
            if dataclasses.is_dataclass(schema)
            else {}
        )
        items: list[tuple[str, object]] = []
        for name, hint in hints.items():
            default = defaults.get(name, dataclasses.MISSING)
            has = default is not dataclasses.MISSING
            items.append((name, column(hint, default=default) if has else hint))
        return items
    raise ProgramError(
        f"{owner}: schema= is a dict of names and types, a dataclass or a TypedDict, not {schema!r}"
    )
