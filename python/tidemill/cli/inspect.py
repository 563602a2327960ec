"""``tidemill inspect``: how an app will run, without running it."""

from __future__ import annotations

import argparse
import os
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from tidemill.cli.load import load
from tidemill.cli.output import fields, printed
from tidemill.cli.run import add_settings, flags
from tidemill.config import load as load_settings


def add(commands: Any) -> None:
    """Adds the command to the parser."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "inspect", help="show how an app will run", description=__doc__
    )
    parser.add_argument("app", metavar="APP.py", help="the file that makes the app")
    add_settings(parser)
    parser.set_defaults(execute=execute)


def execute(args: argparse.Namespace) -> int:
    """Runs the command."""
    app, folder = load(args.app)
    settings = load_settings(args.config, folder, flags(args), os.environ)
    found = app.inspect(settings)
    paths = {handler.name: handler.path for handler in app.handlers}
    for handler in found["handlers"]:
        # The engine's path says how a traced handler is executed; this, that it is one.
        handler["traced"] = paths[handler["name"]] == "traced"
    if args.json:
        printed(found)
        return 0
    console = Console(highlight=False, markup=False, soft_wrap=True)
    console.print(f"app {app.name}")
    _table(
        console,
        "handlers",
        ["name", "input", "path", "why", "emits", "at"],
        [
            {**h, "path": f"{'traced' if h['traced'] else 'opaque'} ({h['path']})"}
            for h in found["handlers"]
        ],
    )
    for table in found["tables"]:
        table["columns"] = _columns(table["columns"])
    for stream in found["streams"]:
        stream["columns"] = _columns(stream["columns"])
    for source in [*found["sources"], *found["sinks"]]:
        source["path"] = source["files"]["path"] if source.get("files") else "pushed"
    _table(console, "tables", ["name", "key", "columns", "at"], found["tables"])
    _table(console, "streams", ["name", "origin", "time", "columns", "at"], found["streams"])
    _table(console, "sources", ["stream", "path", "at"], found["sources"])
    _table(console, "sinks", ["stream", "path"], found["sinks"])
    changed = {k: v for k, v in found.get("settings", {}).items() if k in settings}
    if changed:
        console.print("\n".join(["", "settings", *fields(changed, "  ")]))
    return 0


def _columns(columns: list[dict[str, Any]]) -> str:
    return ", ".join(f"{c['name']}: {c['type']}{'?' if c['nullable'] else ''}" for c in columns)


def _table(console: Console, title: str, names: list[str], rows: list[dict[str, Any]]) -> None:
    if not rows:
        return
    table = Table(box=None, pad_edge=False)
    for name in names:
        table.add_column(name, overflow="fold")
    for row in rows:
        cells = [row.get(name) for name in names]
        table.add_row(*(Text(", ".join(c) if isinstance(c, list) else str(c or "")) for c in cells))
    console.print(f"\n{title}")
    console.print(table)
