"""Commands for a running or stopped engine: status, query, tail, dlq, backup and restore.

They ask the engine of a data directory. If the engine is stopped, they read its files. With
``--cluster`` some ask a process over HTTP instead.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from tidemill import _native, errors
from tidemill.app import App
from tidemill.cli import remote
from tidemill.cli.cluster import status_lines, status_of, stored_status
from tidemill.cli.load import load
from tidemill.cli.output import console, counted, fields, printed, show_table, shown
from tidemill.cli.run import add_renames, add_settings, flags
from tidemill.config import apart, default_data_dir, placed
from tidemill.config import load as load_settings
from tidemill.errors import Error, InputError, InternalError, ResourceError, SettingError

Line = dict[str, Any]


def add(commands: Any) -> None:
    """Adds the commands to the parser."""
    status = _command(commands, "status", "show the state of an engine or a cluster", _status)
    _data_dir(status)
    status.add_argument(
        "--cluster",
        metavar="URL",
        help="show the cluster whose coordinator serves this address, instead of an engine",
    )

    query = _command(commands, "query", "show rows of a table", _query)
    query.add_argument("table", metavar="TABLE", help="name of the table")
    query.add_argument(
        "--key",
        metavar="VALUE",
        nargs="+",
        help="show the row with this key: one value for each key column",
    )
    query.add_argument(
        "--filter",
        metavar="TEXT",
        help="show rows for which a condition holds, such as: balance >= 10 and name = 'Ann'",
    )
    query.add_argument(
        "--as-of",
        metavar="WHEN",
        help="show the table as it was after an epoch, or at a time in ISO 8601 (default: now)",
    )
    query.add_argument("--limit", metavar="N", type=int, help="most rows to show (default: 1000)")
    remote.add(query)
    _data_dir(query)

    tail = _command(commands, "tail", "show the events of an output as they arrive", _tail)
    tail.add_argument("stream", metavar="STREAM", help="name of the output")
    tail.add_argument(
        "--from",
        metavar="ROW",
        type=int,
        dest="start",
        help="number of the first row to show",
    )
    tail.add_argument(
        "--no-follow", action="store_true", help="end after the last event instead of waiting"
    )
    remote.add(tail)
    _data_dir(tail)

    dlq = commands.add_parser("dlq", help="list and resend bad and late events")
    dlq_commands = dlq.add_subparsers(dest="dlq_command", metavar="COMMAND", required=True)
    ls = _command(dlq_commands, "ls", "list bad and late events", _dlq_ls)
    ls.add_argument(
        "stream",
        metavar="STREAM",
        nargs="?",
        help="stream of bad or late events, such as payments.dead (default: all)",
    )
    ls.add_argument(
        "--limit", metavar="N", type=int, help="most rows of each stream (default: 1000)"
    )
    remote.add(ls)
    _data_dir(ls)
    replay = _command(dlq_commands, "replay", "send bad and late events again", _dlq_replay)
    replay.add_argument(
        "stream", metavar="STREAM", help="stream of bad or late events, such as payments.dead"
    )
    replay.add_argument(
        "--row",
        metavar="N",
        type=int,
        action="append",
        default=[],
        help="number of a row to send again; repeatable",
    )
    replay.add_argument(
        "--value", metavar="JSON", help="corrected event to send instead of the one given row"
    )
    replay.add_argument(
        "--all", action="store_true", help="send all events again that 'dlq ls' lists"
    )
    _data_dir(replay)

    backup = _command(commands, "backup", "copy a data directory, also of a running app", _backup)
    backup.add_argument("to", metavar="FOLDER", help="folder for the copy, empty or new")
    _data_dir(backup)

    restore = _command(commands, "restore", "restore a data directory from a backup", _restore)
    restore.add_argument("source", metavar="FOLDER", help="folder that 'tidemill backup' wrote")
    _data_dir(restore)

    verify = _command(
        commands, "verify", "read a whole data directory and check all checksums", _verify
    )
    _data_dir(verify)

    schema = commands.add_parser("schema", help="compare an app with a data directory")
    schema_commands = schema.add_subparsers(dest="schema_command", metavar="COMMAND", required=True)
    diff = _command(schema_commands, "diff", "show what an upgrade would change", _schema_diff)
    diff.add_argument("app", metavar="APP.py", help="the Python file with the app")
    _data_dir(diff)
    add_renames(diff)
    add_settings(diff)


def _command(
    commands: Any, name: str, text: str, execute: Callable[[argparse.Namespace], int]
) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = commands.add_parser(name, help=text, description=text)
    parser.set_defaults(execute=execute)
    return parser


def _data_dir(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--data-dir",
        metavar="DIR",
        help="the data directory (default: the only folder *.tidemill in this folder)",
    )


def found_data_dir(given: str | None) -> str:
    """Returns the data directory of a command."""
    if given is not None:
        return given
    if set_by := os.environ.get("TIDEMILL_DATA_DIR"):
        return set_by
    here = sorted(path.name for path in Path().glob("*.tidemill") if path.is_dir())
    if len(here) == 1:
        return here[0]
    if here:
        raise SettingError(
            f"there are several data directories here: {', '.join(here)}",
            f"choose one: --data-dir {here[0]}",
        )
    raise SettingError(
        "there is no data directory here (none is named *.tidemill)",
        "give its path: --data-dir DIR; 'tidemill run' shows it in its first line",
    )


def ask(data_dir: str, request: Mapping[str, Any]) -> Iterator[Line]:
    """Yields the lines of a reply, and raises an error that is among them."""
    for text in _native.ask(data_dir, json.dumps(request)):
        line: Line = json.loads(text)
        if "error" in line:
            raise _error(line["error"])
        yield line
        if line.get("end"):
            return
    raise ResourceError("the engine ended during a reply", "run the command again")


def _asked(args: argparse.Namespace, request: Mapping[str, Any]) -> Iterator[Line]:
    """Yields the lines of a reply, by the process or the data directory that a command names."""
    if getattr(args, "cluster", None) is not None:
        return remote.ask(args, request)
    if getattr(args, "token_file", None) is not None:
        raise SettingError("--token-file is for a process", "name it with --cluster URL")
    return ask(found_data_dir(args.data_dir), request)


def answer(data_dir: str, request: Mapping[str, Any]) -> Line:
    """Returns a reply of one line."""
    for line in ask(data_dir, request):
        return line
    raise InternalError(
        "the engine's reply is empty", "run the command again; if it fails again, report it"
    )


def _error(found: Mapping[str, Any]) -> Error:
    kind = getattr(errors, str(found.get("kind")), InternalError)
    if not (isinstance(kind, type) and issubclass(kind, Error)):
        kind = InternalError
    return kind(str(found.get("what")), str(found.get("help") or ""))


def _without_end(line: Line) -> Line:
    return {name: value for name, value in line.items() if name != "end"}


def _status(args: argparse.Namespace) -> int:
    if args.cluster is not None:
        if args.data_dir is not None:
            raise SettingError("--cluster and --data-dir exclude each other", "give one of them")
        found = status_of(args.cluster)
        if args.json:
            printed(found)
        else:
            print("\n".join(status_lines(found)))
        return 0
    data_dir = found_data_dir(args.data_dir)
    folder = Path(data_dir) / "cluster"
    if (folder / "program").exists() and not (Path(data_dir) / "APP").exists():
        found = stored_status(folder)
        if args.json or "members" not in found:
            return _shown(args, found)
        print("\n".join(status_lines(found)))
        return 0
    reply = answer(data_dir, {"do": "status"})
    found = {"data_dir": data_dir, "engine": reply.get("engine"), **reply["status"]}
    return _shown(args, found)


def _shown(args: argparse.Namespace, found: Mapping[str, Any]) -> int:
    if args.json:
        printed(found)
    else:
        print("\n".join(fields(found)))
    return 0


#: How rows were read.
_READ: Final = {
    "running": "the engine is running",
    "stopped": "the engine is stopped",
    "snapshot": "from the newest snapshot of several processes",
}


def _query(args: argparse.Namespace) -> int:
    request: Line = {"do": "query", "table": args.table}
    if args.key is not None:
        in_folder = args.cluster is None
        request["key"] = _key(args, args.table) if in_folder else list(args.key)
    _check_number("--limit", args.limit, 1, 100_000)
    if args.filter is not None:
        request["filter"] = args.filter
    if args.as_of is not None:
        request["as_of"] = _moment(args.as_of)
    if args.limit is not None:
        request["limit"] = args.limit
    head: Line = {}
    rows: list[Line] = []
    end: Line = {}
    for line in _asked(args, request):
        if "row" in line:
            rows.append(line["row"])
        elif line.get("end"):
            end = _without_end(line)
        else:
            head = line
    if args.json:
        printed({**head, **end, "rows": rows})
        return 0
    _print_rows([column["name"] for column in head["columns"]], rows)
    more = ", and there are more: --limit shows them" if end.get("more") else ""
    if args.cluster is not None:
        print(f"{counted(len(rows), 'row')}{more}; as of the last durable cut")
        return 0
    print(
        f"{counted(len(rows), 'row')}{more}; as of epoch {end['as_of']:,}, "
        f"{end['clock']}; {_READ.get(end['engine'], end['engine'])}"
    )
    return 0


def _check_number(flag: str, number: int | None, low: int, high: int) -> None:
    """Refuses a number outside the range of a flag."""
    if number is not None and not low <= number <= high:
        raise SettingError(f"{flag} {number} is out of range", f"give {low} to {high}")


def _moment(text: str) -> int | str:
    """Returns an epoch, or a time in the form that the engine reads.

    >>> _moment("17"), _moment("2026-01-31T12:00:00Z")
    (17, '2026-01-31T12:00:00Z')
    """
    if not re.fullmatch(r"-?[0-9]+", text, re.ASCII):
        return text
    if len(text) > 19:
        raise SettingError(f"--as-of {text[:40]}: there is no such epoch", "epochs begin at 1")
    number = int(text)
    _check_number("--as-of", number, 0, (1 << 63) - 1)
    return number


def _key(args: argparse.Namespace, table: str) -> list[Any]:
    """Returns the values of a key from texts, by the types of the key's columns."""
    given: Sequence[str] = args.key
    tables = answer(found_data_dir(args.data_dir), {"do": "inspect"})["inspect"]["tables"]
    found = next((known for known in tables if known["name"] == table), None)
    if found is None:
        # The engine's own error is better.
        return list(given)
    types = {column["name"]: column["type"] for column in found["columns"]}
    if len(given) != len(found["key"]):
        raise InputError(
            f"a key of table {table} has {len(found['key'])} columns "
            f"({', '.join(found['key'])}), not {len(given)}",
            "give a value for each: --key VALUE VALUE",
        )
    return [_value(name, types[name], text) for name, text in zip(found["key"], given, strict=True)]


