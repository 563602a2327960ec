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
from tidemill import cli, config, types

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
    ),
    "Log": ("log", "log_format", "log_to"),
    "HTTP": tuple(name for name in config.SETTINGS if name.startswith("http_")),
    "Several processes": tuple(config.CLUSTER),
}


def prose(text: str) -> str:
    """A paragraph in lines of a page."""
    return textwrap.fill(text, 110, break_long_words=False, break_on_hyphens=False)


# -- settings


def bytes_(value: int) -> str:
    """A number of bytes in the largest unit that gives a whole number."""
    units = ("bytes", "KiB", "MiB", "GiB", "TiB", "PiB")
    power = 0
    while value and value % 1024 == 0 and power < len(units) - 1:
        value //= 1024
        power += 1
    return f"{value:,} {units[power] if value != 1 or power else 'byte'}"


#: Microseconds of a unit of time, the largest first; a year is what the settings count as one.
TIMES = {
    "years": 31_557_600_000_000,
    "days": 86_400_000_000,
    "h": 3_600_000_000,
    "min": 60_000_000,
    "s": 1_000_000,
    "ms": 1_000,
    "µs": 1,
}


def span(value: int) -> str:
    """A number of microseconds in the largest unit that gives a whole number."""
    for unit, size in TIMES.items():
        if value and value % size == 0:
            return f"{value // size:,}\N{NO-BREAK SPACE}{unit}"
    return str(value)


def values(name: str, setting: config.Setting) -> str:
    """The values that a setting takes."""
    kind = setting.kind
    if name == "strategy":
        return "a [strategy](../internals/parallel.md#the-strategies)"
    if kind is int:
        words = name.split("_")
        shown = span if "us" in words else bytes_ if "bytes" in words else "{:,}".format
        low, high = setting.range
        return f"{shown(low)} to {shown(high)}"
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
        rows = ["| setting | default | meaning | values | in |", "| --- | --- | --- | --- | --- |"]
        for name in names:
            setting = config.ALL[name]
            help = setting.help + (f" Needs `{setting.needs}`." if setting.needs else "")
            cells = [f"`{name}`", setting.default, help, values(name, setting), where(setting)]
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
    """The text of a help, with its flags and commands as code."""
    text = re.sub(r"\s+", " ", (text or "").replace("%%", "%")).replace("``", "`").strip()
    text = re.sub(r"'(tidemill [^']*)'", r"`\1`", text)
    parts = re.split(r"(`[^`]*`)", text.replace("|", "\\|"))
    for at in range(0, len(parts), 2):
        parts[at] = re.sub(r"(?<![\w-])--[a-z][a-z-]*", r"`\g<0>`", parts[at]).replace("<", "\\<")
    return "".join(parts)


def usage(parser: argparse.ArgumentParser) -> str:
    """The usage of a command, in lines that fit a page."""
    text = re.sub(r"\s+", " ", parser.format_usage()).strip().removeprefix("usage: ")
    # A line ends between arguments, and not inside of one.
    text = re.sub(r"\[[^\]]*(?:\[[^\]]*\][^\]]*)*\]", lambda at: at[0].replace(" ", "\0"), text)
    text = textwrap.fill(
        text, 76, subsequent_indent="    ", break_long_words=False, break_on_hyphens=False
    )
    return text.replace("\0", " ")


def command(name: str, parser: argparse.ArgumentParser) -> Iterator[str]:
    """The section of a command."""
    yield f"## tidemill {name}"
    about = re.sub(r"^(`?tidemill [a-z ]+`?( and )?)+: ", "", sentence(parser.description))
    if about:
        yield prose(about[0].upper() + about[1:].rstrip(".") + ".")
    yield f"```text\n{usage(parser)}\n```"
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
    "Transactions and entities": ["Tx", "Context", "Entity", "Function", "Reply", "Caller"],
    "Clients": ["Client", "AsyncClient", "Event", "Change", "Reset"],
    "Sources and sinks": ["files", "Files", "kafka", "Kafka"],
    "Types": ["column", "decimal", "timestamp", "optional", "list", "any"],
    "Windows": ["sliding", "tumbling", "session", "last", "Window"],
}


#: What introduces a group, where its names do not.
INTRODUCTIONS = {
    "Transactions and entities": (
        "The first argument of a handler or procedure, `tx`, is the transaction. A function of an"
        " entity gets a `Context`. In a traced function, `tx` has `require`, `emit` and `when`:"
        " annotate it as `Any`, and see [expressions](expressions.md#the-transaction)."
    ),
}

#: Names of types of Python, whose own docstrings say something else. The comment above the name in
#: ``types.py`` documents it.
ALIASES = {"Caller"}

#: Classes that users create objects of. Others have no signature in the reference.
CREATED = {"App", "Client", "AsyncClient"}

#: Members that only other modules of the package use, and `when`, which is for traced functions.
INTERNAL = {
    *("add_stream", "bound", "called", "caller", "calls", "check", "check_emittable", "check_unit"),
    *("counts", "emitted", "empty", "entity", "entries", "filled", "stop_now", "handler_json"),
    *("has_sides", "indexes", "is_vacant", "json", "keeps", "key_values", "more", "named_emits"),
    *("names", "needs_us", "needs_value", "needs_versions", "owner", "places", "private"),
    *("refuse_private", "refuse_reply", "roles", "row_values", "settable", "sink_json"),
    *("source_json", "span", "spec", "text", "timers", "unknown", "when", "with_caller"),
}

#: Members of these names that users meet in other classes.
USED = {"App": {"entity"}}


def is_ours(cls: type) -> bool:
    """Whether a class is one of the package that is written in Python."""
    return cls.__module__.startswith("tidemill.") and "_native" not in cls.__module__


def documented(name: str, cls: type, public: list[str]) -> Iterator[str]:
    """The directive of a class, with the members that users meet."""
    is_error = issubclass(cls, Exception)
    signature = "" if name in CREATED or is_error else "()"
    yield f".. autoclass:: tidemill.{name}{signature}"
    if cls.__mro__[1].__name__ in public:
        yield "   :show-inheritance:"
    if is_error:
        return
    # A member is in the class, or its `__init__` sets it.
    source = "".join(inspect.getsource(base) for base in cls.__mro__ if is_ours(base))
    members = set(dir(cls)) | set(re.findall(r"self\.([a-z]\w*)\b", source))
    internal = sorted((INTERNAL - USED.get(name, set())) & members)
    if internal:
        yield f"   :exclude-members: {', '.join(internal)}"
    # Members of private bases are those of the class.
    for base in cls.__mro__[1:]:
        if base.__name__ in public or not is_ours(base):
            if base is not cls.__mro__[1]:
                yield f"   :inherited-members: {base.__name__}"
            return


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
        if title in INTRODUCTIONS:
            yield prose(INTRODUCTIONS[title])
        for name in names:
            given = getattr(tidemill, name)
            lines = [f".. {'autofunction' if callable(given) else 'autodata'}:: tidemill.{name}"]
            if name in ALIASES:
                lines = [f".. py:data:: tidemill.{name}", "", f"   {comment_of(name)}"]
            elif inspect.isclass(given):
                lines = list(documented(name, given, public))
            yield "```{eval-rst}\n" + "\n".join(lines) + "\n```"


def comment_of(name: str) -> str:
    """Returns the comment above the assignment of a name in ``types.py``."""
    found = re.search(rf"((?:#: .*\n)+){name}\b", inspect.getsource(types))
    assert found is not None, name
    return " ".join(line.removeprefix("#: ") for line in found[1].splitlines())


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
