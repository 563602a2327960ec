"""The output of commands: JSON lines, fields for people, and files."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tidemill.errors import Error, SettingError

if TYPE_CHECKING:
    from rich.console import Console


def plain(value: object) -> Any:
    """Returns a value in the form of JSON: NaN as null, and other objects as their text.

    >>> plain({"a": float("nan"), 1: (2, b"x")})
    {'a': None, '1': [2, "b'x'"]}
    """
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(name): plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(item) for item in value]
    item = getattr(value, "item", None)
    if callable(item) and type(value).__module__.startswith("numpy"):
        return plain(item())
    return str(value)


def printed(value: Mapping[str, Any]) -> None:
    """Prints one line of JSON on stdout."""
    print(json.dumps(plain(value), allow_nan=False), flush=True)


def error_line(error: Error) -> dict[str, Any]:
    """Returns an error in the form that commands print with ``--json``."""
    return {
        "error": {
            "kind": type(error).__name__,
            "what": error.what,
            "help": error.help,
            "at": error.at,
        }
    }


def shown(value: object) -> str:
    """Returns a value as text for people, with commas between thousands.

    >>> shown(1234567), shown(0.123456), shown(None)
    ('1,234,567', '0.123', '-')
    """
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    return str(value)


def counted(number: int, what: str) -> str:
    """Returns a number of things in words.

    >>> counted(1, "row"), counted(2000, "row")
    ('1 row', '2,000 rows')
    """
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def _of(name: str, value: object) -> str:
    """Returns the value of a field in words. The id of a process is copied into other commands."""
    return str(value) if name == "process" else shown(value)


def fields(found: Mapping[str, Any], indent: str = "") -> list[str]:
    """Returns lines of names and values; nested values are below their name."""
    width = max((len(str(name)) for name in found), default=0)
    lines: list[str] = []
    for name, value in found.items():
        if isinstance(value, Mapping) and value:
            lines.append(f"{indent}{name}")
            lines.extend(fields(value, indent + "  "))
        elif isinstance(value, list) and value and isinstance(value[0], Mapping):
            lines.append(f"{indent}{name}")
            for item in value:
                pairs = (f"{key}={_of(key, part)}" for key, part in item.items())
                lines.append(f"{indent}  {'  '.join(pairs)}")
        elif isinstance(value, list) and len(value) > 1 and any(len(shown(v)) > 20 for v in value):
            lines.append(f"{indent}{name}")
            lines.extend(f"{indent}  {shown(item)}" for item in value)
        else:
            is_list = isinstance(value, list)
            text = ", ".join(map(shown, value)) if is_list else _of(name, value)
            text = "none" if value in ([], {}) else text
            lines.append(f"{indent}{name:<{width}}  {text}")
    return lines


def console() -> Console:
    """Returns where tables are printed."""
    # Commands without tables need no library for them.
    from rich.console import Console

    return Console(highlight=False, markup=False, soft_wrap=True)


def show_table(
    screen: Console,
    names: Sequence[str],
    rows: Iterable[Sequence[str]],
    right: Collection[str] = (),
) -> None:
    """Prints a table, with the columns in ``right`` aligned to the right. Where another program
    reads it, no line is wrapped.
    """
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False)
    for name in names:
        table.add_column(name, overflow="fold", justify="right" if name in right else "left")
    for row in rows:
        table.add_row(*map(Text, row))
    if not screen.is_terminal:
        options = screen.options.update(width=1 << 30)
        screen.width = max(screen.width, screen.measure(table, options=options).maximum)
    screen.print(table)


def refuse_unwritable(path: Path, ending: str) -> None:
    """Refuses a file that can't be written, before the measurement begins.

    >>> refuse_unwritable(Path("out.png"), ".svg")
    Traceback (most recent call last):
    tidemill.errors.SettingError: out.png: its name must end in .svg
      help: write for example out.svg
    """
    if path.suffix != ending:
        example = path.with_suffix(ending)
        raise SettingError(f"{path}: its name must end in {ending}", f"write for example {example}")
    folder = path.parent
    if not folder.is_dir():
        raise SettingError(
            f"{path}: there is no folder {folder}", "create it, or name another file"
        )
    if path.is_dir() or not os.access(path if path.exists() else folder, os.W_OK):
        raise SettingError(f"{path} can't be written", "name a file in a folder that you may write")
