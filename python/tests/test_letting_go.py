"""Mills that are dropped, used where they can't be, forked, and interrupted: nothing hangs."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

import tidemill as tm

HEAD = """
import asyncio, contextlib, gc, os, signal, sys, threading, warnings
import tidemill as tm

def app_of(name="let_go"):
    app = tm.App(name)
    t = app.table("t", key="id", id=int, n=tm.column(int, default=0))
    s = app.stream("s", id=int)

    @app.procedure
    def add(tx, id: int):
        t[id].n += 1
        return t[id].n

    @app.transaction(s, opaque=True)
    def note(tx, e):
        t[e.id].n += sum(range(1000))

    return app, t, s, add

def used(**settings):
    app, t, s, add = app_of()
    mill = app.start(**settings)
    mill.call(add, id=1)
    mill.send(s, [{"id": id} for id in range(2000)])
    return mill
"""


def python(code: str, *flags: str, folder: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Runs a program, which must end by itself."""
    command = [sys.executable, *flags, "-c", HEAD + textwrap.dedent(code)]
    return subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=60, check=False
    )


DROPS = {
    "del": "m = used()\ndel m\nprint('after')",
    "returned": "def f():\n    m = used()\n    return 1\nf()\nprint('after')",
    "again": "for _ in range(3):\n    m = used()\nm.stop()\nprint('after')",
    "cycle": "m = used()\nm.me = m\ndel m\ngc.collect()\nprint('after')",
    "exit": "m = used()\nprint('after')",
    "exit in a cycle": "m = used()\nm.me = m\ndel m\nprint('after')",
    "exception": "def f():\n    m = used()\n    raise KeyError\n"
    "with contextlib.suppress(KeyError):\n    f()\nprint('after')",
    "thread": "def f():\n    m = used()\n"
    "t = threading.Thread(target=f)\nt.start()\nt.join()\nprint('after')",
    "native": "m = used()\nm._native\nm.__class__.__del__ = lambda self: None\n"
    "warnings.warn('ours', ResourceWarning)\ndel m\nprint('after')",
    "durable": "m = used(data_dir='data')\ndel m\n"
    "with app_of()[0].start(data_dir='data') as m:\n    m.call('add', id=1)\nprint('after')",
}


@pytest.mark.parametrize("how", DROPS)
def test_a_mill_that_is_dropped_is_stopped(how: str, tmp_path: Path) -> None:
    ended = python(DROPS[how], "-W", "always::ResourceWarning", folder=tmp_path)
    assert (ended.returncode, ended.stdout) == (0, "after\n"), ended.stderr
    assert "ResourceWarning" in ended.stderr
    if how != "native":
        assert "with app.start() as mill:" in ended.stderr


def test_a_view_keeps_its_mill() -> None:
    ended = python("""
        app, t, s, add = app_of()
        view = app.start().table(t)
        view._mill.call(add, id=1)
        assert view.rows() == [{"id": 1, "n": 1}]
        del view
        print("after")
    """)
    assert (ended.returncode, ended.stdout) == (0, "after\n"), ended.stderr


def test_an_exception_in_with_ends_the_mill() -> None:
    ended = python("""
        app, t, s, add = app_of()
        try:
            with app.start() as mill:
                mill.call(add, id=1)
                raise KeyError("mine")
        except KeyError:
            print("after")
    """)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "after\n", "")


def test_a_mill_that_a_function_lets_go_does_not_wait_for_it() -> None:
    ended = python("""
        app, t, s, add = app_of()
        held = [app.start()]

        @app.procedure
        def drop(tx):
            held.clear()
            gc.collect()

        with app_of("other")[0].start() as first:
            pass
        mill = app.start()
        held.append(mill)
        mill.call(drop)
        print("after")
        mill.stop()
    """)
    assert (ended.returncode, ended.stdout) == (0, "after\n"), ended.stderr


USES = {
    "call": "mill.call('add', id=1)",
    "drain": "mill.drain()",
    "rows": "mill.table('t').rows()",
    "view": "view.rows()",
    "key": "view[1]",
    "in": "1 in view",
    "output": "mill.output('note.aborted')",
    "send": "mill.send('s', [{'id': 1}])",
    "acknowledged": "mill.send('s', [{'id': 1}], wait=True)",
    "stop": "mill.stop()",
    "finish": "mill.finish()",
    "wait": "mill.wait(1)",
    "summary": "mill.summary()",
    "status": "mill.status()",
    "sent": "mill.sent('s')",
    "start": "tm.App('x').start()",
}


