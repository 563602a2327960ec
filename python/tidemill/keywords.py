"""Refusals of arguments that a function does not have, and of values of other types."""

from __future__ import annotations

import functools
import inspect
import numbers
import os
import types
import typing
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Final, Literal, ParamSpec, TypeVar

from tidemill import _native
from tidemill.errors import ProgramError
from tidemill.source import here

P = ParamSpec("P")
R = TypeVar("R")

_BY_PLACE: Final = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_BY_NAME: Final = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def known_keywords(function: Callable[P, R]) -> Callable[P, R]:
    """Makes a function refuse unknown keywords, with the nearest known one, and wrong values.

    >>> @known_keywords
    ... def cut(text: str, *, delimiter: str = ","): ...
    >>> try:
    ...     cut("a;b", delimeter=";")
    ... except ProgramError as error:
    ...     print(error.what, error.help, sep="; ")
    cut() has no argument 'delimeter'; did you mean 'delimiter'?
    """
    name_of = function.__qualname__.removesuffix(".__init__").split(".")[-1]
    known = _keywords(function)
    parameters = inspect.signature(function).parameters.values()
    by_place = [p.name for p in parameters if p.kind in _BY_PLACE]
    kinds = {p.kind for p in parameters}
    takes_any = inspect.Parameter.VAR_KEYWORD in kinds
    is_open = inspect.Parameter.VAR_POSITIONAL in kinds

    @functools.cache
    def hints() -> dict[str, Any]:
        # Not while the module is loaded, because annotations may name what follows. The type of the
        # result may be imported for type checkers only.
        named = {name: of for name, of in function.__annotations__.items() if name != "return"}
        given = types.SimpleNamespace(__annotations__=named)
        return typing.get_type_hints(given, function.__globals__)

    @functools.wraps(function)
    def checked(*args: P.args, **kwargs: P.kwargs) -> R:
        if len(args) > len(by_place) and not is_open:
            raise ProgramError(
                f"{name_of}() has no place for the argument {args[len(by_place)]!r:.100}",
                f"give it by name, such as {_next_name(known, by_place, kwargs)}="
                f"{args[len(by_place)]!r:.100}",
                here(),
            )
        for name in kwargs:
            if name not in known and not takes_any:
                near = _native.nearest(name, known)
                raise ProgramError(
                    f"{name_of}() has no argument '{name}'",
                    f"did you mean '{near}'?" if near else f"it has {', '.join(known)}",
                    here(),
                )
        given = {**dict(zip(by_place, args, strict=False)), **kwargs}
        for name, value in given.items():
            words = _unfit(value, hints().get(name, Any))
            if words:
                what = f"{name_of}(): {name}={value!r:.100} is not {words}"
                raise ProgramError(what, f"give {words}", here())
        return function(*args, **kwargs)

    return checked


def near_keyword(function: Callable[..., object], name: str) -> str | None:
    """Returns the keyword of a function that is nearest to a name, or None if none is near.

    >>> near_keyword(known_keywords, "functoin")
    'function'
    """
    return _native.nearest(name, _keywords(function))


def _next_name(known: list[str], placed: list[str], kwargs: Mapping[str, object]) -> str:
    """Returns the first name that is not given yet."""
    left = (name for name in known if name not in placed and name not in kwargs)
    return next(left, "name")


#: The words for values of these types.
_WORDS: Final[dict[object, str]] = {
    str: "a text",
    int: "an integer",
    float: "a number",
    bool: "True or False",
    os.PathLike: "a path",
    type(None): "None",
}


def _unfit(value: object, hint: Any) -> str:
    """Returns which values fit a type hint, in words, if this one does not.

    >>> _unfit("xml", Literal["csv", "jsonl"] | None)
    "'csv' or 'jsonl'"
    >>> _unfit(3, Mapping[str, str])
    'a dict'
    >>> _unfit(3, int | str)
    ''
    """
    origin = typing.get_origin(hint)
    if origin in (typing.Union, types.UnionType):
        found = [_unfit(value, one) for one in typing.get_args(hint)]
        return "" if "" in found else " or ".join(words for words in found if words != "None")
    if origin is Literal:
        allowed = typing.get_args(hint)
        return "" if value in allowed else " or ".join(map(repr, allowed))
    kind = origin or hint
    if kind is bool:
        return "" if isinstance(value, bool) else _WORDS[bool]
    if kind in (int, float):
        numbers_of = numbers.Integral if kind is int else numbers.Real
        fits = isinstance(value, numbers_of) and not isinstance(value, bool)
        return "" if fits else _WORDS[kind]
    if kind in (str, os.PathLike, type(None)):
        return "" if isinstance(value, kind) else _WORDS[kind]
    if kind is Mapping:
        return "" if isinstance(value, Mapping) else "a dict"
    if kind in (Sequence, Iterable, Collection):
        return "" if isinstance(value, Iterable) else "a list"
    # Other hints are for type checkers, or the function refuses what does not fit.
    return ""


def _keywords(function: Callable[..., object]) -> list[str]:
    parameters = inspect.signature(function).parameters.values()
    return [p.name for p in parameters if p.kind in _BY_NAME and p.name != "self"]
