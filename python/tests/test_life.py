"""The life of an app: starts that are refused, and what they leave behind."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import tidemill as tm

APP = """
import tidemill as tm

app = tm.App("bank")
accounts = app.table("accounts", key="id", id=int, balance=tm.column(int, default=0))
payments = app.stream("payments", id=int, amount=int)
payments.read(tm.files("pay/*.csv"))
fees = app.stream("fees", id=int)


@app.transaction(payments)
def pay(tx, e):
    accounts[e.id].balance += e.amount


@app.transaction(fees)
def fee(tx, e):
    accounts[e.id].balance -= 1


@app.procedure
def look(tx, id: int):
    return accounts[id].balance
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "bank.py").write_text(APP)
    (tmp_path / "pay").mkdir()
    (tmp_path / "pay/a.csv").write_text("id,amount\n1,5\n")
    return tmp_path


@pytest.fixture
def taken() -> Iterator[int]:
    """A port at which another socket listens."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield listener.getsockname()[1]


def tidemill(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tidemill.cli", *arguments]
    return subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=120, check=False
    )


def python(folder: Path, code: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", f"from bank import *\n{code}"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), *sys.path])}
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120,
        check=False,
    )  # fmt: skip


def test_a_taken_port_leaves_nothing_behind(folder: Path, taken: int) -> None:
    before = sorted(folder.iterdir())
    http, listen = ["--http", str(taken)], ["--set", f"cluster_listen=127.0.0.1:{taken}"]
    for flags in (http, ["--processes", "1", *http], ["--processes", "1", *listen]):
        ended = tidemill(folder, "run", "bank.py", *flags)
        assert ended.returncode == 1
        assert f"127.0.0.1:{taken}: Address already in use" in ended.stderr
        assert re.search("help: .* port", ended.stderr)
        kept = [path for path in folder.iterdir() if path.name != "__pycache__"]
        assert sorted(kept) == before, flags


def test_a_refused_start_deletes_nothing_and_says_nothing_of_it(folder: Path, taken: int) -> None:
    assert tidemill(folder, "run", "bank.py").returncode == 0
    refused = tidemill(folder, "run", "bank.py", "--fresh", "--http", str(taken))
    assert refused.returncode == 1
    assert "--fresh: deleted" not in refused.stderr
    assert tidemill(folder, "query", "accounts").returncode == 0
    again = tidemill(folder, "run", "bank.py", "--fresh")
    assert "--fresh: deleted in bank.tidemill: APP, cuts" in again.stderr


def test_a_second_start_in_one_process(tmp_path: Path) -> None:
    app = tm.App("bank")
    app.table("accounts", key="id", id=int)
    payments = app.stream("payments", id=int)

    @app.transaction(payments)
    def pay(tx, e): ...

    with app.start(data_dir=tmp_path / "data"):
        with pytest.raises(tm.ResourceError) as refused:
            app.start(data_dir=str(tmp_path / "elsewhere" / ".." / "data"))
        assert "this process has the data directory" in refused.value.what
        assert "test_life.py:" in refused.value.what.partition("since ")[2]
        assert "mill.stop()" in refused.value.help
        # Another process is still another one.
        start = f"tm.App('bank').start(data_dir={str(tmp_path / 'data')!r})"
        code = f"import tidemill as tm\n{start}"
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        other = subprocess.run(
            [sys.executable, "-c", code], env=environment, capture_output=True, text=True,
            timeout=60, check=False,
        )  # fmt: skip
        assert "another process runs on data directory" in other.stderr
    app.start(data_dir=tmp_path / "data").stop()


def test_a_start_at_import_is_refused_by_commands(folder: Path) -> None:
    with (folder / "bank.py").open("a") as file:
        file.write("\nwith app.start() as mill:\n    pass\n")
    line = len((folder / "bank.py").read_text().splitlines()) - 1
    for command in (["run"], ["inspect"], ["run", "--processes", "1"]):
        ended = tidemill(folder, command[0], "bank.py", *command[1:])
        assert ended.returncode == 1
        assert f"bank.py:{line}: app.start() runs while a command" in ended.stderr
        assert 'if __name__ == "__main__":' in ended.stderr
    assert python(folder, "").returncode == 0


def test_another_version_names_what_differs(folder: Path) -> None:
    data = "data_dir='bank.tidemill'"
    sent = python(folder, f"with app.start({data}) as mill: mill.send('fees', [dict(id=1)])")
    assert sent.returncode == 0, sent.stderr
    ended = tidemill(folder, "run", "bank.py")
    assert "started in another way: source fees/push is gone" in ended.stderr
    assert "source look.calls/push is gone" in ended.stderr
    assert "rows of fees were sent by app.start(), and here nothing sends" in ended.stderr
    with_http = tidemill(folder, "run", "bank.py", "--http", "0")
    assert "look.calls/push" not in with_http.stderr
    assert "source fees/push is gone" in with_http.stderr
    text = (folder / "bank.py").read_text()
    (folder / "bank.py").write_text(
        text.replace("balance -= 1", "balance -= 2").replace(
            "id=int, amount", "id=int, by=tm.optional(str), amount"
        )
    )
    changed = python(folder, f"app.start({data})")
    assert "handler fee has changed" in changed.stderr
    assert "column payments.by is new" in changed.stderr
    assert "tidemill schema diff" in changed.stderr


def test_clients_that_can_no_longer_call_are_named(folder: Path) -> None:
    text = APP.replace('fees = app.stream("fees", id=int)', "").replace(
        APP[APP.index("@app.transaction(fees)") : APP.index("@app.procedure")], ""
    )
    (folder / "bank.py").write_text(text)
    served = python(folder, "app.start(data_dir='bank.tidemill').stop()")
    assert served.returncode == 0, served.stderr
    ended = tidemill(folder, "run", "bank.py")
    assert "clients could call look, and here they can't" in ended.stderr
    assert "--http again" in ended.stderr


def test_without_a_snapshot_the_differences_are_unknown(folder: Path) -> None:
    log = ["--durable", "log"]
    assert tidemill(folder, "run", "bank.py", *log).returncode == 0
    text = (folder / "bank.py").read_text()
    (folder / "bank.py").write_text(text.replace("+= e.amount", "+= 2 * e.amount"))
    ended = tidemill(folder, "run", "bank.py", *log)
    assert "no snapshot was taken that shows the differences" in ended.stderr


def test_a_new_file_that_is_not_followed(folder: Path) -> None:
    assert tidemill(folder, "run", "bank.py").returncode == 0
    (folder / "pay/b.csv").write_text("id,amount\n1,7\n")
    ended = tidemill(folder, "run", "bank.py")
    assert "there are also payments/b.csv" in ended.stderr
    assert "follow=True takes new files" in ended.stderr
    assert "--upgrade" in ended.stderr
    assert tidemill(folder, "run", "bank.py", "--upgrade").returncode == 0


def test_a_last_line_may_get_its_newline(folder: Path) -> None:
    (folder / "pay/a.csv").write_text("id,amount\n1,5")
    assert tidemill(folder, "run", "bank.py").returncode == 0
    (folder / "pay/a.csv").write_text("id,amount\n1,5\n")
    assert tidemill(folder, "run", "bank.py").returncode == 0
    (folder / "pay/a.csv").write_text("id,amount\n1,5\n1,6\n")
    assert tidemill(folder, "run", "bank.py").returncode == 0
    assert "11" in tidemill(folder, "query", "accounts").stdout


def test_on_processes_the_differences_are_named(folder: Path) -> None:
    def processes() -> subprocess.CompletedProcess[str]:
        return tidemill(folder, "run", "bank.py", "--processes", "1")

    assert processes().returncode == 0
    text = (folder / "bank.py").read_text()
    (folder / "bank.py").write_text(text.replace('"fees", id=int', '"fees", id=int, why=str'))
    ended = processes()
    assert "belongs to another version of the program: column fees.why is new" in ended.stderr


def test_when_all_rows_are_rejected_the_first_reason_is_printed(folder: Path) -> None:
    (folder / "pay/a.csv").write_text("id,amount\nx,5\n1,y\n")
    ended = tidemill(folder, "run", "bank.py")
    assert "no row was executed: 2 rows could not be read; the first: " in ended.stderr
    assert "a.csv, line 2: " in ended.stderr
    assert "help: see all with tidemill dlq ls --data-dir bank.tidemill" in ended.stderr


def test_rows_in_another_encoding_get_a_hint(folder: Path) -> None:
    (folder / "bank.py").write_text(
        """
