"""The promises of docs/internals/protocol.md, for a running engine and a stopped one."""

from __future__ import annotations

import datetime as dt
import json
import os
import re
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from pathlib import Path
from typing import Any

import httpx
import pytest

import tidemill as tm
from tidemill import _native
from tidemill.cli.token import write

RUNNING = Path(__file__).parents[2] / "docs/internals/protocol.md"

#: The bytes of a request, at most.
REQUEST_BYTES_MAX = 1 << 20


class Bank:
    """Accounts that events and calls change."""

    def __init__(self, procedures: bool = True) -> None:
        app = self.app = tm.App("bank")
        accounts = app.table("accounts", key="id", id=int, n=tm.column(int, default=0))
        self.payments = app.stream("payments", id=int)

        @app.transaction(self.payments)
        def pay(tx, e):
            accounts[e.id].n += 1
            return dict(id=e.id)

        if procedures:

            @app.procedure(role="clerk")
            def add(tx, id: int, n: int = 1):
                tx.require(n > 0, "too little")
                accounts[id].n += n
                return accounts[id].n

            @app.procedure
            def wait(tx, go: int):
                # The other call is behind this one, so nobody waits for anything else.
                self.go.wait(20)
                return go

        self.go = threading.Event()
        # Only some tests check authentication.
        self.roles, app.roles = app.roles, {}


def ask(data: Path, request: object) -> list[dict[str, Any]]:
    """All lines of a reply."""
    text = request if isinstance(request, str) else json.dumps(request)
    return [json.loads(line) for line in _native.ask(str(data), text)]


def error(data: Path, request: object) -> dict[str, Any]:
    """Returns the error of a request."""
    *_, last = ask(data, request)
    found: dict[str, Any] = last["error"]
    return found


def filled(data: Path, count: int, **settings: Any) -> tm.Mill:
    """An engine that has executed so many events, each of another account."""
    bank = Bank()
    mill = bank.app.start(data_dir=data, **settings)
    mill.send(bank.payments, {"id": list(range(count))}, wait=True)
    return mill


def test_every_type_is_json_as_the_page_says(tmp_path: Path) -> None:
    app = tm.App("types")
    columns: dict[str, Any] = {
        "i": int,
        "f": float,
        "b": bool,
        "s": str,
        "y": bytes,
        "at": tm.timestamp,
        "d": tm.decimal(2),
        "l": tm.list(tm.decimal(1)),
        "a": tm.optional(tm.any),
        "n": tm.optional(int),
    }
    rows = app.table("rows", key=("i", "y", "at", "d"), **columns)
    given = app.stream("given", **columns)

    @app.transaction(given)
    def put(tx, e):
        rows.upsert(**{name: e[name] for name in columns})

    at = dt.datetime(2026, 1, 31, 12, tzinfo=dt.UTC)
    first = dict(i=-(2**63), f=float("nan"), b=True, s="é", y=b"\x00\xff", at=at, n=None)
    first |= dict(d=Decimal("12.5"), l=[Decimal("0.1")], a={"x": [1, None, Decimal("1.50")]})
    floats = [float("inf"), float("-inf"), 0.5]
    more = [first | {"i": i, "f": f} for i, f in enumerate(floats)]
    wanted = {
        "i": -(2**63),
        "f": "NaN",
        "b": True,
        "s": "é",
        "y": "0x00ff",
        "at": "2026-01-31T12:00:00.000000Z",
        "d": "12.50",
        "l": ["0.1"],
        "a": {"x": [1, None, "1.50"]},
        "n": None,
    }
    key = [wanted["i"], wanted["y"]]
    with app.start(data_dir=tmp_path) as mill:
        mill.send(given, [first, *more], wait=True)
        for engine in ("running", "stopped"):
            [head, *found, end] = ask(tmp_path, {"do": "query", "table": "rows"})
            assert end["engine"] == engine
            assert head["key"] == ["i", "y", "at", "d"]
            assert [line["row"]["f"] for line in found] == ["NaN", "inf", "-inf", 0.5]
            assert found[0]["row"] == wanted
            # And so they are read: decimals also as numbers, timestamps also as microseconds.
            micros = int(at.timestamp()) * 1_000_000
            for more_key in ([wanted["at"], "12.50"], [wanted["at"], 12.5], [micros, "12.5"]):
                by_key = {"do": "query", "table": "rows", "key": key + more_key}
                assert [line["row"] for line in ask(tmp_path, by_key)[1:-1]] == [wanted], more_key
            mill.stop()


