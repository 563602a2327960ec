"""Writes the pages of the reference that follow from the code: commands, settings and the API.

python tools/reference.py          # writes docs/reference/{cli,settings,api}.md
python tools/reference.py --check  # exits with 1 where a page is not what the code says
"""

from __future__ import annotations

import argparse
import inspect
import re
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import tidemill
from tidemill import cli, config

PAGES = Path(__file__).resolve().parents[1] / "docs/reference"

GENERATED = "<!-- Written by tools/reference.py from the code: change it there. -->"

MODES = {
    config.MEMORY: "memory",
    config.DIRECTORY: "one process",
    config.PROCESSES: "several processes",
    config.COORDINATOR: "coordinator",
    config.WORKER: "worker",
}

SECTIONS = {
    "Execution": ("workers", "strategy", "rerun_every", "deadline_us", "on_fault"),
    "Epochs and memory": (
        "epoch_idle",
        "epoch_rows_max",
        "epoch_bytes_max",
        "epoch_us_max",
        "memory_bytes_max",
        "buffered_bytes_max",
        "tail_rows",
        "tail_bytes",
        "dlq_rows_max",
        "dlq_bytes_max",
        "keep_cuts",
    ),
    "Durability": (
        "data_dir",
        "durable",
        "recovery",
        "snapshot_us",
        "log_segment_bytes",
        "poison_after",
        "accept_replay",
        "clock_jump_us_max",
        "fresh",
        "upgrade",
        "renames",
        "log_to",
    ),
    "HTTP": tuple(name for name in config.SETTINGS if name.startswith("http_")),
    "Several processes": tuple(config.CLUSTER),
}


def prose(text: str) -> str:
    """A paragraph in lines of a page."""
    return textwrap.fill(text, 110, break_long_words=False, break_on_hyphens=False)


# -- settings


def values(setting: config.Setting) -> str:
    """The values that a setting takes."""
    kind = setting.kind
    if kind is int:
        low, high = setting.range
        return f"{low:,} to {high:,}"
    if kind is config.LOSSY:
        return "`true`, `false`, `lossy`"
    if isinstance(kind, tuple):
        return ", ".join(f"`{value}`" for value in kind)
    names = {bool: "`true`, `false`", str: "text", Path: "path", dict: "names with texts"}
    return names[kind]  # type: ignore[index]


def where(setting: config.Setting) -> str:
    """The ways to run an app in which a setting means something."""
    if setting.modes == config.MODES:
        return "everywhere"
    return ", ".join(MODES[mode] for mode in setting.modes)


def settings() -> Iterator[str]:
    """The reference of settings."""
    yield "# Settings"
    yield prose(
        "Each setting has one name everywhere. A flag wins over the environment, and the"
        " environment over the file."
    )
    yield (
        "- a line in `tidemill.toml`, beside the app: `workers = 4`\n"
        "- a variable of the environment: `TIDEMILL_WORKERS=4`\n"
        "- a flag: `tidemill run app.py --set workers=4`\n"
        "- an argument in Python: `app.start(workers=4)`"
    )
    yield prose(
        "An unknown setting is an error, and so is one that means nothing in the way the app runs."
        " The column “in” lists these ways: in memory, in one process with a data directory, on"
        " several processes of one machine (`--processes`), as a coordinator, or as a worker."
        " Durations are in microseconds (`_us`)."
    )
    placed = {name for names in SECTIONS.values() for name in names}
    assert placed == set(config.ALL), placed ^ set(config.ALL)
    for title, names in SECTIONS.items():
        yield f"## {title}"
        rows = ["| setting | default | values | in | meaning |", "| --- | --- | --- | --- | --- |"]
        for name in names:
            setting = config.ALL[name]
            help = setting.help + (f" Needs `{setting.needs}`." if setting.needs else "")
            cells = [f"`{name}`", setting.default, values(setting), where(setting), help]
            rows.append("| " + " | ".join(cells) + " |")
        yield "\n".join(rows)


# -- commands


