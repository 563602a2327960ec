"""The commands that ask an engine, against replies as docs/internals/protocol.md has them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tidemill import _native
from tidemill.cli import main

Reply = list[dict[str, Any]]

INSPECT: Reply = [
    {
        "inspect": {
            "tables": [
                {
                    "name": "accounts",
                    "key": ["bank", "id"],
                    "columns": [
                        {"name": "bank", "type": "str"},
                        {"name": "id", "type": "int"},
                        {"name": "balance", "type": "decimal(2)"},
                    ],
                }
            ]
        },
        "engine": "running",
        "end": True,
    }
]
QUERY: Reply = [
    {
        "table": "accounts",
        "columns": INSPECT[0]["inspect"]["tables"][0]["columns"],
        "key": ["bank", "id"],
    },
    {"row": {"bank": "7", "id": 1234567, "balance": "12.50"}},
    {"row": {"bank": "[red]", "id": 2, "balance": None}},
    {
        "rows": 2,
        "more": True,
        "as_of": 1017,
        "clock": "2026-01-31T12:00:00.000000Z",
        "engine": "running",
        "end": True,
    },
]
TAIL: Reply = [
    {"stream": "pay", "columns": [{"name": "src", "type": "int"}], "from": 40},
    {"row": 40, "value": {"src": 7, "left": "1.00"}},
    {"next": 41},
    {"next": 41, "engine": "running", "end": True},
]
DLQ: Reply = [
    {"stream": "payments.dead", "row": 3, "value": {"line": 19, "reason": "no", "raw": "{}"}},
    {"stream": "payments.late", "row": 0, "value": {"at": 5}},
    {
        "rows": 2,
        "streams": {
            "payments.dead": {"rows": 4, "dropped": 3},
            "payments.late": {"rows": 1, "dropped": 0},
        },
        "as_of": 17,
        "engine": "stopped",
        "end": True,
    },
]
REPLIES: dict[str, Reply] = {
    "inspect": INSPECT,
    "query": QUERY,
    "tail": TAIL,
    "dlq_ls": DLQ,
    "dlq_replay": [{"sent": 2, "engine": "running", "end": True}],
    "status": [
        {
            "status": {"app": "ledger", "state": "running", "process": 12345},
            "engine": "running",
            "end": True,
        }
    ],
    "backup": [{"backup": {"to": "x", "epoch": 17}, "engine": "stopped", "end": True}],
    "restore": [{"restore": {"epoch": 17}, "engine": "stopped", "end": True}],
    "verify": [{"verify": {"bytes": 17}, "engine": "stopped", "end": True}],
}


class Engine:
    """An engine with prepared answers, which records the questions."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []
        self.where: list[str] = []
        self.replies = dict(REPLIES)

    def ask(self, data_dir: str, request: str) -> Any:
        self.where.append(data_dir)
        self.asked.append(json.loads(request))
        return iter([json.dumps(line) for line in self.replies[self.asked[-1]["do"]]])


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Engine:
    made = Engine()
    monkeypatch.setattr(_native, "ask", made.ask)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ledger.tidemill").mkdir()
    return made


@pytest.fixture
def said(
    engine: Engine, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str, dict[str, Any]]]:
    """Runs a command: its exit code, what it prints for people, and its line of JSON."""

    def run(*arguments: str) -> tuple[int, str, dict[str, Any]]:
        code = main(arguments)
        for_people = capsys.readouterr()
        assert main([*arguments, "--json"]) == code
        text = capsys.readouterr().out
        return code, for_people.out + for_people.err, json.loads(text.splitlines()[-1])

    return run


def test_status(engine: Engine, said: Any) -> None:
    code, text, found = said("status")
    assert code == 0
    assert "state     running" in text
    assert "process   12345" in text
    assert found["app"] == "ledger"
    assert engine.where == ["ledger.tidemill"] * 2


def test_query(engine: Engine, said: Any) -> None:
    code, text, found = said(
        "query", "accounts", "--key", "7", "8", "--filter", "id > 1", "--as-of", "12"
    )
    assert code == 0
    assert engine.asked[1] == {
        "do": "query",
        "table": "accounts",
        "key": ["7", 8],
        "filter": "id > 1",
        "as_of": 12,
    }
    assert [line.split() for line in text.splitlines()[:3]] == [
        ["bank", "id", "balance"],
        ["7", "1234567", "12.50"],
        ["[red]", "2", "-"],
    ]
    assert text.splitlines()[3] == (
        "2 rows, and there are more: --limit shows them; as of epoch 1,017, "
        "2026-01-31T12:00:00.000000Z; the engine is running"
    )
    assert found["rows"] == [line["row"] for line in QUERY[1:3]]
    assert found["more"] is True
    code, text, found = said("query", "accounts", "--key", "7")
    assert code == 1
    assert "has 2 columns (bank, id), not 1" in text
    assert found["error"]["kind"] == "InputError"
    code, text, _ = said("query", "accounts", "--key", "7", "eight")
    assert "key column 'id' is int, but 'eight' is not one" in text
    said("query", "accounts", "--as-of", "2026-01-31", "--limit", "5")
    assert engine.asked[-1] == {
        "do": "query", "table": "accounts", "as_of": "2026-01-31", "limit": 5
    }  # fmt: skip


