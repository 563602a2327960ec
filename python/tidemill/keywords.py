"""Refusals of arguments that a function does not have, and of flags that are no bools."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable
from typing import Final, ParamSpec, TypeVar

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

    @functools.wraps(function)
    def checked(*args: P.args, **kwargs: P.kwargs) -> R:
        if len(args) > places:
            raise ProgramError(
                f"{name_of}() has no place for the argument {args[places]!r:.100}",
                f"give it by name: {name_of}(name={args[places]!r:.100})"
                + (f"; the names are {', '.join(known)}" if known else ""),
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
        return function(*args, **kwargs)

    return checked


def near_keyword(function: Callable[..., object], name: str) -> str | None:
    """Returns the keyword of a function that is nearest to a name, or None if none is near.

    >>> near_keyword(known_keywords, "functoin")
    'function'
    """
    return _native.nearest(name, _keywords(function))


def _takes_any(function: Callable[..., object]) -> bool:
    """Returns whether a function takes any keyword."""
    parameters = inspect.signature(function).parameters.values()
    return any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters)


def _places(function: Callable[..., object]) -> int:
    """Returns the number of positional arguments that a function takes, with ``self``."""
    parameters = inspect.signature(function).parameters.values()
    if any(p.kind is inspect.Parameter.VAR_POSITIONAL for p in parameters):
        return sys.maxsize
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return sum(p.kind in positional for p in parameters)


def _flags(function: Callable[..., object]) -> set[str]:
    """Returns the parameters that are True or False."""
    parameters = inspect.signature(function).parameters.values()
    flags = (p for p in parameters if p.annotation in (bool, "bool"))
    return {p.name for p in flags if isinstance(p.default, bool)}


def _keywords(function: Callable[..., object]) -> list[str]:
    parameters = inspect.signature(function).parameters.values()
    return [p.name for p in parameters if p.kind in _BY_NAME and p.name != "self"]
