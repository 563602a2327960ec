"""The changes that an upgrade would make, for apps with everything that runs as a function."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

from tidemill.cli import main

from .kill.cluster import Process

APP = """
import tidemill as tm

app = tm.App("all")
t = app.table("t", key="id", id=int, n=int)
u = app.table("u", key="id", id=int, n=int)
by_n = u.index("n")
pushed, made = app.stream("pushed", id=int), app.stream("made", id=int)
recent = app.window("recent", rows=2, id=int)
thing = app.entity("thing", key="id", id=int, n=int)


@app.procedure
def put(tx, id: int):
    t.upsert(id=id, n=1)
    tx.emit(made, id=id)


@app.procedure
def nothing(tx):
    pass


@app.procedure(made, owns=[recent])
def take(tx, made):
    for e in made:
        recent.insert(id=e.id)


@app.trigger(t)
def copy(tx, change):
    if change.new is not None:
        u.upsert(id=change.new.id, n=change.new.n)


@app.transaction(pushed, opaque=True)
def push(tx, e):
    t.upsert(id=e.id, n=2)


@app.transaction(put.aborted)
def failed(tx, e):
    t[e.id].n = 0


@thing.function(creates=True)
def count(self, ctx):
    self.n = (self.n or 0) + 1


@app.external(out={"ok": bool})
def mail(id, item: int):
    return {"ok": True}


@app.procedure
def send(tx, item: int):
    tx.external(mail, item=item)


@app.every("1h")
def sweep(tx, firing):
    pass
"""


@pytest.fixture(params=["started", "run", "served"])
def folder(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with what the app has left."""
    text = APP
    if request.param == "run":
        text += '\npushed.read(tm.files("pushed.csv"))\n'
        (tmp_path / "pushed.csv").write_text("id\n1\n")
    (tmp_path / "app.py").write_text(text)
    monkeypatch.chdir(tmp_path)
    if request.param == "started":
        names: dict[str, Any] = {}
        exec(compile(text, "app.py", "exec"), names)
        with names["app"].start(data_dir="all.tidemill") as mill:
            mill.call("put", id=1)
            mill.call("thing.count", id=1)
    elif request.param == "run":
        assert main(["run", "app.py"]) == 0
    else:
        with Process(tmp_path, "run", "app.py", "--http", "0") as process:
            url = process.find(r"http +(http://\S+)")
            assert httpx.post(f"{url}/call/put", json={"id": 1}).status_code == 200
            assert process.stop(signal.SIGTERM) == 0
    return tmp_path


def difference(capsys: pytest.CaptureFixture[str], *more: str) -> dict[str, Any]:
    capsys.readouterr()
    code = main(["schema", "diff", "app.py", "--json", *more])
    found = json.loads(capsys.readouterr().out)
    assert isinstance(found, dict), found
    assert "error" not in found, found
    assert code == (0 if found["possible"] else 1)
    return found


@pytest.mark.skipif(sys.platform == "win32", reason="it sends signals")
def test_an_app_with_functions_is_compared(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert difference(capsys)["same"]
    text = (folder / "app.py").read_text()
    # Bodies are no part of a schema.
    (folder / "app.py").write_text(text.replace("n=2", "n=3"))
    assert difference(capsys)["same"]
    changed = text.replace("id=int, n=int)\nby_n", "id=int, n=int, note=tm.optional(str))\nby_n")
    (folder / "app.py").write_text(changed + "\n\n@app.procedure\ndef more(tx):\n    pass\n")
    found = difference(capsys)
    assert not found["same"]
    names = {change["name"] for change in found["changes"]}
    assert "u.note" in names, found
    assert any("more" in name for name in names), found
    assert found["possible"], found
    # A file of settings for several processes is no hindrance.
    (folder / "tidemill.toml").write_text("cluster_sources = 4\n")
    assert difference(capsys)["possible"]
