"""The log: levels, targets and forms; what is never in it; several processes."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

import tidemill as tm
from tidemill.cli.token import write

APP = """
import tidemill as tm

app = tm.App("counter")
counts = app.table("counts", key="word", word=str, n=tm.column(int, default=0))
words = app.stream("words", word=str)
words.read(tm.files("words.csv"))


@app.transaction(words)
def count(tx, e):
    counts[e.word].n += 1
"""

#: A line of text: time, level, target and event.
LINE = re.compile(r"20\S+Z +(ERROR|WARN|INFO|DEBUG|TRACE) (tidemill::[a-z]+): .+")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "app.py").write_text(APP)
    (tmp_path / "words.csv").write_text("word\n" + "tide\nmill\n" * 50)
    return tmp_path


def run(folder: Path, *args: str, **environ: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tidemill.cli", "run", "app.py", *args]
    return subprocess.run(
        command,
        cwd=folder,
        env=os.environ | environ,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def logged(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def log_lines(text: str) -> list[str]:
    return [line for line in text.splitlines() if LINE.fullmatch(line)]


def test_commands_are_quiet_until_a_log_is_wanted(folder: Path) -> None:
    quiet = run(folder)
    assert quiet.returncode == 0, quiet.stderr
    assert log_lines(quiet.stdout + quiet.stderr) == []
    told = run(folder, "--fresh", TIDEMILL_LOG="info")
    assert told.stdout.splitlines()[0] == quiet.stdout.splitlines()[0]
    events = [line.split(": ")[1].split()[0] for line in log_lines(told.stderr)]
    assert {"start", "opened", "ended", "snapshot", "stop"} <= set(events)


def test_flags_and_the_environment_choose_levels_and_the_form(folder: Path) -> None:
    chosen = ["--set", "log_to=log", "--set", "log=warn,tidemill::source=debug"]
    done = run(folder, *chosen, TIDEMILL_LOG="off", TIDEMILL_LOG_FORMAT="json")
    assert done.returncode == 0, done.stderr
    assert {line["target"] for line in logged(folder / "log")} == {"tidemill::source"}
    (folder / "log").unlink()
    done = run(folder, *chosen, TIDEMILL_LOG_FORMAT="text")
    assert done.returncode == 0, done.stderr
    lines = (folder / "log").read_text().splitlines()
    assert lines
    assert log_lines("\n".join(lines)) == lines


def test_wrong_directives_are_refused_by_name(folder: Path) -> None:
    done = run(folder, TIDEMILL_LOG="inof")
    assert done.returncode == 1
    assert "environment (TIDEMILL_...): log='inof': 'inof' is neither" in done.stderr
    assert "did you mean 'info'?" in done.stderr
    assert "the targets are tidemill::engine, " in done.stderr
    done = run(folder, "--set", "log=kafka=debug")
    assert done.returncode == 1
    assert (
        "log='kafka=debug': 'kafka' is not a target: did you mean 'tidemill::kafka'?" in done.stderr
    )
    with pytest.raises(tm.SettingError, match=r"log_format='xml' is none of text, json"):
        tm.App("a").start(log_format="xml", log="info")


def test_processes_append_to_one_log(folder: Path) -> None:
    chosen = ["--processes", "2", "--set", "log_to=log"]
    done = run(folder, *chosen)
    assert done.returncode == 0, done.stderr
    lines = logged(folder / "log")
    # The run may end before the second worker has started, or has joined.
    processes = len({line["process"] for line in lines})
    assert processes in {2, 3}
    events = [line["event"] for line in lines]
    assert events.count("start") == processes
    assert {"generation begun", "coordinator connected", "stop"} <= set(events)
    joined = {line["worker"] for line in lines if line["event"] == "worker joined"}
    assert joined
    assert joined <= {line["worker"] for line in lines if line["event"] == "joining"}


def test_a_trace_has_no_secrets(tmp_path: Path) -> None:
    tokens, log = tmp_path / "tokens.toml", tmp_path / "log"
    known, unknown = write(tokens, "ann", ["clerk"]), "0" * 64
    app = tm.App("shop")
    sold = app.table("sold", key="id", id=str, n=tm.column(int, default=0))
    sales = app.stream("sales", id=str)

    @app.transaction(sales)
    def sell(tx: Any, e: Any) -> None:
        sold[e.id].n += 1
        tx.require(e.id != "row-marker", "no")

    @app.procedure
    def note(tx: Any, id: str) -> None:
        sold[id].n += 1

    chosen: dict[str, Any] = {"log_to": log, "log": "trace", "data_dir": tmp_path / "data"}
    with app.start(http_port=0, http_tokens=tokens, **chosen) as mill:
        mill.send(sales, [{"id": "row-marker"}, {"id": "other-marker"}], wait=True)
        assert mill.url is not None
        for token, status in ((known, 200), (unknown, 401)):
            headers = {"Authorization": f"Bearer {token}"}
            call = {"id": "call-marker"}
            found = httpx.post(f"{mill.url}/call/note", json=call, headers=headers)
            assert found.status_code == status
        headers = {"Authorization": f"Bearer {known}"}
        assert httpx.get(f"{mill.url}/nothing?token={known}", headers=headers).status_code == 404
    # No broker answers here, so the start fails, and says why.
    secrets = {"sasl.username": "me", "sasl.password": "pass-marker", "sasl.mechanism": "PLAIN"}
    secrets |= {"security.protocol": "sasl_plaintext", "socket.connection.setup.timeout.ms": "1000"}
    topic = tm.App("topic")
    read = tm.kafka(
        "t",
        brokers="127.0.0.1:9",
        properties=secrets,
        format="avro",
        registry="http://me:url-marker@127.0.0.1:9",
    )
    topic.stream("events", n=int).read(read)
    with pytest.raises(tm.Error):
        topic.start(**chosen | {"data_dir": tmp_path / "other"})
    lines = logged(log)
    text = log.read_text()
    for secret in (known, unknown, "pass-marker", "url-marker"):
        assert secret not in text
    above = [line for line in lines if line["level"] not in ("debug", "trace")]
    assert "marker" not in json.dumps(above)
    # These show that the log was on.
    events = {(line["target"], line["event"]) for line in lines}
    assert {
        ("tidemill::http", "listening"),
        ("tidemill::http", "refused"),
        ("tidemill::engine", "epoch"),
        ("tidemill::engine", "error"),
        ("tidemill::kafka", "librdkafka"),
    } <= events
