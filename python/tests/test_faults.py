"""Functions that raise what they did not mean to: found where they are declared, or counted."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import urllib.error
import urllib.request
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import tidemill as tm

from .conftest import Ledger, marked_line, refusal


def declared(ledger: Ledger, body: str) -> tm.ProgramError:
    """Returns the error for a traced handler with this body."""
    lines = [
        "@app.transaction(payments)",
        "def h(tx, e):",
        *(f"    {line}" for line in body.split("\n")),
    ]
    names = {"app": ledger.app, "payments": ledger.payments, "t": ledger.accounts, "tm": tm}
    with pytest.raises(tm.ProgramError) as caught:
        exec(compile("\n".join(lines), "user.py", "exec"), names)
    return caught.value


@pytest.mark.parametrize(
    ("body", "what", "help", "line"),
    [
        ("t[e.src].balance += tm.coalese(e.amount, 0)", "'coalese'", "'coalesce'?", 3),
        ("x = 1\ntx.requir(e.flag, 'no')", "no attribute 'requir'", "'require'?", 4),
        ("{}['rate']", "KeyError: 'rate'", "opaque=True", 3),
        ("raise TypeError('mine')", "TypeError: mine", "opaque=True", 3),
        ("[1][2]", "IndexError", "opaque=True", 3),
        ("t[e.src].balance += amuont", "'amuont' is not defined", "define what it uses", 3),
        ("tm.where(e.flag)", "TypeError: where() missing", "opaque=True", 3),
    ],
)
def test_a_mistake_is_found_where_a_handler_is_declared(
    ledger: Ledger, body: str, what: str, help: str, line: int
) -> None:
    error = declared(ledger, body)
    assert what in error.what
    assert help in error.help
    assert str(error.at).endswith(f"user.py:{line}")
    assert ledger.app.handlers == []


@pytest.mark.parametrize(
    "body",
    [
        "e.src ** 2",
        "int(e.memo)",
        "import json; json.dumps(e.src)",
        "import math; math.floor(e.x)",
        "import decimal; decimal.Decimal(e.src)",
        "import datetime; datetime.timedelta(seconds=e.src)",
        "import re; re.match('a', e.memo)",
        "[0][e.src]",
        "try:\n    int(e.memo)\nexcept TypeError as error:\n    raise ValueError('no') from error",
        "tx.random()",
    ],
)
def test_what_only_real_values_can_do_is_no_mistake(ledger: Ledger, body: str) -> None:
    names: dict[str, Any] = {}
    text = "\n".join(f"    {line}" for line in body.split("\n"))
    exec(compile(f"def h(tx, e):\n{text}\n", "user.py", "exec"), names)
    handler = ledger.app.transaction(ledger.payments)(names["h"])
    assert handler.path == "opaque"


@pytest.mark.parametrize("caught", ["Exception", "TypeError"])
def test_what_a_function_hides_from_the_recording_is_seen(ledger: Ledger, caught: str) -> None:
    text = f"""
def h(tx, e):
    try:
        n = int(e.memo)
    except {caught}:
        n = 0
    accounts[e.src].balance += n