def commands(parser: argparse.ArgumentParser) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """The commands of a parser that have none themselves, with their names."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, child in action.choices.items():
                nested = [a for a in child._actions if isinstance(a, argparse._SubParsersAction)]
                if nested:
                    yield from ((f"{name} {of}", leaf) for of, leaf in commands(child))
                else:
                    yield name, child


def sentence(text: str | None) -> str:
    """The text of a help, without reStructuredText's marks."""
    text = re.sub(r"\s+", " ", (text or "").replace("%%", "%")).replace("``", "`").strip()
    return text.replace("|", "\\|").replace("<", "\\<")


def command(name: str, parser: argparse.ArgumentParser) -> Iterator[str]:
    """The section of a command."""
    yield f"## tidemill {name}"
    about = re.sub(rf"^`?tidemill {name}`?: ", "", sentence(parser.description))
    if about:
        yield prose(about[0].upper() + about[1:].rstrip(".") + ".")
    usage = re.sub(r"\s+", " ", parser.format_usage()).strip().removeprefix("usage: ")
    yield f"```text\n{usage}\n```"
    rows = ["| argument | meaning |", "| --- | --- |"]
    for action in parser._actions:
        if action.dest in ("help", "json", "debug") or action.help == argparse.SUPPRESS:
            continue
        value: Any = action.metavar or (action.dest.upper() if action.nargs != 0 else "")
        if action.choices and not action.metavar:
            value = "{" + ",".join(str(choice) for choice in action.choices) + "}"
        shown = " ".join([", ".join(action.option_strings), str(value)]).strip()
        rows.append(f"| `{shown}` | {sentence(action.help)} |")
    if len(rows) > 2:
        yield "\n".join(rows)


def command_line() -> Iterator[str]:
    """The reference of commands."""
    yield "# Commands"
    yield prose(
        "Every command takes `--json`, which prints one line of JSON as the last line of its"
        " output, and `--debug`, which shows tracebacks. The exit code is 0 for success, 1 for an"
        " error of the app, its settings or its input, 2 for wrong usage, and 130 after Ctrl-C."
    )
    for name, parser in commands(cli.parser()):
        yield from command(name, parser)


# -- the API

GROUPS = {
    "Apps": ["App", "Stream", "Table", "Handler", "Index", "Trigger", "OwnedWindow"],
    "Running apps": ["Mill", "TableView", "OutputView", "Cut"],
    "Entities and functions": ["Entity", "Function", "Context", "Reply"],
    "Clients": ["Client", "AsyncClient", "Event", "Change", "Reset"],
    "Sources and sinks": ["files", "Files", "kafka", "Kafka"],
    "Types": ["column", "decimal", "timestamp", "optional", "list", "any"],
    "Windows": ["sliding", "tumbling", "session", "last", "Window"],
}


def api() -> Iterator[str]:
    """The reference of the package, which Sphinx fills from docstrings."""
    yield "# API"
    yield prose(
        "Everything is imported from `tidemill`, usually `import tidemill as tm`. Types of columns"
        " and errors are described once, in [values](values.md) and [errors](errors.md)."
    )
    public = [name for name in tidemill.__all__ if not name.startswith("__")]
    errors = [
        name
        for name in public
        if inspect.isclass(getattr(tidemill, name))
        and issubclass(getattr(tidemill, name), Exception)
    ]
    placed = {name for names in GROUPS.values() for name in names} | set(errors)
    groups = {
        **GROUPS,
        "Expressions": [name for name in public if name not in placed],
        "Errors": errors,
    }
    assert {name for names in groups.values() for name in names} == set(public)
    for title, names in groups.items():
        yield f"## {title}"
        for name in names:
            kind = "autoclass" if inspect.isclass(getattr(tidemill, name)) else "autofunction"
            if not callable(getattr(tidemill, name)):
                kind = "autodata"
            yield f"```{{eval-rst}}\n.. {kind}:: tidemill.{name}\n```"


def main() -> int:
    """Writes or compares the pages; gives the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing, compare")
    check = parser.parse_args().check
    stale = []
    for name, parts in (("settings", settings()), ("cli", command_line()), ("api", api())):
        path = PAGES / f"{name}.md"
        text = f"{GENERATED}\n\n" + "\n\n".join(parts) + "\n"
        if check and (not path.exists() or path.read_text() != text):
            stale.append(path.name)
        elif not check:
            path.write_text(text)
    if stale:
        print(f"run tools/reference.py: {', '.join(stale)} differ from the code", file=sys.stderr)
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
