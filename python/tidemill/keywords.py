"""Refusals of arguments that a function does not have, and of flags that are no bools."""

from __future__ import annotations

import functools
import inspect
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
    known = _keywords(function)
    flags = _flags(function)

    @functools.wraps(function)
    def checked(*args: P.args, **kwargs: P.kwargs) -> R:
        for name in kwargs:
            if name not in known:
                near = _native.nearest(name, known)
                raise ProgramError(
                    f"{function.__name__}() has no argument '{name}'",
                    f"did you mean '{near}'?" if near else f"it has {', '.join(known)}",
                    here(),
                )
            if name in flags and not isinstance(kwargs[name], bool):
                # A text such as "no" would count as true.
                raise ProgramError(
                    f"{function.__name__}(): {name}={kwargs[name]!r} is not True or False",
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


def _flags(function: Callable[..., object]) -> set[str]:
    """Returns the parameters that are True or False."""
    parameters = inspect.signature(function).parameters.values()
    return {p.name for p in parameters if isinstance(p.default, bool)}


def _keywords(function: Callable[..., object]) -> list[str]:
    parameters = inspect.signature(function).parameters.values()
    return [p.name for p in parameters if p.kind in _BY_NAME and p.name != "self"]
