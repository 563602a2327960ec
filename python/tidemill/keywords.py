"""Refusals of arguments that a function does not have, and of flags that are no bools."""

from __future__ import annotations

import functools
import inspect
import numbers
import os
import sys
import types
import typing
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Final, Literal, ParamSpec, TypeVar

from tidemill import _native
from tidemill.errors import ProgramError
from tidemill.source import here

P = ParamSpec("P")
R = TypeVar("R")

_BY_NAME: Final = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def known_keywords(function: Callable[P, R]) -> Callable[P, R]:
    """Makes a function refuse unknown keywords with the nearest known one.

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
    flags = _flags(function)
    takes_any, places = _takes_any(function), _places(function)
    by_place = _by_place(function)

    @functools.cache
    def hints() -> dict[str, Any]:
        # Not while the module is loaded, because annotations may name what follows.
        try:
            return typing.get_type_hints(function)
        except NameError:
            # Names that are imported for type checkers only.
            return {}

    @functools.wraps(function)
    def checked(*args: P.args, **kwargs: P.kwargs) -> R:
        if len(args) > places:
            raise ProgramError(
                f"{name_of}() has no place for the argument {args[places]!r:.100}",
                f"give it by name, such as {_next_name(known, by_place, kwargs)}="
                f"{args[places]!r:.100}",
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
            if name in flags and not isinstance(kwargs[name], bool):
                # A text such as "no" would count as true.
                raise ProgramError(
                    f"{name_of}(): {name}={kwargs[name]!r} is not True or False",
                    f"write {name}=True, or leave it out",
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


def _takes_any(function: Callable[..., object]) -> bool:
    """Returns whether a function takes any keyword."""
    parameters = inspect.signature(function).parameters.values()
    return any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters)


def _places(function: Callable[..., object]) -> int:
    """Returns the number of positional arguments that a function takes, with ``self``."""
    parameters = inspect.signature(function).parameters.values()
    if any(p.kind is inspect.Parameter.VAR_POSITIONAL for p in parameters):
        return sys.maxsize
    return len(_by_place(function))


def _by_place(function: Callable[..., object]) -> list[str]:
    """Returns the names of the positional parameters, with ``self``."""
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    parameters = inspect.signature(function).parameters.values()
    return [p.name for p in parameters if p.kind in positional]


def _flags(function: Callable[..., object]) -> set[str]:
    """Returns the parameters that are True or False."""
    parameters = inspect.signature(function).parameters.values()
    flags = (p for p in parameters if p.annotation in (bool, "bool"))
    return {p.name for p in flags if isinstance(p.default, bool)}


def _keywords(function: Callable[..., object]) -> list[str]:
    parameters = inspect.signature(function).parameters.values()
    return [p.name for p in parameters if p.kind in _BY_NAME and p.name != "self"]