"""
    names: dict[str, Any] = {"accounts": ledger.accounts}
    exec(compile(text, "user.py", "exec"), names)
    handler = ledger.app.transaction(ledger.payments)(names["h"])
    assert handler.path == "opaque", "recorded, it would add 0 for all events"


def test_a_branch_that_is_hidden_is_refused(ledger: Ledger) -> None:
    def declare() -> None:
        @ledger.app.transaction(ledger.payments)
        def h(tx, e):
            try:
                if e.src > 1:  # here
                    tx.require(False)
            except Exception:
                pass

    assert "'if'" in refusal(declare).what


@pytest.mark.parametrize("kind", ["opaque", "procedure", "called", "entity", "trigger", "timer"])
def test_a_name_that_the_package_does_not_have_is_found_in_every_function(kind: str) -> None:
    app = tm.App("typo")
    t = app.table("t", key="id", id=int, n=tm.column(int, default=0))
    s = app.stream("s", id=int)
    one = app.entity("one", key="id", id=int, n=tm.column(int, default=0))
    declare = {
        "opaque": lambda: app.transaction(s, opaque=True)(lambda tx, e: tm.coalese(e.id, 0)),
        "procedure": lambda: app.procedure(s)(lambda tx, s: tm.coalese(1, 0)),
        "called": lambda: app.procedure(lambda tx: tm.coalese(1, 0)),
        "entity": lambda: one.function(lambda self, ctx: tm.coalese(1, 0)),
        "trigger": lambda: app.trigger(t)(lambda tx, change: tm.coalese(1, 0)),
        "timer": lambda: app.every("1s")(lambda tx, firing: tm.coalese(1, 0)),
    }[kind]
    with pytest.raises(tm.ProgramError, match="has no attribute 'coalese'") as caught:
        declare()
    assert caught.value.help == "did you mean 'coalesce'?"


class Shop:
    """An app with a function of each kind that fails for the id 3, and refuses 4."""

    def __init__(self) -> None:
        app = self.app = tm.App("shop")
        t = self.t = app.table("t", key="id", id=int, n=tm.column(int, default=0))
        self.events = app.stream("events", id=int)
        self.batch = app.stream("batch", id=int)
        self.declared = app.stream("declared", id=int)
        one = self.one = app.entity("one", key="id", id=int, n=tm.column(int, default=0))
        other = app.table("other", key="id", id=int, n=tm.column(int, default=0))

        def work(id: int) -> None:
            if id == 3:
                raise KeyError("x")  # here
            if id == 4:
                raise tm.Abort("four is refused")

        self.work = work

        @app.transaction(self.events, opaque=True)
        def opaque(tx, e):
            t[e.id].n += 1
            work(e.id)

        @app.procedure(self.batch)
        def procedure(tx, batch):
            for event in batch:
                t[event.id].n += 1
                work(event.id)

        @app.transaction(self.declared)
        def triggers(tx, e):
            other[e.id].n += 1

        @app.trigger(other)
        def trigger(tx, change):
            work(change.new.id)

        @app.procedure
        def call(tx, id: int):
            t[id].n += 1
            work(id)

        @one.function(creates=True)
        async def ask(self, ctx):
            self.n += 1
            work(self.id)


@pytest.mark.parametrize("stream", ["events", "batch", "declared"])
@pytest.mark.parametrize("workers", [1, 2])
def test_faults_are_counted_apart(stream: str, workers: int) -> None:
    shop = Shop()
    with shop.app.start(workers=workers, epoch_rows_max=3) as mill:
        mill.send(stream, [{"id": id} for id in (1, 3, 4, 3, 2)])
        mill.drain()
        name = {"events": "opaque", "batch": "procedure", "declared": "triggers"}[stream]
        reasons = [row["reason"] for row in mill.output(f"{name}.aborted")]
        assert reasons == ["fault: KeyError: 'x'", "four is refused", "fault: KeyError: 'x'"]
        status = mill.status()
        assert (status["transactions"], status["aborted"], status["faults"]) == (5, 1, 2)
        summary = mill.finish()
    [handler] = [h for h in summary["handlers"] if h["name"] == name]
    assert (handler["committed"], handler["aborted"], handler["faults"]) == (2, 1, 2)
    assert (summary["committed"], summary["refused"], summary["faults"]) == (2, 1, 2)
    at = marked_line(Shop.__init__)
    assert summary["reasons"] == [
        {"handler": name, "reason": "fault: KeyError: 'x'", "count": 2, "at": at},
        {"handler": name, "reason": "four is refused", "count": 1},
    ]


@pytest.mark.parametrize("called", ["call", "one.ask"])
def test_who_calls_is_told_of_a_fault(called: str) -> None:
    shop = Shop()
    with shop.app.start(on_fault="stop") as mill:
        mill.call(called, id=1)
        with pytest.raises(tm.Abort, match="four is refused") as refused:
            mill.call(called, id=4)
        assert not isinstance(refused.value, tm.Fault)
        at = re.escape(marked_line(Shop.__init__))
        with pytest.raises(tm.Fault, match=rf"^KeyError: 'x' \({at}\)$"):
            mill.call(called, id=3)
        mill.call(called, id=2)
        assert mill.status()["faults"] == 1


def test_clients_get_500_without_a_line() -> None:
    shop = Shop()
    with shop.app.start(http_port=0) as mill:
        url = f"{mill.url}/call/call"
        for id, status, body in (
            (3, 500, {"fault": "KeyError: 'x'"}),
            (4, 409, {"aborted": "four is refused"}),
        ):
            asked = urllib.request.Request(
                url, json.dumps({"id": id}).encode(), {"content-type": "application/json"}
            )
            with pytest.raises(urllib.error.HTTPError) as caught:
                urllib.request.urlopen(asked)
            assert caught.value.code == status
            assert json.loads(caught.value.read()) == body
        with tm.Client(str(mill.url)) as client, pytest.raises(tm.Fault, match=r"^KeyError: 'x'$"):
            client.call("call", id=3)
        with urllib.request.urlopen(f"{mill.url}/metrics") as answer:
            metrics = answer.read().decode()
        assert "\ntidemill_faults_total 2\n" in metrics
        assert "\ntidemill_http_calls_faults_total 2\n" in metrics
        assert "\ntidemill_aborts_total 1\n" in metrics


def end_in_with(app: tm.App) -> tm.Mill:
    with app.start() as mill:
        mill.send("events", [{"id": id} for id in (1, 3, 4, 3)])
    return mill


def end_by_finish(app: tm.App) -> tm.Mill:
    mill = app.start()
    mill.send("events", [{"id": id} for id in (1, 3, 4, 3)])
    mill.finish()
    return mill


def end_of_several(app: tm.App) -> tm.Mill:
    with app.start() as mill:
        mill.send("events", [{"id": 3}] * 3)
        mill.send("batch", [{"id": 3}])
    return mill


def end_of_clients(app: tm.App) -> tm.Mill:
    with app.start(http_port=0) as mill:
        with tm.Client(str(mill.url)) as client, pytest.raises(tm.Fault):
            client.call("call", id=3)
        with pytest.raises(tm.Fault):
            mill.call("call", id=3)
    return mill


def end_without_surprise(app: tm.App) -> tm.Mill:
    with app.start() as mill:
        mill.send("events", [{"id": 4}])
        with pytest.raises(tm.Fault):
            mill.call("call", id=3)
    return mill


@pytest.mark.parametrize(
    ("end", "said"),
    [
        (end_in_with, "2 transactions failed: KeyError: 'x' in opaque (AT)"),
        (end_by_finish, "2 transactions failed: KeyError: 'x' in opaque (AT)"),
        (
            end_of_several,
            "4 transactions failed: KeyError: 'x' in opaque (AT); mill.faults() has all reasons",
        ),
        (end_of_clients, "1 transaction failed: KeyError: 'x' in call (AT)"),
        (end_without_surprise, None),
    ],
)
def test_the_end_warns_of_faults_that_nobody_has_seen(
    end: Callable[[tm.App], tm.Mill], said: str | None
) -> None:
    at = marked_line(Shop.__init__)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        mill = end(Shop().app)
    found = [(str(one.message), one.category, one.filename) for one in warned]
    wanted = [(said.replace("AT", at), RuntimeWarning, __file__)] if said else []
    assert found == wanted
    if end is end_in_with:
        assert mill.faults() == [
            {"handler": "opaque", "reason": "fault: KeyError: 'x'", "count": 2, "at": at}
        ]


SERVED = """
import tidemill as tm