import tidemill as tm

app = tm.App("bank")
names = app.table("names", key="name", name=str, n=tm.column(int, default=0))
people = app.stream("people", name=str)
people.read(tm.files("people.csv"))

@app.transaction(people)
def count(tx, e):
    names[e.name].n += 1
"""
    )
    (folder / "people.csv").write_bytes("name\nJosé\n".encode("latin-1"))
    ended = tidemill(folder, "run", "bank.py")
    assert "column 'name': not valid text in the file's encoding" in ended.stderr
    assert 'tm.files(..., encoding="windows-1252")' in ended.stderr


def test_wrong_words_get_suggestions(folder: Path) -> None:
    for arguments, said in (
        (["rn"], "there is no 'rn'; did you mean run?"),
        (["dlq", "lst"], "there is no 'lst'; did you mean ls?"),
        (["xyzzy"], "there is no 'xyzzy'; there are demo, new, run,"),
        (["run", "bank.py", "--frsh"], "unrecognized arguments: --frsh; did you mean --fresh?"),
        (["run", "bank.py", "--datadir=x"], "did you mean --data-dir?"),
        (["run", "bank.py", "more"], "unrecognized arguments: more\n"),
    ):
        ended = tidemill(folder, *arguments)
        assert ended.returncode == 2
        assert said in ended.stderr, arguments


LOADING = """
import os, signal, sys

class Finder:
    def find_spec(self, name, path, target=None):
        if name == "tidemill.cli.bench":
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Finder())
sys.argv[0] = "/usr/bin/tidemill"
from tidemill.cli import main
main()
"""


@pytest.mark.skipif(os.name != "posix", reason="it sends a signal")
def test_an_interrupt_while_modules_load_shows_no_traceback(folder: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    ended = subprocess.run(
        [sys.executable, "-c", LOADING], env=environment, capture_output=True, text=True,
        timeout=60, check=False,
    )  # fmt: skip
    assert ended.returncode == -signal.SIGINT
    assert ended.stderr == ""


def test_missing_files_of_settings_are_named(folder: Path) -> None:
    tokens = tidemill(folder, "run", "bank.py", "--http", "0", "--set", "http_tokens=no.toml")
    assert "http_tokens: no.toml: No such file" in tokens.stderr
    assert "tidemill token makes" in tokens.stderr
    both = ["--set", "http_cert=no.pem", "--set", "http_key=no.key"]
    assert (
        "http_cert: no.pem: No such file"
        in tidemill(folder, "run", "bank.py", "--http", "0", *both).stderr
    )