def test_what_goes_wrong_is_the_last_line_and_is_not_raised(tmp_path: Path) -> None:
    query = {"do": "query", "table": "accounts"}
    with filled(tmp_path / "data", 3) as mill:
        for engine in ("running", "stopped"):
            for request, kind in (
                ("oops", "InputError"),
                ("[]", "InputError"),
                ('{"do": "status"} {}', "InputError"),
                ({"do": "status", "colour": "red"}, "InputError"),
                ({"do": "query", "table": "acounts"}, "SettingError"),
                (query | {"limit": 100_001}, "InputError"),
                ({"do": "backup", "to": str(tmp_path / "data" / "in")}, "SettingError"),
            ):
                [only] = ask(tmp_path / "data", request)
                assert only["error"].keys() == {"kind", "what", "help"}, request
                assert (only["error"]["kind"], only["end"]) == (kind, True), request
                assert only["engine"] == engine
            assert error(tmp_path / "data", {"do": "query", "table": "acounts"})["help"] == (
                "did you mean 'accounts'?"
            )
            lines = ask(tmp_path / "data", query)
            assert [line.get("end") for line in lines] == [None] * 4 + [True]
            mill.stop()
    for path in (tmp_path / "nothing", tmp_path / "\x00", tmp_path / ("x" * 5_000)):
        [only] = ask(path, {"do": "status"})
        assert only["end"] is True
        assert only["error"]["what"], path


def exchanged(sock: socket.socket, data: bytes, replies: int) -> list[dict[str, Any]]:
    """Sends bytes, and reads until so many replies have ended."""
    sock.sendall(data)
    lines: list[dict[str, Any]] = []
    with sock.makefile("rb") as file:
        while sum("end" in line for line in lines) < replies:
            line = file.readline()
            if not line:
                break
            lines.append(json.loads(line))
    return lines


def test_several_requests_follow_one_another_on_a_connection(tmp_path: Path) -> None:
    with filled(tmp_path, 2), socket.socket(socket.AF_UNIX) as sock:
        socket_path = tmp_path / "engine.sock"
        assert os.stat(socket_path).st_mode & 0o777 == 0o600
        sock.connect(str(socket_path))
        sock.settimeout(20)
        query, wrong = b'{"do": "query", "table": "accounts"}\n', b'{"do": "qery"}\n'
        lines = exchanged(sock, query + wrong + query, 3)
        assert [sorted(line) for line in lines[:4]] == [sorted(line) for line in lines[5:]]
        assert lines[4]["error"]["help"] == "did you mean 'query'?"
        # A request of a MiB is one; of more, it is refused.
        long = b'{"do": "status"' + b" " * (REQUEST_BYTES_MAX - 16) + b"}"
        assert len(long) == REQUEST_BYTES_MAX
        assert "status" in exchanged(sock, long + b"\n", 1)[0]
        [refused] = exchanged(sock, b" " * (REQUEST_BYTES_MAX + 1), 1)
        assert "at most 1048576 bytes" in refused["error"]["what"]


def test_the_page_names_all_of_the_status(tmp_path: Path) -> None:
    section = RUNNING.read_text().split("## status\n")[1].split("\n## ")[0]
    named = set(re.findall(r"`(\w+)`", section))
    with filled(tmp_path, 2) as mill:
        [end] = ask(tmp_path, {"do": "status"})
        status = end["status"]
        states = {"recovering", "running", "stalled", "stopping", "failed", "ended", "stopped"}
        inner = {"input", "cuts", "first", "next", "bytes"}
        assert status.keys() == named - (states - {"recovering"}) - inner - {"as_of"}
        assert status["log"].keys() == {"input", "cuts"}
        assert status["log"]["cuts"].keys() == {"first", "next", "bytes"}
        assert status["snapshot_age_s"] is None
        ask(tmp_path, {"do": "backup", "to": str(tmp_path.parent / "copy")})
        [end] = ask(tmp_path, {"do": "status"})
        assert end["status"]["snapshot_age_s"] >= 0
        mill.stop()
        [end] = ask(tmp_path, {"do": "status"})
        assert end["status"].keys() <= named
        assert end["status"]["as_of"] == end["status"]["epoch"] == end["as_of"]


def test_a_thousand_rows_where_nobody_says_how_many(tmp_path: Path) -> None:
    query = {"do": "query", "table": "accounts"}
    with filled(tmp_path, 1001) as mill:
        for _ in ("running", "stopped"):
            end = ask(tmp_path, query)[-1]
            assert (end["rows"], end["more"]) == (1000, True)
            end = ask(tmp_path, query | {"limit": 100_000})[-1]
            assert (end["rows"], end["more"]) == (1001, False)
            end = ask(tmp_path, query | {"limit": 1001, "filter": "id != 7 and n = 1"})[-1]
            assert (end["rows"], end["more"]) == (1000, False)
            mill.stop()