def test_tail(engine: Engine, said: Any) -> None:
    code, text, found = said("tail", "pay", "--from", "40", "--no-follow")
    assert code == 0
    assert text.split() == ["40", "src=7", "left=1.00"]
    assert engine.asked[0] == {"do": "tail", "stream": "pay", "follow": False, "from": 40}
    assert found["next"] == 41


def test_dlq(engine: Engine, said: Any) -> None:
    code, text, found = said("dlq", "ls")
    assert code == 0
    assert "payments.dead: 4 rows, 3 more were dropped" in text
    assert [row["row"] for row in found["rows"]] == [3, 0]
    said("dlq", "ls", "payments.dead", "--limit", "2")
    assert engine.asked[-1] == {"do": "dlq_ls", "stream": "payments.dead", "limit": 2}
    code, text, found = said("dlq", "replay", "payments.dead", "--row", "3", "--value", '{"a": 1}')
    assert (code, text, found["sent"]) == (0, "sent 2 again\n", 2)
    assert engine.asked[-1]["rows"] == [{"row": 3, "value": {"a": 1}}]
    said("dlq", "replay", "payments.dead", "--all")
    assert engine.asked[-1]["rows"] == [{"row": 3}, {"row": 0}]
    for wrong in ("", "--row 1 --all", "--all --value {}", "--row 1 --value {"):
        code, text, found = said("dlq", "replay", "payments.dead", *wrong.split())
        assert code == 1
        assert "help: " in text


def test_backup_and_restore(engine: Engine, said: Any, tmp_path: Path) -> None:
    code, text, found = said("backup", "copy")
    assert (code, found["epoch"]) == (0, 17)
    assert engine.asked[-1] == {"do": "backup", "to": str(tmp_path / "copy")}
    code, text, _ = said("restore", "copy")
    assert code == 1
    assert "copy is not a backup" in text
    (tmp_path / "copy").mkdir()
    (tmp_path / "copy/APP").write_text('{"name": "my app"}')
    code, _, found = said("restore", "copy")
    assert (code, found["data_dir"]) == (0, "my_app.tidemill")
    assert engine.where[-1] == str(tmp_path / "my_app.tidemill")
    assert said("verify", "--data-dir", "there")[2] == {"data_dir": "there", "bytes": 17}


def test_what_goes_wrong(engine: Engine, said: Any, tmp_path: Path) -> None:
    error = {"kind": "SettingError", "what": "there is no table x", "help": "did you mean 'y'?"}
    engine.replies["query"] = [QUERY[0], {"error": error, "end": True}]
    code, text, found = said("query", "x")
    assert code == 1
    assert text == "error: there is no table x\n  help: did you mean 'y'?\n"
    assert found["error"]["kind"] == "SettingError"
    engine.replies["query"] = QUERY[:2]
    assert "ended during a reply" in said("query", "x")[1]
    (tmp_path / "other.tidemill").mkdir()
    code, text, _ = said("status")
    assert code == 1
    assert "several data directories here: ledger.tidemill, other.tidemill" in text
    assert said("status", "--data-dir", "there")[0] == 0
    assert engine.where[-1] == "there"


def test_schema_diff(
    engine: Engine, said: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "app.py").write_text(
        "import tidemill as tm\napp = tm.App('ledger')\n"
        "app.table('t', key='k', k=int)\napp.stream('s', k=int)\n"
    )
    change = {"what": "column", "change": "added", "name": "t.note", "upgrade": "null in every row"}
    diff: dict[str, Any] = {"same": False, "possible": True, "why": [], "changes": [change]}
    where = []

    def schema_diff(spec: str, opaques: list[Any], data_dir: str) -> str:
        where.append(data_dir)
        extra = [] if json.loads(spec)["sources"] else [{**change, "name": "s"}]
        return json.dumps({**diff, "changes": [*extra, *diff["changes"]]})

    monkeypatch.setattr(_native, "schema_diff", schema_diff)
    code, text, found = said("schema", "diff", "app.py")
    assert code == 0
    assert "column added" in text
    assert "an upgrade is possible" in text
    assert len(found["changes"]) == 1
    assert where[0] == "ledger.tidemill"
    diff |= {"possible": False, "why": ["the key of t changed"]}
    code, text, _ = said("schema", "diff", "app.py")
    assert code == 1
    assert "the key of t changed" in text
    diff |= {"same": True, "possible": True, "changes": []}
    code, text, _ = said("schema", "diff", "app.py", "--data-dir", "there")
    assert code == 0
    assert where[-1] == "there"
