"""The values of ``corpus/values.toml`` through every interface: what is stored, and what is
refused.
"""

from __future__ import annotations

import datetime as dt
import tomllib
from collections.abc import Callable
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import tidemill as tm

from .test_entities_nodes import on_nodes

CORPUS = Path(__file__).parents[2] / "corpus" / "values.toml"
VALUES: list[dict[str, Any]] = tomllib.loads(CORPUS.read_text())["value"]
TYPES = sorted({value["type"] for value in VALUES})
#: What stands for a value that was refused, with the reason.
REFUSED = "refused: "


def evaluated(expression: str) -> Any:
    names = {"D": Decimal, "dt": dt, "np": np, "pd": pd, "pa": pa, "tm": tm}
    names["utc"] = lambda year: dt.datetime(year, 1, 1, tzinfo=dt.UTC)
    return eval(expression, names)


def wanted(value: dict[str, Any], entry: str) -> dict[str, str]:
    """Returns the expected outcome at an interface; empty where the interface is left out."""
    at: dict[str, dict[str, str]] = value.get("at", {})
    usual = {key: value[key] for key in ("gives", "refused") if key in value}
    return at.get(entry, usual)


def checked(value: dict[str, Any], entry: str, found: Any) -> str:
    """Returns the deviation from the expected outcome, if there is one."""
    right = wanted(value, entry)
    shown = next(value[form] for form in ("given", "text", "json", "arrow") if form in value)
    where = f"{value['type']}: {shown} by {entry}"
    is_refused = isinstance(found, str) and found.startswith(REFUSED)
    if "refused" in right:
        if is_refused and right["refused"] in found:
            return ""
        return f"{where} should be refused ({right['refused']}), but: {found!r}"
    if right and repr(found) != repr(evaluated(right["gives"])):
        return f"{where} should give {right['gives']}, but: {found!r}"
    return ""


def tried(work: Callable[[], object]) -> str | None:
    """Why something was refused, if it was."""
    try:
        work()
    except tm.Abort as abort:
        return f"{REFUSED}{abort.reason}"
    except tm.Error as error:
        return f"{REFUSED}{error.what} {error.help}"
    return None


class Doors:
    """An app with a stream, a table and procedures for each type."""

    def __init__(self) -> None:
        self.app = tm.App("values")
        self.put: dict[str, tm.Stream] = {}
        self.write: dict[str, tm.Stream] = {}
        for number, type in enumerate(TYPES):
            self._declare(number, type, tm.optional(evaluated(type)))

    def _declare(self, number: int, type: str, column: Any) -> None:
        table = self.app.table(f"t{number}", key="id", id=int, v=column)
        stream = self.app.stream(f"s{number}", id=int, v=column)

        @self.app.transaction(stream, name=f"take{number}")
        def take(tx, e):
            table.upsert(id=e.id, v=e.v)

        def put(tx, id, v):
            table.upsert(id=id, v=v)

        put.__annotations__ = {"id": int, "v": column}
        self.put[type] = self.app.procedure(name=f"put{number}")(put)

        @self.app.procedure(name=f"write{number}")
        def write(tx, id: int, n: int):
            table.upsert(id=id, v=GIVEN[n])

        self.write[type] = write

    def tries(self, n: int, mill: tm.Mill, client: tm.Client) -> dict[str, Callable[[int], object]]:
        """Returns, by interface, the function that sends the value with this number."""
        value = VALUES[n]
        put, write = self.put[value["type"]], self.write[value["type"]]
        stream = f"s{TYPES.index(value['type'])}"

        def post(key: int) -> None:
            body = f'{{"id":{key},"v":{value["json"]}}}'
            headers = {"content-type": "application/json"}
            answer = client._http.post(
                f"{client.url}/call/{put.name}", content=body, headers=headers
            )
            if answer.status_code != 200:
                raise tm.InputError(answer.json()["error"]["what"], "")

        tries: dict[str, Callable[[int], object]] = {}
        if n in GIVEN:
            given = GIVEN[n]
            tries["row"] = lambda key: mill.send(stream, [{"id": key, "v": given}])
            tries["column"] = lambda key: mill.send(stream, {"id": [key], "v": [given]})
            tries["call"] = lambda key: mill.call(put, id=key, v=given)
            tries["http"] = lambda key: client.call(put, id=key, v=given)
            tries["write"] = lambda key: mill.call(write, id=key, n=n)
        if "json" in value:
            tries["body"] = post
        if "arrow" in value:
            array = evaluated(value["arrow"])
            tries["arrow"] = lambda key: mill.send(stream, pa.table({"id": [key], "v": array}))
            tries["array"] = lambda key: mill.send(stream, {"id": [key], "v": array})
        return tries


