"""Functions without parameters, and what describes them, in one process and on several."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

import tidemill as tm
from tidemill import _native
from tidemill.cli import main

from .kill.cluster import Process, settings, wait_for

APP = """
import tidemill as tm

app = tm.App("seeds")
table = app.table("t", key="id", id=int, n=int)
thing = app.entity("thing", key="id", id=int, n=int)
log = app.table("log", key="reason", reason=str)


@app.procedure
def seed(tx):
    row = table[1]
    row.n = (row.n if row.exists() else 0) + 1
    return row.n


@app.procedure
def fail(tx):
    tx.require(False, "it always does")


@app.transaction(fail.aborted, opaque=True)
def note(tx, e):
    log.upsert(reason=e.reason)


@thing.function(creates=True)
def count(self, ctx):
    self.n = (self.n or 0) + 1
    return self.n
"""


def made() -> tm.App:
    names: dict[str, Any] = {}
    exec(compile(APP, "seeds.py", "exec"), names)
    app = names["app"]
    assert isinstance(app, tm.App)
    return app


def test_in_one_process() -> None:
    with made().start(http_port=0) as mill:
        assert mill.call("seed") == 1
        mill.send("seed.calls", [{}, {}], wait=True)
        assert mill.call("thing.count", id=1) == 1
        with pytest.raises(tm.Abort, match="it always does"):
            mill.call("fail")
        assert mill.url is not None
        check(mill.url, 4)
        assert mill.table("log").rows() == [{"reason": "it always does"}]


def check(url: str, next: int) -> None:
    """Asks over HTTP."""
    with httpx.Client(base_url=url, timeout=30) as client:

        def post(name: str, body: object = None) -> tuple[int, Any]:
            found = client.post(f"/call/{name}", json={} if body is None else body)
            return found.status_code, found.json()

        assert post("seed") == (200, {"reply": next})
        status, said = post("seed", {"n": 1})
        assert status == 400
        assert "no parameter 'n'" in said["error"]["what"]
        assert post("seed", [])[0] == 400
        assert post("fail")[0] == 409
        document = client.get("/openapi.json").json()
        body = document["paths"]["/call/seed"]["post"]["requestBody"]["content"]
        assert body["application/json"]["schema"]["properties"] == {}
        status, found = 200, client.get("/tables/t/rows?key=1").json()
        assert found == {"row": {"id": 1, "n": next}}


def test_on_nodes() -> None:
    spec, opaques = made().spec({}, keep_all=False, push=False)
    calls: list[tuple[str, object]] = [("seed", {}), ("fail", {}), ("seed", {})]
    calls.append(("thing.count", {"id": 1}))
    for nodes in (1, 2, 3):
        found = _native.run_nodes(json.dumps(spec), opaques, calls, nodes, 7, 2)
        assert {"id": 1, "n": 2} in found["tables"]["t"], found
        assert found["tables"]["log"] == [{"reason": "it always does"}]


def test_on_several_processes(tmp_path: Path) -> None:
    (tmp_path / "seeds.py").write_text(APP)
    flags = ["--processes", "2", "--http", "0", *settings()]
    with Process(tmp_path, "run", "seeds.py", *flags) as parent:
        url = parent.find(r"http +(http://\S+)")
        wait_for("workers", lambda: httpx.get(f"{url}/health").json()["generation"])
        check(url, 1)


def test_inspect(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "seeds.py").write_text(APP)
    monkeypatch.chdir(tmp_path)
    assert main(["inspect", "seeds.py"]) == 0
    assert "seed.calls" in capsys.readouterr().out
    # Settings for several processes are the app's, too.
    (tmp_path / "tidemill.toml").write_text("cluster_sources = 4\nhttp_port = 0\n")
    assert main(["inspect", "seeds.py", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {"seed", "fail", "note", "thing.count"} <= {h["name"] for h in found["handlers"]}


def test_what_has_no_columns_otherwise_is_refused() -> None:
    app = tm.App("bare")
    with pytest.raises(tm.ProgramError, match="no columns"):
        app.stream("bare")
    with pytest.raises(tm.ProgramError, match=r"no columns|no key"):
        app.table("bare", key=())
