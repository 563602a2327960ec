"""The arguments of declarations, converted for the engine: spans, parameters and histories."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from tidemill.errors import ProgramError
from tidemill.types import column, duration_us


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
        columns[parameter.name] = parameter.annotation
        if parameter.default is not parameter.empty:
            columns[parameter.name] = column(parameter.annotation, default=parameter.default)
    return columns


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
            raise ProgramError(f"{owner}: history={given!r} retains nothing", "", at)
    if versions is not None and not isinstance(versions, int):
        raise ProgramError(
            f"{owner}: history retains a number of versions, not {versions!r}", "", at
        )
    if time is None and versions is None:
        raise ProgramError(f"{owner}: history={given!r} retains nothing", "", at)
    if time is None or isinstance(time, int):
        return time, versions
    try:
        time_us = duration_us(time, True, f"{owner}: history")
    except ProgramError as error:
        raise ProgramError(error.what, error.help, at) from None
    if time_us == 0:
        raise ProgramError(f"{owner}: history={given!r} retains nothing", "", at)
    return time_us, versions
