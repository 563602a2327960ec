"""Functions of expressions. They work on symbolic values while a handler is traced, and on real
values in opaque functions; both by the engine's rules.

>>> min(3, 2.5), length("héllo"), div(1, 3, scale=2)
(2.5, 5, Decimal('0.33'))
"""

from __future__ import annotations

import json
from typing import Any

from tidemill import _native
from tidemill.errors import BadValue, ProgramError
from tidemill.expr import is_symbolic, node
from tidemill.source import here
from tidemill.types import SCALE_MAX, data_type


def _unary(op: Any, x: object) -> Any:
    return node("unary", op, x) if is_symbolic(x) else _native.unary(json.dumps(op), x)


def _binary(op: Any, a: object, b: object) -> Any:
    return node("binary", op, a, b) if is_symbolic(a, b) else _native.binary(json.dumps(op), a, b)


def where(cond: object, a: object, b: object) -> Any:
    """``a`` where the condition holds, else ``b``; only that one counts.

    >>> where(True, 1, 2)
    1
    """
    if is_symbolic(cond, a, b):
        return node("where", None, cond, a, b)
    if cond is None:
        raise BadValue("null where a value is needed")
    if not isinstance(cond, bool):
        raise TypeError(f"the condition of tm.where is {cond!r}, not a bool")
    return a if cond else b


def coalesce(x: object, *others: object) -> Any:
    """The first of the values that is not null, or null.

    >>> coalesce(None, None, 3)
    3
    """
    result = x
    if is_symbolic(x, *others):
        for other in others:
            result = (
                node("coalesce", None, result, other)
                if is_symbolic(result, other)
                else (other if result is None else result)
            )
        return result
    return next((value for value in (x, *others) if value is not None), None)


def is_null(x: object) -> Any:
    """Whether the value is null."""
    return _unary("is_null", x) if is_symbolic(x) else x is None


def not_(x: object) -> Any:
    """The opposite of a bool: like ``~x`` in a traced function and ``not x`` in an opaque one."""
    return _unary("not", x)


def min(a: object, b: object, *more: object) -> Any:
    """The smallest; the first of equal ones."""
    result = _binary("min", a, b)
    for other in more:
        result = _binary("min", result, other)
    return result


def max(a: object, b: object, *more: object) -> Any:
    """The largest; the first of equal ones."""
    result = _binary("max", a, b)
    for other in more:
        result = _binary("max", result, other)
    return result


def abs(x: object) -> Any:
    """The absolute value."""
    return _unary("abs", x)


def div(a: object, b: object, scale: int) -> Any:
    """Division of decimals and ints to a decimal of ``scale`` digits, rounded half to even."""
    if isinstance(scale, bool) or not isinstance(scale, int) or not 0 <= scale <= SCALE_MAX:
        raise ProgramError(f"a decimal's scale is 0 to {SCALE_MAX}, not {scale!r}", "", here())
    return _binary({"div_scale": scale}, a, b)


def cast(x: object, to: object) -> Any:
    """The value as another type: ``tm.cast(x, float)``, ``tm.cast(x, tm.decimal(2))``."""
    try:
        ty = data_type(to)
    except ProgramError as error:
        raise ProgramError(error.what, error.help, here()) from None
    return _unary({"cast": ty.json()}, x)


def length(x: object) -> Any:
    """Characters of a text, bytes of bytes, items of a list."""
    return _unary("len", x)


def lower(x: object) -> Any:
    """The text in lower case."""
    return _unary("lower", x)


def upper(x: object) -> Any:
    """The text in upper case."""
    return _unary("upper", x)


def strip(x: object) -> Any:
    """The text without white space at its ends."""
    return _unary("strip", x)


def starts_with(x: object, prefix: object) -> Any:
    """Whether a text begins with another."""
    return _binary("starts_with", x, prefix)


def ends_with(x: object, suffix: object) -> Any:
    """Whether a text ends with another."""
    return _binary("ends_with", x, suffix)


def contains(x: object, item: object) -> Any:
    """Whether a text contains another, or a list an item."""
    return _binary("contains", x, item)