def test_the_newest_two_snapshots_are_kept_to_look_back_to(tmp_path: Path) -> None:
    bank = Bank()
    epochs = []
    for _ in range(3):
        # A stop leaves one.
        with bank.app.start(data_dir=tmp_path) as mill:
            mill.send(bank.payments, [{"id": 1}], wait=True)
        epochs.append(ask(tmp_path, {"do": "status"})[0]["status"]["snapshot_epoch"])
    query = {"do": "query", "table": "accounts", "key": 1}

    def look() -> None:
        for n in (1, 2):
            [_, row, end] = ask(tmp_path, query | {"as_of": epochs[n]})
            assert (row["row"]["n"], end["as_of"]) == (n + 1, epochs[n])
        # Functions are not in the directory, so nothing can be replayed without one.
        said = error(tmp_path, query | {"as_of": epochs[0]})
        assert "would have to be replayed, and handler" in said["what"]

    look()
    with bank.app.start(data_dir=tmp_path):
        look()


def test_a_tail_begins_with_what_comes_and_follows(tmp_path: Path) -> None:
    bank = Bank()
    with bank.app.start(data_dir=tmp_path) as mill:
        mill.send(bank.payments, {"id": [1, 2, 3]}, wait=True)
        tail = {"do": "tail", "stream": "pay"}
        assert ask(tmp_path, tail | {"follow": False}) == [
            {"stream": "pay", "columns": [{"name": "id", "type": "int"}], "from": 3},
            {"next": 3, "engine": "running", "end": True},
        ]
        wanted = [{"row": n, "value": {"id": n + 1}} for n in range(3)]
        assert ask(tmp_path, tail | {"follow": False, "from": 0})[1:-1] == wanted
        lines = map(json.loads, _native.ask(str(tmp_path), json.dumps(tail)))
        assert next(lines)["from"] == 3
        mill.send(bank.payments, {"id": [4]}, wait=True)
        assert next(line for line in lines if "row" in line) == {"row": 3, "value": {"id": 4}}
        for other in ("payments.dead", "payments.late", "pay.aborted", "add.aborted"):
            assert ask(tmp_path, tail | {"stream": other, "follow": False})[0]["from"] == 0
        mill.stop()
        # The end says where to go on; without `follow: false` nothing else would have come.
        assert [line for line in lines if "end" in line][-1]["next"] == 4


def test_ten_thousand_rows_are_kept_where_nobody_says_how_many(tmp_path: Path) -> None:
    bank = Bank()
    with bank.app.start(data_dir=tmp_path) as mill:
        mill.send(bank.payments, {"id": [7] * 10_001}, wait=True)
        tail = {"do": "tail", "stream": "pay", "follow": False}
        assert len(ask(tmp_path, tail | {"from": 1})) == 10_000 + 2
        [only] = ask(tmp_path, tail | {"from": 0})
        assert "no longer retained" in only["error"]["what"]
        assert (only["first"], only["next"]) == (1, 10_001)


@pytest.fixture
def letters(tmp_path: Path) -> Iterator[tuple[tm.Mill, Path]]:
    """An app with two dead rows in each of two streams; into one of them rows are sent, too."""
    app = tm.App("letters")
    found = app.table("found", key="id", id=int)
    for name in ("notes", "others"):
        stream = app.stream(name, id=int, note=str)
        file = tmp_path / f"{name}.jsonl"
        file.write_text('oops\n{"id": 1}\n{"id": 2, "note": "x"}\n')
        stream.read(tm.files(str(file)))
        if name == "notes":
            stream.push()

        @app.transaction(stream, name=f"take_{name}")
        def take(tx, e):
            found.upsert(id=e.id)

    with app.start(data_dir=tmp_path / "data") as mill:
        mill.drain()
        yield mill, tmp_path / "data"