def _value(column: str, kind: str, text: str) -> Any:
    """Returns the value of a column from its text, in the form that requests have.

    >>> _value("id", "int", "7"), _value("name", "str", "7"), _value("ok", "bool", "true")
    (7, '7', True)
    """
    if kind not in ("int", "float", "bool"):
        return text
    try:
        if kind == "int":
            return int(text)
        if kind == "float":
            return float(text)
        return {"true": True, "false": False}[text.lower()]
    except (ValueError, KeyError):
        raise InputError(f"key column '{column}' is {kind}, but '{text}' is not one") from None


def _tail(args: argparse.Namespace) -> int:
    _check_number("--from", args.start, 0, (1 << 63) - 1)
    request: Line = {"do": "tail", "stream": args.stream, "follow": not args.no_follow}
    if args.start is not None:
        request["from"] = args.start
    for line in _asked(args, request):
        if "row" in line:
            if args.json:
                printed(line)
            else:
                pairs = (f"{name}={_cell(value)}" for name, value in line["value"].items())
                print(f"{line['row']:>8}  {'  '.join(pairs)}", flush=True)
        elif line.get("end") and args.json:
            printed(_without_end(line))
    return 0


#: The most rows of dead letters in one answer.
DLQ_ROWS_MAX = 1_000_000


