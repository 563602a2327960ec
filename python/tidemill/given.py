"""The arguments of declarations, converted for the engine: spans, parameters and histories."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from tidemill.errors import ProgramError
from tidemill.types import Caller, column, duration_us, optional

_HISTORY = 'say history="1h" (by time), history=1000 (by count) or both, as a tuple'


def span(given: object, what: str) -> int:
    """Returns a span in microseconds, or an int in the unit of an int time column."""
    if isinstance(given, int) and not isinstance(given, bool):
        return given
    return duration_us(given, True, what)


def parameters_of(
    function: Callable[..., Any], name: str, at: str, what: str = "procedure"
) -> dict[str, object]:
    """Returns the parameters of a function after its first ones, with their types, as columns."""
    firsts = {"procedure": ["tx"], "external": ["id"], "function": ["self", "ctx"]}[what]
    first = ", ".join(firsts)
    try:
        given = list(inspect.signature(function, eval_str=True).parameters.values())
        own, given = given[: len(firsts)], given[len(firsts) :]
        if what == "function" and len(own) < 2:
            named = getattr(function, "__name__", "function")
            raise ProgramError(
                f"function {name} does not take ({first})", f"declare it as {named}({first})", at
            )
    except (TypeError, ValueError, NameError) as error:
        raise ProgramError(f"{what} {name}: {error}", "write a plain function", at) from None
    columns: dict[str, object] = {}
    for parameter in given:
        if parameter.kind is not parameter.POSITIONAL_OR_KEYWORD:
            raise ProgramError(
                f"{what} {name}: '{parameter}' is not a plain parameter",
                f"declare it as def {name}({first}, {parameter.name}: int)",
                at,
            )
        if parameter.annotation is parameter.empty:
            raise ProgramError(
                f"{what} {name}: parameter '{parameter.name}' has no type",
                f"write {parameter.name}: int, or another type that a column may have",
                at,
            )
        if parameter.annotation == Caller:
            check_caller(what, name, parameter, given, at)
            columns[parameter.name] = optional(str)
            continue
        columns[parameter.name] = parameter.annotation
        if parameter.default is not parameter.empty:
            columns[parameter.name] = column(parameter.annotation, default=parameter.default)
    return columns


def check_caller(
    what: str, name: str, parameter: inspect.Parameter, given: list[inspect.Parameter], at: str
) -> None:
    """Refuses a parameter for the caller that could not receive it."""
    if what == "external":
        raise ProgramError(
            f"{what} {name}: '{parameter.name}' is a caller, and only transactions request it",
            "give the caller as a column of the request, of type str",
            at,
        )
    if parameter is not given[-1] or parameter.default not in (parameter.empty, None):
        raise ProgramError(
            f"{what} {name}: the caller '{parameter.name}' is not the last parameter, or has a "
            "default",
            f"declare it last, as {parameter.name}: tm.Caller",
            at,
        )


def caller_of(function: Callable[..., Any]) -> str | None:
    """Returns the parameter of a function that receives the caller's name, if there is one."""
    parameters = inspect.signature(function, eval_str=True).parameters.values()
    return next((p.name for p in parameters if p.annotation == Caller), None)


def kept_of(owner: str, given: Any, at: str) -> tuple[int | None, int | None]:
    """Returns the history of a table: a span in microseconds, and a number of versions."""
    if isinstance(given, tuple) and len(given) == 2:
        time, versions = given
    elif isinstance(given, int):
        time, versions = None, given
    else:
        time, versions = given, None
    for kept in (time, versions):
        if isinstance(kept, bool) or (isinstance(kept, int) and kept <= 0):
            raise ProgramError(f"{owner}: history={given!r} retains nothing", _HISTORY, at)
    if versions is not None and not isinstance(versions, int):
        raise ProgramError(
            f"{owner}: history retains a number of versions, not {versions!r}", _HISTORY, at
        )
    if time is None and versions is None:
        raise ProgramError(f"{owner}: history={given!r} retains nothing", _HISTORY, at)
    if time is None or isinstance(time, int):
        return time, versions
    try:
        time_us = duration_us(time, True, f"{owner}: history")
    except ProgramError as error:
        raise ProgramError(error.what, error.help, at) from None
    if time_us == 0:
        raise ProgramError(f"{owner}: history={given!r} retains nothing", _HISTORY, at)
    return time_us, versions
