"""Commands that ask any process of an app over HTTP."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import tidemill as tm
from tidemill.cli import main

from .kill.cluster import Process, wait_for
from .test_processes_clients import Nodes, nodes

__all__ = ["nodes"]


def asked(capsys: pytest.CaptureFixture[str], *args: str) -> list[dict[str, Any]]:
    assert main([*args, "--json"]) == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_any_process_shows_rows_and_events(
    nodes: Nodes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with tm.Client(nodes.urls()[0]) as client:
        for name in "aab":
            client.call("count", name=name)
    for url in nodes.urls():
        at = ("--cluster", url)
        [found] = asked(capsys, "query", "counts", *at)
        assert found["rows"] == [{"name": "a", "n": 2}, {"name": "b", "n": 1}]
        [found] = asked(capsys, "query", "counts", "--key", "b", *at)
        assert (found["rows"], found["more"]) == ([{"name": "b", "n": 1}], False)
        [found] = asked(capsys, "query", "counts", "--limit", "1", *at)
        assert (len(found["rows"]), found["more"]) == (1, True)
        assert main(["query", "counts", "--key", "c", *at]) == 0
        assert "0 rows; as of the last durable cut" in capsys.readouterr().out
        *rows, end = asked(capsys, "tail", "added", "--from", "1", "--no-follow", *at)
        assert [(row["row"], row["value"]["n"]) for row in rows] == [(1, 2), (2, 1)]
        assert end["next"] == 3
        [end] = asked(capsys, "tail", "added", "--no-follow", *at)
        assert end["next"] == 3
        for wrong, why in (
            (("query", "nothing"), "no table nothing"),
            (("query", "counts", "--as-of", "1"), "--as-of needs the data directory"),
            (("query", "counts", "--filter", "n > 1"), "--filter needs the data directory"),
            (("query", "counts", "--limit", "1001"), "at most 1,000 rows"),
            (("query", "counts", "--key", "a", "b"), "a value for each column"),
            (("query", "counts", "--data-dir", "x"), "exclude each other"),
            (("query", "counts", "--token-file", "/none"), "--token-file"),
            (("tail", "nothing", "--no-follow"), "no stream nothing"),
            (("tail", "added", "--from", "9", "--no-follow"), "row 9 of added"),
            (("dlq", "ls", "added"), "end with .dead or .late"),
        ):
            assert main([*wrong, *at]) == 1
            assert why in capsys.readouterr().err, wrong
    (secret := tmp_path / "token").write_text("first\nsecond\n")
    flags = ["tail", "added", "--token-file", str(secret), "--cluster"]
    assert main([*flags, "127.0.0.1:1"]) == 1
    shown = capsys.readouterr().err
    assert "does not have one token" in shown
    assert "first" not in shown
    assert main([*flags, "prod.example:8443"]) == 1
    assert "would travel unencrypted" in capsys.readouterr().err
    assert main(["tail", "added", "--cluster", "127.0.0.1:1"]) == 1
    assert "no process answers at" in capsys.readouterr().err
    assert main(["tail", "added", "--token-file", "x"]) == 1
    assert "--cluster URL" in capsys.readouterr().err


def test_a_worker_shows_events_as_they_come(nodes: Nodes) -> None:
    command = [sys.executable, "-m", "tidemill.cli", "tail", "added", "--from", "0", "--json"]
    worker = nodes.urls()[2]
    with subprocess.Popen([*command, "--cluster", worker], stdout=subprocess.PIPE) as tail:
        with tm.Client(nodes.urls()[1]) as client:
            for _ in range(3):
                client.call("count", name="a")
        assert tail.stdout is not None
        seen = [json.loads(tail.stdout.readline())["value"]["n"] for _ in range(3)]
        assert seen == [1, 2, 3]
        tail.terminate()


@pytest.mark.parametrize("processes", [[], ["--processes", "2"]])
def test_bad_rows_are_listed(
    tmp_path: Path, processes: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "app.py").write_text(
        "import tidemill as tm\n"
        "app = tm.App('odd')\n"
        "seen = app.table('seen', key='id', id=int)\n"
        "events = app.stream('events', id=int)\n"
        "events.read(tm.files('events.csv'))\n"
        "@app.transaction(events)\n"
        "def take(tx, e):\n"
        "    seen.upsert(id=e.id)\n"
        "@app.procedure\n"
        "def touch(tx):\n"
        "    seen.upsert(id=9)\n"
    )
    (tmp_path / "events.csv").write_text("id\n1\nx\n2\ny\n")
    assert main(["token", str(tmp_path / "tokens.toml"), "ann"]) == 0
    token = capsys.readouterr().out.split()[-1]
    (tmp_path / "token").write_text(token + "\n")
    flags = ["--http", "0", "--set", "http_tokens=tokens.toml"]
    with Process(tmp_path, "run", "app.py", *flags, *processes) as process:
        url = process.find(r"http +(http://\S+)")
        at = ("--cluster", url, "--token-file", str(tmp_path / "token"))

        def listed() -> list[dict[str, Any]]:
            # While it recovers, it does not know its last rows.
            done = main(["dlq", "ls", *at, "--json"]) == 0
            found = json.loads(capsys.readouterr().out)
            return list(found["rows"]) if done and len(found["rows"]) == 2 else []

        rows = wait_for("the bad rows", listed)
        assert [row["value"]["raw"] for row in rows] == ["x", "y"]
        [found] = asked(capsys, "dlq", "ls", "events.dead", "--limit", "1", *at)
        assert [row["row"] for row in found["rows"]] == [1]
        assert found["streams"] == {"events.dead": {"rows": 2, "dropped": 0}}
        assert main(["dlq", "ls", "--cluster", url]) == 1
        assert "token" in capsys.readouterr().err
        assert process.stop() == 0