def _dlq(
    args: argparse.Namespace, stream: str | None, limit: int | None = None
) -> tuple[list[Line], Line]:
    request: Line = {"do": "dlq_ls"}
    if limit is not None:
        request["limit"] = limit
    if stream is not None:
        request["stream"] = stream
    if getattr(args, "limit", None) is not None:
        _check_number("--limit", args.limit, 1, DLQ_ROWS_MAX)
        request["limit"] = args.limit
    rows: list[Line] = []
    end: Line = {}
    for line in _asked(args, request):
        if "row" in line:
            rows.append(line)
        else:
            end = _without_end(line)
    return rows, end


def first_dead(data_dir: str) -> str | None:
    """Returns the first retained reason why a row could not be read; None if there is none."""
    try:
        for line in ask(data_dir, {"do": "dlq_ls", "limit": DLQ_ROWS_MAX}):
            if str(line.get("stream")).endswith(".dead"):
                value = line["value"]
                return f"{value['origin']}, line {value['line']}: {value['reason']}"
    except Error:
        # The summary is complete without it.
        return None
    return None


def _dlq_ls(args: argparse.Namespace) -> int:
    rows, end = _dlq(args, args.stream)
    if args.json:
        printed({**end, "rows": rows})
        return 0
    for stream in dict.fromkeys(row["stream"] for row in rows):
        events = [{"row": r["row"], **r["value"]} for r in rows if r["stream"] == stream]
        print(stream)
        _print_rows(list(events[0]), events)
        print()
    for stream, known in end["streams"].items():
        gone = f", {known['dropped']:,} more were dropped" if known["dropped"] else ""
        print(f"{stream}: {counted(known['rows'], 'row')}{gone}")
    if not end["streams"]:
        print("no bad or late events")
    return 0