GIVEN = {n: evaluated(v["given"]) for n, v in enumerate(VALUES) if "given" in v}


def test_values_by_every_door(tmp_path: Path) -> None:
    entries = Doors()
    found: dict[tuple[int, str], Any] = {}
    rows: dict[int, tuple[int, str]] = {}
    files: dict[str, tuple[int, str]] = {}

    def id_of(n: int, entry: str) -> int:
        rows[len(rows)] = (n, entry)
        return len(rows) - 1

    for n, value in enumerate(VALUES):
        stream = next(s for s in entries.app.streams if s.name == f"s{TYPES.index(value['type'])}")
        for form, entry, name in (("text", "csv", "csv"), ("json", "jsonl", "jsonl")):
            if form in value and wanted(value, entry):
                path = tmp_path / f"{n}.{name}"
                key = id_of(n, entry)
                text = str(value[form])
                if entry == "csv":
                    path.write_text(f'id,v\n{key},"{text}"\n')
                else:
                    path.write_text(f'{{"id":{key},"v":{text}}}\n')
                files[path.name] = (n, entry)
                stream.read(tm.files(path))
        if "arrow" in value and wanted(value, "parquet"):
            path = tmp_path / f"{n}.parquet"
            key = id_of(n, "parquet")
            pq.write_table(pa.table({"id": [key], "v": evaluated(value["arrow"])}), path)
            files[path.name] = (n, "parquet")
            stream.read(tm.files(path))
    for number in range(len(TYPES)):
        next(s for s in entries.app.streams if s.name == f"s{number}").push()
    with entries.app.start(http_port=0) as mill, tm.Client(mill.url, retries=0) as client:
        for n, value in enumerate(VALUES):
            for entry, work in entries.tries(n, mill, client).items():
                if wanted(value, entry):
                    key = id_of(n, entry)
                    why = tried(partial(work, key))
                    if why is not None:
                        found[n, entry] = why
        mill.drain()
        for number in range(len(TYPES)):
            for row in mill.table(f"t{number}").rows():
                found.setdefault(rows[row["id"]], row["v"])
            for row in mill.output(f"s{number}.dead").rows():
                found[files[Path(row["origin"]).name]] = REFUSED + row["reason"]
    wrong = [checked(VALUES[n], entry, found.get((n, entry))) for n, entry in rows.values()]
    assert [w for w in wrong if w] == []


def declared(n: int) -> dict[str, Any]:
    """Returns the outcomes of declaring a value, as a constant of a traced function and as a
    default.
    """
    value, found = VALUES[n], {}
    app = tm.App("constants")
    column = tm.optional(evaluated(value["type"]))
    stream = app.stream("s", id=int)
    table = app.table("t", key="id", id=int, v=column)

    def constant() -> None:
        @app.transaction(stream)
        def write(tx, e):
            table.upsert(id=e.id, v=GIVEN[n])

        assert write.path == "traced" or write.why, write.why
        if write.path != "traced":
            raise tm.ProgramError(write.why)

    def default() -> None:
        other = app.table("d", key="id", id=int, v=tm.column(column, default=GIVEN[n]))

        @app.transaction(stream, name="make")
        def make(tx, e):
            other.upsert(id=e.id)

    for entry, work in (("constant", constant), ("default", default)):
        if wanted(value, entry):
            found[entry] = tried(work)
    if any(why is None for why in found.values()):
        with app.start() as mill:
            mill.send("s", [{"id": 1}])
            mill.drain()
            aborted = mill.output("write.aborted").rows() if "constant" in found else []
            reasons = [row["reason"] for row in aborted]
            for entry, name in (("constant", "t"), ("default", "d")):
                if entry in found and found[entry] is None:
                    row = mill.table(name).rows()
                    found[entry] = row[0]["v"] if row else f"{REFUSED}{reasons}"
    return found


@pytest.mark.parametrize("n", GIVEN)
def test_values_that_are_declared(n: int) -> None:
    wrong = [checked(VALUES[n], entry, found) for entry, found in declared(n).items()]
    assert [w for w in wrong if w] == []


def test_values_on_several_nodes() -> None:
    entries = Doors()
    kept = [n for n in GIVEN if wanted(VALUES[n], "write")]
    calls = [(entries.write[VALUES[n]["type"]].name, {"id": n, "n": n}) for n in kept]
    found = on_nodes(entries.app, calls, 2, 1, 1000)
    stored = {row["id"]: row["v"] for name, rows in found["tables"].items() for row in rows}
    wrong = []
    for n, (outcome, reply) in zip(kept, found["replies"], strict=True):
        reply = stored[n] if outcome == "returned" else f"{REFUSED}{reply}"
        wrong.append(checked(VALUES[n], "write", reply))
    assert [w for w in wrong if w] == []