def test_dead_rows_are_sent_again_where_their_stream_is_pushed(
    letters: tuple[tm.Mill, Path],
) -> None:
    mill, data = letters
    [*rows, end] = ask(data, {"do": "dlq_ls"})
    assert [(line["stream"], line["row"]) for line in rows] == [
        ("notes.dead", 0),
        ("notes.dead", 1),
        ("others.dead", 0),
        ("others.dead", 1),
    ]
    assert end["streams"]["notes.dead"] == {"rows": 2, "dropped": 0}
    # The newest, of each stream.
    limited = ask(data, {"do": "dlq_ls", "limit": 1})[:-1]
    assert [(line["stream"], line["row"]) for line in limited] == [
        ("notes.dead", 1),
        ("others.dead", 1),
    ]
    replay = {"do": "dlq_replay", "stream": "notes.dead"}
    value = {"id": 3, "note": "mended"}
    # All, or none: the text of the first is no object, and that of the second has no note.
    for one in ({"row": 0}, {"row": 1}):
        said = error(data, replay | {"rows": [{"row": 1, "value": value}, one]})
        assert f"row {one['row']}: its raw text can't be sent as it is" in said["what"]
        assert '"value"' in said["help"]
    said = error(data, replay | {"stream": "others.dead", "rows": [{"row": 0, "value": value}]})
    assert "others is not a pushed stream" in said["what"]
    assert "correct the input of others" in said["help"]
    events = mill.status()["events"]
    [end] = ask(data, replay | {"rows": [{"row": 1, "value": value}]})
    assert end["sent"] == 1
    mill.drain()
    assert mill.status()["events"] == events + 1
    assert mill.table("found")[3] == {"id": 3}
    mill.stop()
    said = error(data, replay | {"rows": [{"row": 1, "value": value}]})
    assert "'dlq_replay' needs one" in said["what"]
    # A stopped app refuses what a running one does.
    said = error(data, replay | {"stream": "others.dead", "rows": [{"row": 0, "value": value}]})
    assert "others is not a pushed stream" in said["what"]
    assert "correct the input of others" in said["help"]
    assert [line["row"] for line in ask(data, {"do": "dlq_ls"})[:-1]] == [0, 1, 0, 1]


def test_files_that_are_sources_or_sinks_are_in_no_backup(tmp_path: Path) -> None:
    app = tm.App("copied")
    given = app.stream("given", word=str)
    source, sink = tmp_path / "given.csv", tmp_path / "kept.csv"
    source.write_text("word\nsource-of-rows\n")
    given.read(tm.files(str(source)))

    @app.transaction(given)
    def keep(tx, e):
        return dict(word=e.word)

    keep.write(tm.files(str(sink)))
    with app.start(data_dir=tmp_path / "data") as mill:
        mill.finish()
    [end] = ask(tmp_path / "data", {"do": "backup", "to": str(tmp_path / "copy")})
    copied = [path for path in (tmp_path / "copy").rglob("*") if path.is_file()]
    assert end["backup"].keys() >= {"to", "epoch", "files", "bytes"}
    assert end["backup"]["to"] == str(tmp_path / "copy")
    assert not {path.suffix for path in copied} & {".csv"}
    assert sink.read_text().splitlines() == ["word", "source-of-rows"]


def test_four_mebibytes_are_kept_where_nobody_says_how_many(tmp_path: Path) -> None:
    app = tm.App("long")
    given = app.stream("given", text=str)

    @app.transaction(given)
    def keep(tx, e):
        return dict(text=e.text)

    with app.start(data_dir=tmp_path) as mill:
        for _ in range(6):
            mill.send(given, {"text": ["x" * (1 << 20)]}, wait=True)
        [only] = ask(tmp_path, {"do": "tail", "stream": "keep", "from": 0, "follow": False})
        assert 2 <= only["first"] <= 3
        assert only["next"] == 6
        kept = ask(tmp_path, {"do": "tail", "stream": "keep", "from": 3, "follow": False})
        assert [line["row"] for line in kept[1:-1]] == [3, 4, 5]


def test_ten_thousand_late_rows_are_kept_and_a_thousand_shown(tmp_path: Path) -> None:
    app = tm.App("late")
    timed = app.stream("timed", time="at", at=int, n=int)

    @app.transaction(timed)
    def keep(tx, e):
        return dict(n=e.n)

    with app.start(data_dir=tmp_path) as mill:
        mill.send(timed, {"at": [1_000], "n": [0]}, wait=True)
        late = 10_001
        mill.send(timed, {"at": [1] * late, "n": list(range(late))}, wait=True)
        [*rows, end] = ask(tmp_path, {"do": "dlq_ls"})
        assert [row["row"] for row in rows] == list(range(late - 1_000, late))
        assert end["streams"]["timed.late"] == {"rows": late, "dropped": 1}
        [*rows, _] = ask(tmp_path, {"do": "dlq_ls", "stream": "timed.late", "limit": 20_000})
        assert (rows[0]["row"], len(rows)) == (1, 10_000)


