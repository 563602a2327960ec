"""JSON Schema of the replies of functions, from their annotations."""

from __future__ import annotations

import datetime as dt
import decimal as dec
import inspect
import types
import typing
from collections.abc import Callable
from typing import Any

from tidemill.types import Json

_PLAIN: dict[object, Json] = {
    int: {"type": "integer"},
    str: {"type": "string"},
    bool: {"type": "boolean"},
    float: {"anyOf": [{"type": "number"}, {"enum": ["NaN", "inf", "-inf"]}]},
    None: {"type": "null"},
    types.NoneType: {"type": "null"},
    list: {"type": "array"},
    tuple: {"type": "array"},
    dict: {"type": "object"},
    # A decimal is a text, so that it keeps its digits.
    dec.Decimal: {"type": "string", "format": "decimal"},
    dt.datetime: {"type": "string", "format": "date-time"},
    bytes: {"type": "string", "pattern": "^0x([0-9a-fA-F]{2})*$"},
}


def reply_schema(function: Callable[..., Any]) -> Json:
    """Returns the schema of what a function returns, or None where its annotation says nothing.

    >>> def find(tx, id: int) -> list[int] | None: ...
    >>> reply_schema(find)
    {'anyOf': [{'type': 'array', 'items': {'type': 'integer'}}, {'type': 'null'}]}
    """
    try:
        returned = inspect.signature(function, eval_str=True).return_annotation
    except (TypeError, ValueError, NameError):
        return None
    return None if returned is inspect.Signature.empty else of_type(returned)


def of_type(annotation: Any) -> Json:
    """Returns the schema of a type, or None for a type whose JSON is not known."""
    if annotation in _PLAIN:
        return _PLAIN[annotation]
    if typing.is_typeddict(annotation):
        fields = typing.get_type_hints(annotation)
        return {
            "type": "object",
            "properties": {name: of_type(field) or {} for name, field in fields.items()},
            "required": sorted(annotation.__required_keys__),
        }
    origin, items = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (typing.Union, types.UnionType):
        known = [of_type(item) for item in items]
        return None if None in known else {"anyOf": known}
    if origin is typing.Annotated:
        return of_type(items[0])
    if origin is typing.Literal and all(type(item) in (str, int, bool) for item in items):
        return {"enum": list(items)}
    if origin is tuple and items[1:] == (...,):
        return {"type": "array", "items": of_type(items[0]) or {}}
    if origin is tuple:
        several = {"minItems": len(items), "maxItems": len(items)}
        return {"type": "array", "prefixItems": [of_type(item) or {} for item in items], **several}
    if origin is list and len(items) == 1:
        return {"type": "array", "items": of_type(items[0]) or {}}
    if origin is dict and items[:1] == (str,):
        return {"type": "object", "additionalProperties": of_type(items[1]) or {}}
    return None
