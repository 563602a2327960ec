"""``tidemill inspect``: shows how an app will be executed, or the state of an engine.

With an app it shows handlers, tables, streams, sources and sinks, and does not run the app. Without
one it shows the app and the progress of the engine of a data directory.
"""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING, Any

from tidemill.cli.engine import answer, found_data_dir
from tidemill.cli.load import load
from tidemill.cli.output import console, fields, printed, show_table
from tidemill.cli.run import add_settings, flags
from tidemill.config import load as load_settings
from tidemill.errors import SettingError

if TYPE_CHECKING:
    from rich.console import Console


def add(commands: Any) -> None:
    """Adds the command to the parser."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "inspect", help="show how an app or engine executes", description=__doc__
    )
    parser.add_argument(
        "app",
        metavar="APP.py",
        nargs="?",
        help="the Python file with the app (default: show the engine of a data directory)",
    )
    parser.add_argument(
        "--data-dir",
        metavar="DIR",
        help="data directory of the engine (default: the only folder *.tidemill in this folder)",
    )
    add_settings(parser)
    parser.set_defaults(execute=execute)


def execute(args: argparse.Namespace) -> int:
    """Runs the command."""
    if args.app is None:
        return _engine(args)
    if args.data_dir is not None:
        raise SettingError(
            "inspect shows an app or a data directory, not both", f"leave out {args.app}"
        )
    app, folder = load(args.app)
    settings = load_settings(args.config, folder, flags(args), os.environ)
    found = app.inspect(settings)
    paths = {handler.name: handler.path for handler in app.handlers}
    for handler in found["handlers"]:
        # The engine's path tells how the handler is executed, not whether it was traced.
        handler["traced"] = paths[handler["name"]] == "traced"
    if args.json:
        printed(found)
        return 0
    screen = _shown(app.name, found)
    changed = {k: v for k, v in found.get("settings", {}).items() if k in settings}
    if changed:
        screen.print("\n".join(["", "settings", *fields(changed, "  ")]))
    return 0


def _engine(args: argparse.Namespace) -> int:
    """Shows the engine of a data directory."""
    data_dir = found_data_dir(args.data_dir)
    reply = answer(data_dir, {"do": "inspect"})
    found: dict[str, Any] = {"data_dir": data_dir, "engine": reply["engine"], **reply["inspect"]}
    if args.json:
        printed(found)
        return 0
    for handler in found["handlers"]:
        handler["traced"] = handler["why"] == "traced"
    for stream in found["streams"]:
        stream["rows"] = found["outputs"].get(stream["name"])
        stream["dead"] = found["dead"].get(stream["name"])
        stream["late"] = found["late"].get(stream["name"])
    screen = _shown(found["app"], found)
    names = ["epoch", "transactions", "transaction_ns", "strategy", "why"]
    _table(screen, "epochs", names, found.get("epochs", []))
    screen.print("\n".join(["", "status", *fields(found["status"], "  ")]))
    return 0


def _shown(name: str, found: dict[str, Any]) -> Console:
    """Prints the parts that apps and engines have in common."""
    screen = console()
    screen.print(f"app {name}")
    _table(
        screen,
        "handlers",
        ["name", "input", "path", "why", "emits", "at"],
        [
            {**h, "path": f"traced ({h['path']})" if h["traced"] else h["path"]}
            for h in found["handlers"]
        ],
    )
    for table in found["tables"]:
        table["columns"] = _columns(table["columns"])
    for stream in found["streams"]:
        stream["columns"] = _columns(stream["columns"])
    for source in [*found["sources"], *found["sinks"]]:
        source["path"] = source["files"]["path"] if source.get("files") else "pushed"
        if topic := source.get("kafka"):
            source["path"] = f"kafka:{topic['topic']}"
    _table(screen, "tables", ["name", "key", "rows", "columns", "at"], found["tables"])
    names = ["name", "origin", "time", "rows", "dead", "late", "columns", "at"]
    _table(screen, "streams", names, found["streams"])
    names = ["stream", "name", "offset", "ended"] if "status" in found else ["stream", "path", "at"]
    _table(screen, "sources", names, found["sources"])
    _table(screen, "sinks", ["stream", "path"], found["sinks"])
    return screen


def _columns(columns: list[dict[str, Any]]) -> str:
    return ", ".join(f"{c['name']}: {c['type']}{'?' if c['nullable'] else ''}" for c in columns)


def _table(screen: Console, title: str, names: list[str], rows: list[dict[str, Any]]) -> None:
    if not rows:
        return
    names = [name for name in names if any(row.get(name) is not None for row in rows)]
    screen.print(f"\n{title}")
    show_table(screen, names, ([_cell(row.get(name)) for name in names] for row in rows))


def _cell(value: object) -> str:
    if isinstance(value, list):
        return ", ".join(value)
    if value is None:
        return ""
    return f"{value:,}" if type(value) is int else str(value)