@pytest.mark.parametrize("use", USES)
def test_a_function_can_not_use_the_engine(use: str) -> None:
    app = tm.App("inside")
    app.table("t", key="id", id=int, n=tm.column(int, default=0))
    s = app.stream("s", id=int)
    u = app.stream("u", id=int)
    names: dict[str, object] = {"tm": tm}
    code = compile(USES[use], "inside.py", "exec")

    @app.procedure
    def add(tx, id: int):
        return id

    @app.transaction(s, opaque=True)
    def note(tx, e):
        exec(code, names)

    @app.transaction(u, opaque=True)
    def hides(tx, e):
        with contextlib.suppress(Exception):
            exec(code, names)

    @app.procedure
    def asks(tx):
        exec(code, names)

    one = app.entity("one", key="id", id=int)

    @one.function(creates=True)
    async def waits(self, ctx):
        exec(code, names)

    def look() -> None:
        exec(code, names)

    @app.procedure
    def looks(tx):
        tx.lookup(look)

    with app.start() as mill:
        names["mill"], names["view"] = mill, mill.table("t")
        mill.send(s, [{"id": 1}])
        mill.send(u, [{"id": 1}])
        mill.drain()
        for called, arguments in ((asks, {}), (waits, {"id": 1}), (looks, {})):
            with pytest.raises(tm.Fault, match="inside a function that runs as a transaction"):
                mill.call(called, **arguments)
        mill.drain()
        for handler in (note, hides):
            [aborted] = mill.output(handler.aborted).rows()
            assert aborted["reason"].startswith("fault: ProgramError: ")
            assert "is called inside a function" in aborted["reason"]
        assert mill.sent(s) == 1
        assert mill.status()["faults"] == 5


def test_a_function_is_no_client() -> None:
    app = tm.App("client")

    def look(url: str) -> int:
        with tm.Client(url) as client:
            return int(client.call("add", id=1))

    @app.procedure
    def asks(tx, url: str):
        return look(url)

    @app.procedure
    def looks(tx, url: str):
        return tx.lookup(look, url)

    with app_with_add().start(http_port=0) as other, app.start(http_port=0) as mill:
        with pytest.raises(tm.Fault, match="inside a function that runs as a transaction"):
            mill.call(asks, url=mill.url)
        # Its requests to others are logged.
        assert mill.call(looks, url=other.url) == 1


def app_with_add() -> tm.App:
    app = tm.App("other")

    @app.procedure
    def add(tx, id: int):
        return id

    return app


def test_what_is_sent_from_inside_is_sent_never() -> None:
    app = tm.App("mails")
    orders, mails = app.stream("orders", id=int), app.stream("mails", id=int)
    sent = app.table("sent", key="id", id=int, n=tm.column(int, default=0))
    held: list[tm.Mill] = []

    @app.transaction(orders, opaque=True)
    def order(tx, e):
        held[0].send(mails, [{"id": e.id}])

    @app.transaction(mails)
    def mail(tx, e):
        sent[e.id].n += 1

    with app.start(rerun_every=1) as mill:
        held.append(mill)
        mill.send(orders, [{"id": id} for id in range(100)])
        mill.drain()
        assert len(mill.table(sent)) == 0
        assert mill.status()["faults"] == 100
    held.clear()


def test_the_engine_is_used_outside_while_functions_run() -> None:
    app = tm.App("outside")
    t = app.table("t", key="id", id=int, n=tm.column(int, default=0))
    held: list[tm.Mill] = []

    @app.external(out={"n": int})
    def work(id, of: int):
        # It is no transaction, and nothing waits for it.
        return {"n": held[0].call("add", id=of)}

    @app.procedure
    def add(tx, id: int):
        t[id].n += 1
        return t[id].n

    @app.procedure
    def ask(tx):
        tx.external(work, of=7)

    with app.start() as mill:
        held.append(mill)
        mill.call(ask)
        while mill.table("work.outbox").rows():
            time.sleep(0.01)
        assert mill.table(t)[7]["n"] == 1
    held.clear()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="nobody forks here")