app = tm.App("served")

@app.procedure
def first(tx, b: str):
    return {}[b]

@app.procedure
def second(tx):
    raise ValueError("no")
"""


def test_a_run_prints_the_first_fault_of_each_line(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(SERVED)
    command = [sys.executable, "-m", "tidemill.cli", "run", "app.py", "--http", "0"]
    with subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        try:
            while not (line := process.stdout.readline()).startswith("http"):
                assert line
            with tm.Client(line.split()[1]) as client:
                for called, arguments, fault in (
                    ("first", {"b": "b"}, "KeyError: 'b' in first (app.py:8)"),
                    ("first", {"b": "b"}, None),
                    ("second", {}, "ValueError: no in second (app.py:12)"),
                ):
                    with pytest.raises(tm.Fault):
                        client.call(called, **arguments)
                    if fault is not None:
                        assert process.stderr.readline() == f"a function failed: {fault}\n"
            process.terminate()
            out, rest = process.communicate(timeout=30)
        finally:
            process.kill()
    assert process.returncode == 0
    assert "a function failed" not in rest
    assert re.search(r"faults +3\n", out)


def test_an_exception_of_a_file_does_not_name_it_to_others() -> None:
    app = tm.App("files")

    @app.procedure
    def read(tx):
        raise FileNotFoundError(2, "No such file or directory", "/etc/secret")

    what = r"^FileNotFoundError: No such file or directory"
    with app.start() as mill, pytest.raises(tm.Fault, match=what):
        mill.call(read)


APP = """
import tidemill as tm

app = tm.App("shop")
t = app.table("t", key="id", id=int, n=tm.column(int, default=0))
s = app.stream("s", id=int)
s.read(tm.files("s.csv"))

@app.transaction(s, opaque=True)
def add(tx, e):
    t[e.id].n += 1
    if e.id == 3:
        t[e.id].n += tm.helper(e.id) + FIRST
    tx.require(e.id != 4, "four is refused")

@app.summary
def rows(mill):
    return {"ids": sorted(row["id"] for row in mill.table(t))}
"""


#: Lines that write the ids of committed events to a file.
WRITES = """
    return dict(id=e.id)

add.write(tm.files("out.jsonl"))
"""

#: Lines that have one worker own all rows.
ONE_OWNER = """
@app.transaction(add)
def after(tx, e):
    t[e.id].n += 1
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "app.py").write_text(APP.replace("tm.helper", "helper"))
    (tmp_path / "s.csv").write_text("id\n" + "\n".join(str(id) for id in (1, 2, 4, 3, 5, 3)))
    return tmp_path


def tidemill(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tidemill.cli", *arguments]
    return subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=60, check=False
    )


