"""Loading of apps from Python files."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType

from tidemill import context
from tidemill.app import App
from tidemill.errors import Error, ProgramError
from tidemill.source import is_library, raised_at, shown


def load(argument: str) -> tuple[App, Path]:
    """Returns the app of a file and its folder.

    The argument is ``app.py``, or ``app.py:name`` for a file with several apps.
    """
    text, _, wanted = (
        argument.partition(":") if not os.path.exists(argument) else (argument, "", "")
    )
    path = Path(text)
    if not path.is_file():
        what = f"{text} is a folder" if text and path.is_dir() else f"there is no file {text}"
        raise ProgramError(what, "give the Python file with the app")
    module = _imported(path.resolve())
    apps = {name: value for name, value in vars(module).items() if isinstance(value, App)}
    distinct = {id(app): app for app in apps.values()}
    if wanted:
        if wanted not in apps:
            raise ProgramError(
                f"{text} has no app '{wanted}'", f"it has {', '.join(apps) or 'none'}"
            )
        return apps[wanted], path.resolve().parent
    if not distinct:
        raise ProgramError(f"{text} has no app", 'write app = tm.App("name") at its top level')
    if len(distinct) > 1:
        raise ProgramError(
            f"{text} has {len(distinct)} apps: {', '.join(apps)}",
            f"choose one: {text}:{next(iter(apps))}",
        )
    return next(iter(distinct.values())), path.resolve().parent


def _imported(path: Path) -> ModuleType:
    sys.path.insert(0, str(path.parent))
    sys.argv = [str(path)]
    name = (
        path.stem if path.stem.isidentifier() and path.stem not in sys.modules else "tidemill_app"
    )
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ProgramError(f"{path} is not a Python file", "give a file whose name ends in .py")
    module = importlib.util.module_from_spec(spec)
    # Dataclasses and pickles look up their module there.
    sys.modules[name] = module
    try:
        with context.loading():
            spec.loader.exec_module(module)
    except Error:
        raise
    except SyntaxError as error:
        at = f"{shown(error.filename or str(path))}:{error.lineno or 1}"
        raise ProgramError(f"SyntaxError: {error.msg}", "", at) from error
    except Exception as error:
        raise user_error(error, str(path)) from error
    return module


def user_error(error: Exception, default: str) -> ProgramError:
    """Returns the error for an exception of the user's code, with the line that raised it."""
    place = raised_at(error)
    at = f"{shown(place[0])}:{place[1]}" if place and not is_library(place[0]) else shown(default)
    return ProgramError(f"{type(error).__name__}: {error}", "", at)