def test_a_forked_child_can_not_use_a_mill_and_keeps_nothing(tmp_path: Path) -> None:
    ended = python(
        """
        import multiprocessing, socket, time
        warnings.simplefilter("ignore", DeprecationWarning)
        app, t, s, add = app_of()
        mill = app.start(data_dir="data", http_port=0)
        mill.call(add, id=1)
        port = int(mill.url.rpartition(":")[2])
        go, done = os.pipe(), os.pipe()
        child = os.fork()
        if child == 0:
            refused = 0
            for use in (
                lambda: mill.send(s, [{"id": 1}]), lambda: mill.send(s, [{"id": 1}], wait=True),
                lambda: mill.call(add, id=1), mill.drain, mill.stop, mill.finish, mill.status,
                mill.summary, lambda: mill.wait(1), lambda: mill.table(t).rows(),
                lambda: mill.output("note.aborted"), lambda: mill.sent(s),
            ):
                try:
                    use()
                except tm.ProgramError as error:
                    refused += str(os.getppid()) in str(error) and str(os.getpid()) in str(error)
            os.write(done[1], bytes([refused]))
            os.read(go[0], 1)
            # An engine of its own is another thing.
            with app_of("own")[0].start() as own:
                assert own.call("add", id=1) == 1
            del mill
            gc.collect()
            os._exit(7)
        assert os.read(done[0], 1) == bytes([12])
        mill.stop()
        # The child still lives, and holds neither the directory nor the port.
        with app_of()[0].start(data_dir="data", http_port=port) as again:
            assert again.table("t")[1]["n"] == 1
        os.write(go[1], b"x")
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        with app_of("pool")[0].start(data_dir="pool") as mill:
            with multiprocessing.get_context("fork").Pool(2) as pool:
                assert pool.map(abs, [-1, -2]) == [1, 2]
            mill.call("add", id=1)
        print("after")
        """,
        folder=tmp_path,
    )
    assert (ended.returncode, ended.stdout) == (0, "after\\n".replace("\\n", "\n")), ended.stderr


WAITS = {
    "drain": "mill.drain()",
    "send": "mill.send(s, [{'id': 1}], wait=True)",
    "full": "while True: mill.send(s, [{'id': 1}] * 100_000)",
    "call": "mill.call(add, id=1)",
    "wait": "mill.wait(100)",
    "finish": "mill.finish()",
    "stop": "mill.stop()",
}


