"""Functions of expressions.

They take symbolic values while a handler is traced, and real values in opaque functions. Both
follow the engine's rules: a null aborts the transaction, except in ``coalesce`` and ``is_null``.

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
    """Returns ``a`` where the condition holds, and ``b`` elsewhere.

    A fault in the value that is not returned does not count.

    Args:
        cond (bool): The condition.
        a: The value where it holds.
        b: The value where it does not hold.

    Returns:
        One of the two values.

    Raises:
        BadValue: The condition is null.
        TypeError: The condition is not a bool.

    Example:
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
    """Returns the first value that is not null, or null if all are.

    Args:
        x: The first value.
        *others: The further values, in order.

    Returns:
        One of the values.

    Example:
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
    """Returns whether a value is null.

    Args:
        x: The value.

    Returns:
        A bool.

    Example:
        >>> is_null(None), is_null(0)
        (True, False)
    """
    return _unary("is_null", x) if is_symbolic(x) else x is None


def not_(x: object) -> Any:
    """Returns the negation of a bool: ``~x`` in a traced function, ``not x`` in an opaque one.

    Args:
        x (bool): The bool.

    Returns:
        A bool.

    Example:
        >>> not_(True)
        False
    """
    return _unary("not", x)


def min(a: object, b: object, *more: object) -> Any:
    """Returns the smallest value; of equal ones, the first.

    Args:
        a: A value.
        b: Another value.
        *more: Further values.

    Returns:
        One of the values, in the type that all of them have in common.

    Example:
        >>> min(3, 2.5)
        2.5
    """
    result = _binary("min", a, b)
    for other in more:
        result = _binary("min", result, other)
    return result


def max(a: object, b: object, *more: object) -> Any:
    """Returns the largest value; of equal ones, the first.

    Args:
        a: A value.
        b: Another value.
        *more: Further values.

    Returns:
        One of the values, in the type that all of them have in common.

    Example:
        >>> max(3, 2.5, 4)
        4.0
    """
    result = _binary("max", a, b)
    for other in more:
        result = _binary("max", result, other)
    return result


def abs(x: object) -> Any:
    """Returns the absolute value of a number.

    Args:
        x: The number.

    Returns:
        A number of the same type.

    Raises:
        BadValue: The result does not fit the type.

    Example:
        >>> abs(-3)
        3
    """
    return _unary("abs", x)


def div(a: object, b: object, scale: int) -> Any:
    """Divides decimals and ints to a decimal, rounded half to even.

    Args:
        a: The dividend, a decimal or an int.
        b: The divisor, a decimal or an int.
        scale: The digits of the result after the point, 0 to 18.

    Returns:
        A decimal.

    Raises:
        BadValue: The divisor is zero, or the result is out of range.
        ProgramError: The scale is out of range.

    Example:
        >>> div(1, 3, scale=2)
        Decimal('0.33')
    """
    if isinstance(scale, bool) or not isinstance(scale, int) or not 0 <= scale <= SCALE_MAX:
        raise ProgramError(f"a decimal's scale is 0 to {SCALE_MAX}, not {scale!r}", "", here())
    return _binary({"div_scale": scale}, a, b)


def cast(x: object, to: object) -> Any:
    """Converts a value to another type.

    Args:
        x: The value.
        to: The type, such as ``float`` or ``tm.decimal(2)``.

    Returns:
        The converted value.

    Raises:
        BadValue: The value has no counterpart in the type.
        ProgramError: The type is unknown, or no value can be converted to it.

    Example:
        >>> cast("7", int), cast(7, float)
        (7, 7.0)
    """
    try:
        ty = data_type(to)
    except ProgramError as error:
        raise ProgramError(error.what, error.help, here()) from None
    return _unary({"cast": ty.json()}, x)


def length(x: object) -> Any:
    """Returns the number of characters of a text, bytes of bytes, or items of a list.

    Args:
        x: The text, bytes or list.

    Returns:
        An int.

    Example:
        >>> length("héllo")
        5
    """
    return _unary("len", x)


def lower(x: object) -> Any:
    """Returns a text in lower case.

    Args:
        x: The text.

    Returns:
        A text.

    Example:
        >>> lower("Tide")
        'tide'
    """
    return _unary("lower", x)


def upper(x: object) -> Any:
    """Returns a text in upper case.

    Args:
        x: The text.

    Returns:
        A text.

    Example:
        >>> upper("Tide")
        'TIDE'
    """
    return _unary("upper", x)


def strip(x: object) -> Any:
    """Returns a text without white space at its ends.

    Args:
        x: The text.

    Returns:
        A text.

    Example:
        >>> strip("  tide ")
        'tide'
    """
    return _unary("strip", x)


def starts_with(x: object, prefix: object) -> Any:
    """Returns whether a text begins with another one.

    Args:
        x: The text.
        prefix: The text that may be its begin.

    Returns:
        A bool.

    Example:
        >>> starts_with("tidemill", "tide")
        True
    """
    return _binary("starts_with", x, prefix)


def ends_with(x: object, suffix: object) -> Any:
    """Returns whether a text ends with another one.

    Args:
        x: The text.
        suffix: The text that may be its end.

    Returns:
        A bool.

    Example:
        >>> ends_with("tidemill", "mill")
        True
    """
    return _binary("ends_with", x, suffix)


def contains(x: object, item: object) -> Any:
    """Returns whether a text contains another one, or a list an item.

    Args:
        x: The text or list.
        item: The other text, or the item.

    Returns:
        A bool.

    Example:
        >>> contains("tidemill", "em"), contains([1, 2], 3)
        (True, False)
    """
    return _binary("contains", x, item)