def test_the_summary_and_the_program_are_those_of_the_commands(tmp_path: Path) -> None:
    bank = Bank()
    with bank.app.start(data_dir=tmp_path, workers=1) as mill:
        mill.send(bank.payments, [{"id": 1}, {"id": 2}], wait=True)
        [end] = ask(tmp_path, {"do": "summary"})
        assert end["summary"].keys() == mill.summary().keys()
        assert end["summary"]["committed"] == mill.summary()["committed"] == 2
        [end] = ask(tmp_path, {"do": "inspect"})
        spec, functions = bank.app.spec({}, keep_all=True, push=True)
        program = json.loads(_native.inspect(json.dumps(spec), functions))
        for name in ("app", "handlers", "streams"):
            assert end["inspect"][name] == program[name], name
        counts = {"sources", "dead", "late", "outputs", "tables", "status"}
        assert end["inspect"].keys() >= counts
        tables = [{k: v for k, v in t.items() if k != "rows"} for t in end["inspect"]["tables"]]
        assert tables == [{k: v for k, v in t.items() if k != "rows"} for t in program["tables"]]


# -- what changes


def diff(app: tm.App, data: Path, **settings: Any) -> dict[str, Any]:
    spec, functions = app.spec(settings, keep_all=False, push=True)
    found: dict[str, Any] = json.loads(_native.schema_diff(json.dumps(spec), functions, str(data)))
    return found


def test_a_diff_works_while_an_engine_runs_and_writes_nothing(tmp_path: Path) -> None:
    bank = Bank()
    for _ in range(2):
        with bank.app.start(data_dir=tmp_path) as mill:
            mill.send(bank.payments, [{"id": 1}], wait=True)
    with bank.app.start(data_dir=tmp_path):
        before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.is_file()}
        assert diff(bank.app, tmp_path) == {
            "same": True,
            "possible": True,
            "why": [],
            "changes": [],
        }
        other = Bank(procedures=False).app
        other.table("more", key="id", id=int)
        found = diff(other, tmp_path)
        assert (found["same"], found["possible"]) == (False, True)
        added = {"what": "table", "change": "added", "name": "more"}
        [change] = [c for c in found["changes"] if added.items() <= c.items()]
        assert change.keys() >= {"upgrade", "lossless"}
        assert change["lossless"] is True
        with pytest.raises(tm.SettingError, match="nothing"):
            diff(other, tmp_path, data_dir=str(tmp_path), upgrade=True, renames={"nothing": "more"})
        after = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.is_file()}
        assert after == before
    with pytest.raises(tm.SettingError, match="belongs to app 'bank'"):
        diff(tm.App("other"), tmp_path)


def test_a_sink_that_an_upgrade_begins_is_no_file_that_is_there(tmp_path: Path) -> None:
    def app(*sinks: str) -> tm.App:
        bank = Bank(procedures=False)
        [pay] = bank.app.handlers
        for name in sinks:
            pay.write(tm.files(str(tmp_path / name)))
        return bank.app

    data = tmp_path / "data"
    with app("one.csv").start(data_dir=data) as mill:
        mill.send("payments", [{"id": 1}], wait=True)
    (tmp_path / "two.csv").write_text("mine\n")
    with pytest.raises(tm.SettingError, match="upgrade"):
        app("one.csv", "two.csv").start(data_dir=data)
    with pytest.raises(tm.Error, match="is there already"):
        app("one.csv", "two.csv").start(data_dir=data, upgrade=True)
    assert (tmp_path / "two.csv").read_text() == "mine\n"
    (tmp_path / "two.csv").unlink()
    with app("one.csv", "two.csv").start(data_dir=data, upgrade=True) as mill:
        mill.send("payments", [{"id": 2}], wait=True)
    assert (tmp_path / "one.csv").read_text().splitlines() == ["id", "1", "2"]
    assert (tmp_path / "two.csv").read_text().splitlines() == ["id", "2"]


# -- over HTTP


def post(mill: tm.Mill, path: str, body: object, **headers: str) -> httpx.Response:
    content = body if isinstance(body, str) else json.dumps(body)
    sent = {"content-type": "application/json"}
    sent |= {name.replace("_", "-"): value for name, value in headers.items()}
    return httpx.post(f"{mill.url}{path}", content=content, headers=sent, timeout=30)


def test_request_ids_have_up_to_128_characters_of_ascii(tmp_path: Path) -> None:
    with Bank().app.start(http_port=0) as mill:
        for id in ("x", "x" * 128):
            for _ in range(2):
                found = post(mill, "/call/add", {"id": len(id)}, idempotency_key=id)
                assert (found.status_code, found.json()) == (200, {"reply": 1})
        for id in ("x" * 129, "é"):
            with httpx.Client() as client:
                request = client.build_request(
                    "POST", f"{mill.url}/call/add", json={"id": 2}, headers={"Idempotency-Key": "_"}
                )
                request.headers["Idempotency-Key"] = id
                found = client.send(request)
            assert found.status_code == 400
            assert "1 to 128 ASCII characters" in found.json()["error"]["what"]
        assert 2 not in mill.table("accounts")