def _dlq_replay(args: argparse.Namespace) -> int:
    if bool(args.row) == args.all:
        raise SettingError(
            "it is unclear which rows to send again",
            "give --row N, a number that 'dlq ls' shows, or --all",
        )
    if args.value is not None and len(args.row) != 1:
        raise SettingError("--value replaces one row", "give its number: --row N --value JSON")
    for number in args.row:
        _check_number("--row", number, 0, (1 << 63) - 1)
    numbers = args.row or [row["row"] for row in _dlq(args, args.stream, DLQ_ROWS_MAX)[0]]
    rows: list[Line] = [{"row": number} for number in numbers]
    if args.value is not None:
        try:
            rows[0]["value"] = json.loads(args.value)
        except ValueError as error:
            raise InputError(
                f"--value is not JSON: {error}", "write it as an object: '{\"column\": value}'"
            ) from None
    request = {"do": "dlq_replay", "stream": args.stream, "rows": rows}
    reply = _without_end(answer(found_data_dir(args.data_dir), request))
    if args.json:
        printed(reply)
    else:
        print(f"sent {reply['sent']:,} again")
    return 0


def _backup(args: argparse.Namespace) -> int:
    to = os.path.abspath(args.to)
    reply = answer(found_data_dir(args.data_dir), {"do": "backup", "to": to})
    return _shown(args, reply["backup"])


def _app_of(folder: Path) -> str:
    """Returns the name of the app whose state a folder has."""
    if (program := folder / "cluster" / "program").exists():
        return str(json.loads(program.read_text())["is"]["app"]["program"]["name"])
    return str(json.loads((folder / "APP").read_text())["name"])


def _restore(args: argparse.Namespace) -> int:
    source = Path(args.source).absolute()
    data_dir = args.data_dir
    if data_dir is None:
        try:
            data_dir = default_data_dir(_app_of(source))
        except (OSError, ValueError, KeyError):
            raise SettingError(
                f"{args.source} is not a backup: it has no file APP, which names the app",
                "give the folder that 'tidemill backup' wrote",
            ) from None
    reply = answer(str(Path(data_dir).absolute()), {"do": "restore", "from": str(source)})
    return _shown(args, {"data_dir": data_dir, **reply["restore"]})


