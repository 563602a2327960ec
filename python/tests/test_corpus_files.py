"""Every file of the corpus gives the rows, dead letters and refusals that are right for it."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

import tidemill as tm

FOLDER = Path(__file__).parents[2] / "corpus" / "files"
CASES: list[dict[str, Any]] = tomllib.loads((FOLDER / "cases.toml").read_text())["case"]
COLUMNS = {"a": "int", "b": "str"}


def named(case: dict[str, Any]) -> str:
    options = ",".join(f"{name}={value}" for name, value in case.get("options", {}).items())
    return f"{case['file']} {options}".strip()


def column(name: str) -> Any:
    if name.startswith("decimal("):
        return tm.decimal(int(name[8:-1]))
    kinds = {"int": int, "str": str, "float": float, "bool": bool, "bytes": bytes}
    return {**kinds, "timestamp": tm.timestamp, "any": tm.any}[name]


def reads(app: tm.App, name: str, case: dict[str, Any]) -> tuple[tm.Stream, Any]:
    """A stream that reads the case's file, and a handler that emits its rows."""
    columns = {of: column(kind) for of, kind in case.get("columns", COLUMNS).items()}
    stream = app.stream(name, **columns)
    stream.read(tm.files(FOLDER / case["file"], **case.get("options", {})))

    def copy(tx, e):
        return {of: getattr(e, of) for of in columns}

    copy.__name__ = f"copy_{name}"
    return stream, app.transaction(stream)(copy)


def check_dead(case: dict[str, Any], dead: list[dict[str, Any]]) -> None:
    expected = case.get("dead", [])
    assert [row["line"] for row in dead] == [line for line, _ in expected], dead
    for row, (_, reason) in zip(dead, expected, strict=True):
        assert reason in row["reason"], row
        assert row["origin"].endswith(case["file"])


@pytest.mark.parametrize("case", CASES, ids=named)
def test_a_file_gives_what_is_right(case: dict[str, Any]) -> None:
    app = tm.App("corpus")
    stream, copy = reads(app, "s", case)
    if "error" in case:
        with pytest.raises(tm.Error) as raised, app.start() as mill:
            mill.finish()
        assert case["error"] in str(raised.value)
        return
    with app.start() as mill:
        mill.finish()
        rows = mill.output(copy)
        if "count" in case:
            assert len(rows) == case["count"]
        else:
            assert [list(row.values()) for row in rows.rows()] == case.get("rows", [])
        check_dead(case, mill.output(stream.dead).rows())


APP = """
import sys

sys.path.insert(0, {tests!r})
import tidemill as tm
from tests.test_corpus_files import CASES, reads

app = tm.App("corpus")
# Without tables there is nothing for several processes to share.
app.table("none", key="id", id=int)
for nth, case in enumerate(CASES):
    if case.get("processes"):
        stream, copy = reads(app, f"s{{nth}}", case)
        copy.write(tm.files(f"out/{{nth}}.jsonl"))
        stream.dead.write(tm.files(f"out/{{nth}}.dead.jsonl"))
"""


def test_two_processes_give_the_same(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(APP.format(tests=str(Path(__file__).parents[1])))
    command = [sys.executable, "-m", "tidemill.cli", "run", "app.py", "--processes", "2"]
    done = subprocess.run(command, cwd=tmp_path, timeout=120, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for nth, case in enumerate(CASES):
        if not case.get("processes"):
            continue
        rows = (tmp_path / f"out/{nth}.jsonl").read_text().splitlines()
        assert [list(json.loads(row).values()) for row in rows] == case["rows"], named(case)
        dead = (tmp_path / f"out/{nth}.dead.jsonl").read_text().splitlines()
        check_dead(case, [json.loads(row) for row in dead])