def test_an_aborted_call_has_left_no_reply_either() -> None:
    with Bank().app.start(http_port=0) as mill:
        low = post(mill, "/call/add", {"id": 1, "n": 0}, idempotency_key="a")
        assert (low.status_code, low.json()) == (409, {"aborted": "too little"})
        # Another call with the id is no other request: nothing is known of the first one.
        again = post(mill, "/call/add", {"id": 1, "n": 2}, idempotency_key="a")
        assert (again.status_code, again.json()) == (200, {"reply": 2})
        other = post(mill, "/call/add", {"id": 1, "n": 3}, idempotency_key="a")
        assert other.status_code == 422
        assert mill.table("accounts")[1]["n"] == 2


def test_nobody_waits_for_longer_than_http_deadline_us() -> None:
    bank = Bank()
    with bank.app.start(http_port=0, http_deadline_us=20_000) as mill:
        for headers in ({}, {"tidemill_deadline_ms": "20000"}):
            late = post(mill, "/call/wait", {"go": 1}, **headers)
            assert (late.status_code, late.json()["executed"]) == (504, "unknown")
            assert "no reply within 20 ms" in late.json()["error"]["what"]
        late = post(mill, "/call/wait", {"go": 1}, tidemill_deadline_ms="1")
        assert "no reply within 1 ms" in late.json()["error"]["what"]
        bank.go.set()
        mill.drain()


@pytest.mark.parametrize("most", [1, 3])
def test_so_many_calls_may_wait_and_one_more_is_refused(most: int) -> None:
    bank = Bank()
    with (
        bank.app.start(http_port=0, http_calls_max=most) as mill,
        ThreadPoolExecutor(most) as pool,
    ):
        waiting = [pool.submit(post, mill, "/call/wait", {"go": n}) for n in range(most)]
        try:
            # One has the engine, and others wait for it.
            while mill.sent("wait.calls") < most:
                assert not any(call.done() for call in waiting)
            for _ in range(2):
                more = post(mill, "/call/add", {"id": 7})
                assert more.status_code == 503
                assert int(more.headers["retry-after"]) > 0
                assert more.json()["error"]["kind"] == "ResourceError"
                assert "executed" not in more.json()
            # Other requests are answered.
            assert httpx.get(f"{mill.url}/openapi.json").status_code == 200
        finally:
            bank.go.set()
        told = [call.result() for call in waiting]
        assert [(found.status_code, found.json()) for found in told] == [
            (200, {"reply": n}) for n in range(most)
        ]
        metrics = httpx.get(f"{mill.url}/metrics").text
        assert "\ntidemill_http_calls_refused_total 2\n" in metrics
        # The refused calls were not executed, and there is room again.
        assert post(mill, "/call/add", {"id": 7}).json() == {"reply": 1}


def test_heads_and_bodies_have_limits() -> None:
    with Bank().app.start(http_port=0, http_body_bytes_max=100) as mill:
        body = '{"id":1}'
        assert post(mill, "/call/add", body.ljust(100)).json() == {"reply": 1}
        large = post(mill, "/call/add", body.ljust(101))
        assert large.status_code == 413
        assert "more than 100 bytes" in large.json()["error"]["what"]
        assert post(mill, "/call/add", body, x="x" * 15_000).json() == {"reply": 2}
        assert post(mill, "/call/add", body, x="x" * (16 << 10)).status_code == 431
        assert mill.table("accounts")[1]["n"] == 2


def test_roles_of_the_settings_overrule_those_of_the_app(tmp_path: Path) -> None:
    bank = Bank()
    bank.app.roles = bank.roles
    file = tmp_path / "tokens.toml"
    tokens = {who: write(file, who, has) for who, has in (("ann", ["clerk"]), ("bob", ["boss"]))}
    tokens["eve"] = write(file, "eve", [])
    paths = ("/call/add", "/tables/accounts/rows?key=1", "/streams/add?from=99")
    cases: list[tuple[dict[str, str], tuple[str, str, str]]] = [
        # Rows from files and calls without a role are as guarded as what needs one.
        ({}, ("ann", "ann", "ann")),
        ({"add": "boss"}, ("bob", "bob", "bob")),
        ({"add": "boss|clerk"}, ("ann bob", "ann bob", "ann bob")),
        ({"add": "*"}, ("ann bob eve", "ann bob eve", "ann bob eve")),
        ({"tables/accounts": "*"}, ("ann", "ann bob eve", "ann")),
        ({"streams/add": "boss"}, ("ann", "ann", "bob")),
    ]
    for roles, let_in in cases:
        settings: dict[str, Any] = {"http_tokens": file, "http_roles": roles}
        with bank.app.start(http_port=0, **settings) as mill, httpx.Client() as client:
            for path, wanted in zip(paths, let_in, strict=True):
                found = []
                for who, token in tokens.items():
                    headers = {"Authorization": f"Bearer {token}"}
                    method = "POST" if path.startswith("/call") else "GET"
                    body = {"json": {"id": 1}} if method == "POST" else {}
                    url = f"{mill.url}{path}"
                    status = client.request(method, url, headers=headers, **body).status_code
                    assert status in (200, 400, 403), (path, who, status)
                    found += [who] if status != 403 else []
                assert " ".join(found) == wanted, (roles, path)
            for path in ("/metrics", "/openapi.json"):
                assert client.get(f"{mill.url}{path}").status_code == 401
                # The connection is closed with that; another one is made.
                headers = {"Authorization": f"Bearer {tokens['eve']}"}
                assert client.get(f"{mill.url}{path}", headers=headers).status_code == 200