def _verify(args: argparse.Namespace) -> int:
    data_dir = found_data_dir(args.data_dir)
    reply = answer(data_dir, {"do": "verify"})
    return _shown(args, {"data_dir": data_dir, **reply["verify"]})


def _schema_diff(args: argparse.Namespace) -> int:
    app, folder = load(args.app)
    given = flags(args)
    settings = placed(load_settings(args.config, folder, given, os.environ), app.name)
    data_dir = settings.get("data_dir")
    if data_dir is None:
        raise SettingError("durable=none: there is no data directory", "give --data-dir DIR")
    engine = apart(settings)[0]
    ways = [engine | {"http_port": 0}, {k: v for k, v in engine.items() if k != "http_port"}]
    # The pushed streams depend on how the app was run: by app.start(), or by 'tidemill run' with or
    # without --http. The diff with the fewest changes is the right one.
    diffs: list[tuple[Line, bool, bool]] = [
        (json.loads(_native.schema_diff(json.dumps(spec), opaques, data_dir)), push, served)
        for push in (False, True)
        for way in (ways if app.calls and not push else [engine])
        for served in ["http_port" in way]
        for spec, opaques in [app.spec(way, keep_all=False, push=push)]
    ]
    found, pushed, served = min(diffs, key=lambda diff: len(diff[0]["changes"]))
    # A setting serves it already.
    served = served and "http_port" not in engine
    if args.json:
        printed(found)
    elif found["same"]:
        print(f"app {app.name} has not changed since it wrote {data_dir}")
    else:
        rows = [
            {
                "": f"{change['what']} {change['change']}",
                "name": change["name"],
                "from": change.get("from", ""),
                "to": change.get("to", ""),
                "an upgrade": change.get("upgrade", ""),
                "loses": "" if change.get("lossless", True) else "data",
            }
            for change in found["changes"]
        ]
        _print_rows(list(rows[0]) if rows else [], rows)
        if not found["possible"]:
            print("\n".join(["no upgrade is possible:", *(f"  {why}" for why in found["why"])]))
        elif all(change.get("lossless", True) for change in found["changes"]):
            print(f"an upgrade is possible: {_upgrade(args, app, pushed, served, False)}")
        else:
            how = _upgrade(args, app, pushed, served, True)
            print(f"an upgrade is possible, and loses data: {how}")
    return 0 if found["possible"] else 1


def _upgrade(args: argparse.Namespace, app: App, pushed: bool, served: bool, lossy: bool) -> str:
    """Returns the command of the upgrade that the differences are of.

    ``pushed`` says that earlier runs were by ``app.start()``, and ``served`` that clients could
    call.
    """
    if pushed and not app.reads:
        # The command would find nothing to read.
        renames = dict(rename.split("=", 1) for rename in args.rename)
        more = f", renames={renames!r}" if renames else ""
        return f"app.start(upgrade={('lossy' if lossy else True)!r}{more})"
    command = ["tidemill", "run", str(args.app), "--upgrade", *(["--lossy"] if lossy else [])]
    if served:
        command.extend(["--http", "0"])
    for flag, values in (
        ("--rename", args.rename),
        ("--config", [args.config] if args.config else []),
        ("--data-dir", [args.data_dir] if args.data_dir else []),
        ("--set", args.set),
    ):
        for value in values:
            command.extend([flag, str(value)])
    return shlex.join(command)


def _print_rows(names: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> None:
    def is_number(name: str) -> bool:
        return bool(rows) and all(isinstance(row.get(name), int | float) for row in rows)

    cells = ([_cell(row.get(name)) for name in names] for row in rows)
    show_table(console(), names, cells, [name for name in names if is_number(name)])


def _cell(value: object) -> str:
    """Returns a value of a row as text for people, without commas in numbers.

    >>> _cell(1234567), _cell(None), _cell(True), _cell("12.50"), _cell([1, "a"])
    ('1234567', '-', 'true', '12.50', '[1, "a"]')
    """
    if isinstance(value, str):
        return value
    if isinstance(value, bool | int | float | list | dict):
        return json.dumps(value)
    return shown(value)