@pytest.mark.parametrize("rows", ["1", "100"])
@pytest.mark.parametrize("recovery", ["weak", "strong"])
def test_a_run_stops_at_a_fault_and_goes_on_when_it_is_mended(
    folder: Path, rows: str, recovery: str
) -> None:
    more = ["--set", f"epoch_rows_max={rows}", "--set", f"recovery={recovery}"]
    more += ["--set", f"epoch_bytes_max={100 if rows == '1' else 1 << 20}"]
    log = ["--set", "log_to=log.jsonl"]
    for _ in range(2):
        stopped = tidemill(folder, "run", "app.py", *more, *log)
        assert stopped.returncode == 1
        assert (
            "function add failed on row 3 of source s/s.csv (counted from 0): NameError"
            in stopped.stderr
        )
        assert "app.py:13" in stopped.stderr
        assert "--set on_fault=abort for a command" in stopped.stderr
    said = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    [fault, _] = [line for line in said if line["event"] == "fault"]
    assert (fault["handler"], fault["offset"], fault["line"]) == ("add", 3, "app.py:13")
    (folder / "app.py").write_text(APP.replace("tm.helper(e.id) + FIRST", "1"))
    ended = tidemill(folder, "run", "app.py", "--json", *more)
    assert ended.returncode == 0, ended.stderr
    found = json.loads(ended.stdout.splitlines()[-1])
    assert (found["committed"], found["refused"], found["faults"]) == (5, 1, 0)
    assert found["ids"] == [1, 2, 3, 5]


def test_a_run_goes_on_where_that_is_said(folder: Path) -> None:
    ended = tidemill(folder, "run", "app.py", "--set", "on_fault=abort")
    assert ended.returncode == 0, ended.stderr
    assert re.search(r"committed +3\n", ended.stdout)
    assert re.search(r"refused +1\n", ended.stdout)
    assert re.search(r"faults +2\n", ended.stdout)
    assert "reason=fault: NameError: name 'helper' is not defined  count=2" in ended.stdout
    assert "reason=four is refused  count=1" in ended.stdout
    # A recorded fault does not stop a replay.
    again = tidemill(folder, "run", "app.py", "--json")
    assert again.returncode == 0, again.stderr
    found = json.loads(again.stdout.splitlines()[-1])
    assert (found["faults"], found["reasons"][0]["count"]) == (2, 2)
    status = tidemill(folder, "status", "--json")
    assert json.loads(status.stdout.splitlines()[-1])["faults"] == 2


@pytest.mark.parametrize("processes", [1, 3])
@pytest.mark.parametrize("one_owner", [False, True])
def test_a_fault_stops_several_processes(folder: Path, processes: int, one_owner: bool) -> None:
    """A run in one process continues with the event, too."""
    app = APP.split("\n@app.summary")[0] + WRITES + (ONE_OWNER if one_owner else "")
    app = app.replace("opaque=True", "opaque=True, out={'id': int}")
    (folder / "app.py").write_text(app.replace("tm.helper", "helper"))
    several = ["--processes", str(processes), "--set", "cluster_epoch_rows_max=2"]
    for _ in range(2):
        stopped = tidemill(folder, "run", "app.py", *several, "--set", "log_to=log.jsonl")
        assert stopped.returncode == 1
        assert "function add failed on" in stopped.stderr, stopped.stderr
        assert "NameError: name 'helper' is not defined" in stopped.stderr
        assert "app.py:13" in stopped.stderr
        assert "correct the function and start again" in stopped.stderr
        # Nothing of the epoch with the event has left.
        assert (folder / "out.jsonl").read_text().count("\n") <= 3
    said = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    assert [line["line"] for line in said if line["event"] == "fault"] == 2 * ["app.py:13"]
    stored = json.loads(tidemill(folder, "status", "--json").stdout)
    assert stored["faults"] == 0
    (folder / "app.py").write_text(app.replace("tm.helper(e.id) + FIRST", "1"))
    ended = tidemill(folder, "run", "app.py", "--json", *([] if one_owner else several))
    assert ended.returncode == 0, ended.stderr
    ids = [json.loads(line)["id"] for line in (folder / "out.jsonl").read_text().splitlines()]
    assert ids == [1, 2, 3, 5, 3]


def test_several_processes_go_on_where_that_is_said(folder: Path) -> None:
    several = ["--processes", "2", "--set", "on_fault=abort"]
    ended = tidemill(folder, "run", "app.py", "--json", *several)
    assert ended.returncode == 0, ended.stderr
    found = json.loads(ended.stdout.splitlines()[-1])
    assert (found["committed"], found["refused"], found["faults"]) == (3, 1, 2)


def test_on_fault_has_two_values(folder: Path) -> None:
    wrong = tidemill(folder, "run", "app.py", "--set", "on_fault=halt")
    assert wrong.returncode == 1
    assert "none of stop, abort" in wrong.stderr