def test_files_of_tokens_are_read_at_the_start(tmp_path: Path) -> None:
    file = tmp_path / "tokens.toml"
    first = {"Authorization": f"Bearer {write(file, 'ann', [])}"}
    with Bank().app.start(http_port=0, http_tokens=file) as mill:
        second = {"Authorization": f"Bearer {write(file, 'bob', [])}"}
        url = f"{mill.url}/metrics"
        assert [httpx.get(url, headers=h).status_code for h in (first, second)] == [200, 401]
        file.unlink()
        assert httpx.get(url, headers=first).status_code == 200


def test_the_end_of_events_has_no_id_and_a_healthy_app_is_ready() -> None:
    bank = Bank()
    with bank.app.start(http_port=0) as mill:
        assert mill.url is not None
        health = httpx.get(f"{mill.url}/health")
        assert health.status_code == 200
        assert {"live": True, "ready": True}.items() <= health.json().items()
        with httpx.stream("GET", f"{mill.url}/streams/pay?from=0", timeout=30) as answer:
            mill.send(bank.payments, [{"id": 7}], wait=True)
            text = ""
            for piece in answer.iter_text():
                text += piece
                if "data:" in text and "event: end" not in text:
                    threading.Thread(target=mill.stop).start()
        events = [event.splitlines() for event in text.strip().split("\n\n")]
        assert sorted(next(e for e in events if 'data: {"id":7}' in e)) == [
            'data: {"id":7}',
            "id: 0",
        ]
        [end] = [event for event in events if "event: end" in event]
        assert end is events[-1]
        assert not any(line.startswith("id") for line in end)


def test_replies_that_are_remembered_are_lost_with_the_last_procedure(tmp_path: Path) -> None:
    with Bank().app.start(data_dir=tmp_path, http_port=0) as mill:
        assert post(mill, "/call/add", {"id": 1}, idempotency_key="a").json() == {"reply": 1}
    query = {"do": "query", "table": "tidemill.requests"}
    # The clock by which they are forgotten is a row, too.
    assert ask(tmp_path, query)[-1]["rows"] == 2
    without = Bank(procedures=False).app
    with pytest.raises(tm.SettingError, match="lossy"):
        without.start(data_dir=tmp_path, upgrade=True)
    assert ask(tmp_path, query)[-1]["rows"] == 2
    with without.start(data_dir=tmp_path, upgrade="lossy") as mill:
        assert mill.table("accounts")[1]["n"] == 1
        assert "tidemill.requests" in error(tmp_path, query)["what"]


# -- its log


def told(log: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in log.read_text().splitlines()]


def test_files_that_others_could_read_are_closed_and_told(tmp_path: Path) -> None:
    log, data = tmp_path / "log.jsonl", tmp_path / "data"
    for _ in range(2):
        with Bank().app.start(data_dir=data, log_to=log):
            pass
    main = [e["event"] for e in told(log) if e["event"] in ("start", "snapshot", "stop")]
    assert main == ["start", "snapshot", "stop"] * 2
    data.chmod(0o755)
    for path in (data / "APP", data / "LOCK"):
        path.chmod(0o644)
    with Bank().app.start(data_dir=data, log_to=log):
        pass
    [closed] = [event for event in told(log) if event["event"] == "closed"]
    # The folder is one of them.
    assert (closed["files"], closed["data_dir"]) == (3, str(data))
    assert all(path.stat().st_mode & 0o077 == 0 for path in (data, *data.rglob("*")))
    with Bank().app.start(data_dir=data, log_to=log):
        pass
    assert [event["event"] for event in told(log)].count("closed") == 1