@pytest.mark.parametrize("what", WAITS)
def test_the_first_ctrl_c_ends_the_waiting(what: str) -> None:
    code = f"""
        app, t, s, add = app_of()
        slow = app.stream("slow", id=int)
        go = threading.Event()
        begun = threading.Event()

        @app.transaction(slow, opaque=True)
        def sleeps(tx, e):
            begun.set()
            go.wait(30)

        mill = app.start(deadline_us=0)
        mill.send(slow, [{{"id": 1}}])
        begun.wait()
        print("ready", flush=True)
        try:
            {WAITS[what]}
        except KeyboardInterrupt:
            print("interrupted", flush=True)
        go.set()
        if {what!r} not in ("finish", "stop"):
            mill.stop()
    """
    process = subprocess.Popen(
        [sys.executable, "-W", "error", "-c", HEAD + textwrap.dedent(code)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "ready\n"
        time.sleep(0.3)
        process.send_signal(signal.SIGINT)
        out, errors = process.communicate(timeout=25)
    finally:
        process.kill()
    assert (out, process.returncode) == ("interrupted\n", 0), errors


@pytest.mark.parametrize("where", ["module", "main"])
@pytest.mark.parametrize("what", ["finish", "stop"])
def test_ctrl_c_ends_a_program_whose_function_never_returns(
    what: str, where: str, tmp_path: Path
) -> None:
    app = """
import threading
import tidemill as tm

app = tm.App("slow")
s = app.stream("s", id=int)
begun = threading.Event()

@app.transaction(s, opaque=True)
def waits(tx, e):
    begun.set()
    threading.Event().wait()
"""
    (tmp_path / "slow.py").write_text(app)
    program = f"""
{app if where == "main" else "from slow import app, begun, s"}
import os, signal, threading
import tidemill.mill
tidemill.mill._ENDING_US = 100_000
mill = app.start(deadline_us=0)
mill.send(s, [{{"id": 1}}])
begun.wait()
threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
with mill:
    mill.{what}()
"""
    (tmp_path / "run.py").write_text(program)
    ended = subprocess.run(
        [sys.executable, "run.py"],
        cwd=tmp_path, capture_output=True, text=True, timeout=30, check=False,
    )  # fmt: skip
    assert ended.stderr.endswith("KeyboardInterrupt\n"), ended.stderr


def test_the_first_ctrl_c_ends_a_start(tmp_path: Path) -> None:
    code = """
        app, _, s, _ = app_of()
        # Nobody answers there, and a start waits for brokers.
        s.read(tm.kafka("s", brokers="127.0.0.1:1", timeout=60))
        print("ready", flush=True)
        try:
            app.start()
        except KeyboardInterrupt:
            print("interrupted", flush=True)
        os._exit(0)
    """
    process = subprocess.Popen(
        [sys.executable, "-c", HEAD + textwrap.dedent(code)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
    )
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "ready\n"
        time.sleep(0.5)
        process.send_signal(signal.SIGINT)
        out, errors = process.communicate(timeout=25)
    finally:
        process.kill()
    assert (out, process.returncode) == ("interrupted\n", 0), errors


def test_names_that_are_not_there() -> None:
    app = tm.App("names")
    accounts = app.table("accounts", key="id", id=int)
    payments = app.stream("payments", id=int)

    @app.transaction(payments)
    def pay(tx, e):
        accounts.upsert(id=e.id)
        return {"id": e.id}

    @app.transaction(payments)
    def quiet(tx, e):
        accounts.upsert(id=e.id)

    with app.start() as mill:
        for name, near in (
            ("payy", "pay"), ("pay.abortd", "pay.aborted"), ("payments.deed", "payments.dead"),
            ("paymnts", "payments"),
        ):  # fmt: skip
            with pytest.raises(tm.ProgramError, match=f"no stream '{name}'") as caught:
                mill.output(name)
            assert caught.value.help == f"did you mean '{near}'?"
        with pytest.raises(tm.ProgramError, match="handler quiet returns nothing"):
            mill.output(quiet)
        with pytest.raises(tm.ProgramError, match="no table 'acounts'") as caught:
            mill.table("acounts")
        assert caught.value.help == "did you mean 'accounts'?"
        with pytest.raises(tm.ProgramError, match="no stream 'x'"):
            mill.send("x", [])
        for name in ("pay", "pay.aborted", "quiet.aborted", "payments", "payments.late"):
            assert mill.output(name).rows() == []


def test_help_for_a_name_among_few() -> None:
    empty = tm.App("empty")
    with empty.start() as mill:
        for use, help in (
            (lambda: mill.table("zz"), "the app has no table"),
            (lambda: mill.output("zz"), "the app has no stream"),
            (lambda: mill.send("zz", []), "the app has no stream that takes rows"),
        ):
            with pytest.raises(tm.ProgramError) as caught:
                use()
            assert caught.value.help == help
    one = tm.App("one")
    one.table("accounts", key="id", id=int)
    with one.start() as mill, pytest.raises(tm.ProgramError) as caught:
        mill.table("zz")
    assert caught.value.help == "the only table is accounts"


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("rows", [1, 7, 100_000])
def test_bad_rows_come_in_the_order_of_their_source(
    rows: int, workers: int, tmp_path: Path
) -> None:
    app = tm.App("bad")
    s = app.stream("s", id=int)
    even = s.map(id=10 // (tm.col("id") % 3))

    @app.transaction(even)
    def take(tx, e):
        return {"id": e.id}

    names = ("b.csv", "a.csv")
    for name in names:
        lines = ["x" if n % 5 == 0 else str(n) for n in range(40)]
        (tmp_path / name).write_text("id\n" + "\n".join(lines) + "\n")
        s.read(tm.files(tmp_path / name))
    with app.start(workers=workers, epoch_rows_max=rows, epoch_bytes_max=1 << 20) as mill:
        mill.drain()
        dead = mill.output(s.dead).rows()
        computed = mill.output(even.dead).rows()
    by_source = {row["source"] for row in dead}
    assert len(by_source) == 2
    for source in by_source:
        offsets = [row["offset"] for row in dead if row["source"] == source]
        assert offsets == list(range(0, 40, 5))
        offsets = [row["offset"] for row in computed if row["source"] == source]
        assert offsets == [n for n in range(40) if n % 3 == 0 and n % 5]
