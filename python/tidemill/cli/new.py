"""``tidemill new``: makes a starter app with data and a test."""

from __future__ import annotations

import argparse
import re
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

from tidemill.cli.output import printed
from tidemill.errors import IoError, SettingError

#: The placeholder for the app's name in the starter's files.
PLACEHOLDER = "NAME"


def add(commands: Any) -> None:
    """Adds the command to the parser."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "new", help="make a starter app in a new folder", description=__doc__
    )
    parser.add_argument("name", metavar="NAME", help="the app's name, and that of the folder")
    parser.set_defaults(execute=execute)


def execute(args: argparse.Namespace) -> int:
    """Runs the command."""
    written = make(Path(args.name))
    if args.json:
        printed({"folder": args.name, "files": [str(path) for path in written]})
    else:
        print(f"made {args.name}/ with {len(written)} files. Try it:\n")
        print(f"    cd {args.name}\n    tidemill run app.py --fresh\n    tidemill query seats")
        print("    python -m unittest")
    return 0


def make(folder: Path) -> list[Path]:
    """Makes a starter app in a folder that does not exist yet.

    Returns:
        The files, relative to the folder.

    Raises:
        SettingError: The folder's name can't be that of an app.
        IoError: The folder exists, or can't be written.
    """
    if not re.fullmatch(r"[A-Za-z][\w-]{0,63}", folder.name):
        raise SettingError(
            f"'{folder.name}' can't be the name of an app",
            "begin with a letter, and use letters, digits, _ and - only",
        )
    try:
        folder.mkdir()
    except FileExistsError:
        raise IoError(f"{folder} exists already", "give another name, or remove it") from None
    except OSError as error:
        raise IoError(f"can't make {folder}: {error.strerror}", "choose another place") from None
    return sorted(_copied(resources.files("tidemill") / "starter", folder, folder))


def _copied(source: Traversable, to: Path, folder: Path) -> list[Path]:
    """Copies a folder of the package, with the app's name put in."""
    written = []
    for item in source.iterdir():
        path = to / item.name
        if item.is_dir():
            if item.name != "__pycache__":
                path.mkdir()
                written.extend(_copied(item, path, folder))
        else:
            path.write_text(item.read_text().replace(PLACEHOLDER, folder.name))
            written.append(path.relative_to(folder))
    return written