def test_events_in_its_log(tmp_path: Path) -> None:
    log, data = tmp_path / "log.jsonl", tmp_path / "data"
    bank = Bank()
    recorded = []
    for _ in range(2):
        with bank.app.start(data_dir=data, log_to=log, durable="log") as mill:
            mill.send(bank.payments, [{"id": 1}], wait=True)
        recorded.append(mill.summary()["epochs"])
    with bank.app.start(data_dir=data, log_to=log) as mill:
        mill.send(bank.payments, [{"id": 1}], wait=True)
    events = told(log)
    assert all(event.keys() >= {"at", "event"} for event in events)
    ended = [event for event in events if event["event"] == "recovery ended"]
    assert [event["epochs"] for event in ended] == recorded
    assert all(event["seconds"] >= 0 for event in ended)
    [snapshot] = [event for event in events if event["event"] == "snapshot"]
    assert snapshot["epoch"] == ask(data, {"do": "status"})[0]["status"]["snapshot_epoch"]


# -- following


def test_who_reads_too_slowly_is_told_what_is_gone() -> None:
    app = tm.App("long")
    given = app.stream("given", text=str)

    @app.transaction(given)
    def keep(tx, e):
        return dict(text=e.text)

    count = 40
    with app.start(http_port=0) as mill, socket.socket() as sock:
        assert mill.url is not None
        host, port = mill.url.removeprefix("http://").split(":")
        # So little is on its way that all others wait in the engine, or are gone.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
        sock.settimeout(30)
        sock.connect((host, int(port)))
        request = (
            b"GET /streams/keep?from=0 HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
        )
        sock.sendall(request)
        with sock.makefile("rb") as file:
            # The reader follows before the rows come that it is too slow for.
            mill.send(given, {"text": ["first"]}, wait=True)
            lines = []
            while b"id: 0" not in lines:
                line = file.readline()
                assert line
                lines.append(line.strip())
            for _ in range(count - 1):
                mill.send(given, {"text": ["x" * (1 << 20)]}, wait=True)
            # It ends by itself.
            lines.extend(line.strip() for line in file)
        ids = [int(line[4:]) for line in lines if line.startswith(b"id: ")]
        *sent, last = [id for id in ids if id >= 0]
        assert sent == list(range(len(sent)))
        # A client that returns with this id gets the same answer.
        assert last == sent[-1]
        gone = lines[lines.index(b"event: gone") :]
        [data] = [line for line in gone if line.startswith(b"data: ")]
        said = json.loads(data[6:])
        assert len(sent) < said["first"] < said["next"] <= count


def test_who_follows_during_a_recovery_is_asked_to_wait(tmp_path: Path) -> None:
    """Until the recovery has ended the app does not know its last rows, and refuses none."""
    app = tm.App("long")
    given = app.stream("given", n=int)

    @app.transaction(given, opaque=True, out=dict(n=int))
    def keep(tx, e):
        return dict(n=e.n)

    count = 30_000
    with app.start(data_dir=tmp_path, durable="log", rerun_every=0) as mill:
        mill.send(given, {"n": list(range(count))}, wait=True)
    with app.start(data_dir=tmp_path, durable="log", http_port=0, rerun_every=0) as mill:
        said = []
        while True:
            with httpx.stream("GET", f"{mill.url}/streams/keep?from={count - 1}") as answer:
                said.append(answer.status_code)
                if answer.status_code != 503:
                    break
        assert set(said[:-1]) <= {503}
        assert said[-1] == 200


def test_a_row_is_asked_for_by_a_key_for_each_key_column() -> None:
    app = tm.App("pairs")
    pairs = app.table("pairs", key=("a", "b"), a=int, b=str, n=int)

    @app.procedure
    def put(tx, a: int, b: str, n: int):
        pairs.upsert(a=a, b=b, n=n)

    with app.start(http_port=0) as mill:
        mill.call(put, a=1, b="x y", n=5)
        url = f"{mill.url}/tables/pairs/rows"
        assert httpx.get(f"{url}?key=1&key=x%20y").json() == {"row": {"a": 1, "b": "x y", "n": 5}}
        assert httpx.get(f"{url}?key=1&key=x").json() == {"row": None}
        assert httpx.get(url).json() == {"rows": [{"a": 1, "b": "x y", "n": 5}], "more": False}
        for wrong in ("key=1", "key=1&key=x&key=y", "key=x&key=1", "after=1"):
            assert httpx.get(f"{url}?{wrong}").status_code == 400, wrong
        metrics = httpx.get(f"{mill.url}/metrics").text
        assert "\ntidemill_troubles 0\n" in metrics
        assert "\ntidemill_transactions_total 1\n" in metrics
