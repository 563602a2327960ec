"""The promises of the guide about files: which rows are read, in which order, or late."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import tidemill as tm

from .test_promises_guide import kept


class Copy:
    """An app that copies what it reads."""

    def __init__(self, given: Any, out: Any = None, **columns: Any) -> None:
        columns = columns or {"n": int}
        self.app = tm.App("copy")
        self.rows = self.app.stream("rows", **columns)
        self.rows.read(given)

        @self.app.transaction(self.rows)
        def copy(tx: Any, e: Any) -> dict[str, Any]:
            return {name: getattr(e, name) for name in columns}

        self.copy = copy
        if out is not None:
            copy.write(out)

    def read(self, **settings: Any) -> list[list[Any]]:
        """Returns the rows that a run copies."""
        with self.app.start(**settings) as mill:
            mill.finish()
            return kept(mill, self.copy)


def test_a_file_a_folder_and_a_pattern_are_read(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "b.csv").write_text("n\n3\n")
    (folder / "a.csv").write_text("n\n1\n2\n")
    (folder / "c.jsonl").write_text('{"n": 4}\n')
    (folder / "d.csv.gz").write_bytes(gzip.compress(b"n\n5\n"))
    (folder / "e.jsonl.gz").write_bytes(gzip.compress(b'{"n": 6}\n'))
    (folder / "plain").write_text("n\n7\n")
    for name, found in (
        ("a.csv", [1, 2]),
        ("*.csv", [1, 2, 3]),
        ("c.jsonl", [4]),
        ("d.csv.gz", [5]),
        ("e.jsonl.gz", [6]),
    ):
        read = Copy(tm.files(folder / name)).read()
        assert sorted(row[0] for row in read) == found, name
    assert Copy(tm.files(folder / "plain", format="csv")).read() == [[7]]
    for name in ("c.jsonl", "e.jsonl.gz", "plain"):
        (folder / name).unlink()
    assert sorted(Copy(tm.files(folder, "csv")).read()) == [[1], [2], [3], [5]]


def test_a_row_that_can_not_be_decoded_is_kept_with_its_beginning(tmp_path: Path) -> None:
    given = tmp_path / "in.csv"
    given.write_text("n\n1\n" + "x" * 1024 + "\n" + "y" * 1025 + "\n")
    copy = Copy(tm.files(given))
    with copy.app.start() as mill:
        mill.finish()
        whole, long = mill.output(copy.rows.dead).rows()
    assert (whole["line"], long["line"]) == (3, 4)
    assert whole["origin"].endswith("in.csv")
    assert whole["raw"] == "x" * 1024
    assert "bytes" not in whole["reason"]
    assert long["raw"] == "y" * 1024
    # With the end of its line.
    assert "raw is only the beginning of 1026 bytes" in long["reason"]


def test_rows_of_a_parquet_file_are_whole_files_until_the_end(tmp_path: Path) -> None:
    out = tmp_path / "out.parquet"
    (tmp_path / "in.csv").write_text("n\n1\n2\n")
    copy = Copy(tm.files(tmp_path / "in.csv", follow=True), tm.files(out))
    data = tmp_path / "data"
    with copy.app.start(data_dir=data) as mill:
        mill.drain()
        assert kept(mill, copy.copy) == [[1], [2]]
        mill.stop()
    # A run that follows has no end: the parts are what there is.
    assert not out.exists()
    parts = sorted(Path(f"{out}.parts").glob("*.parquet"))
    assert [row["n"] for part in parts for row in pq.read_table(part).to_pylist()] == [1, 2]
    one = Copy(tm.files(tmp_path / "in.csv"), tm.files(tmp_path / "whole.parquet"))
    assert one.read() == [[1], [2]]
    assert pq.read_table(tmp_path / "whole.parquet").to_pylist() == [{"n": 1}, {"n": 2}]
    assert not Path(f"{tmp_path / 'whole.parquet'}.parts").exists()


def test_a_row_is_late_beyond_the_out_of_orderness(tmp_path: Path) -> None:
    (tmp_path / "in.csv").write_text("at,n\n10,1\n8,2\n12,3\n9,4\n10,5\n")
    ways: list[tuple[Any, list[int]]] = [("side", [2, 1, 5, 3]), ("admit", [2, 1, 4, 5, 3])]
    for late, found in ways:
        app = tm.App("disorder")
        events = app.stream("events", time="at", late=late, at=int, n=int)
        events.read(tm.files(tmp_path / "in.csv"), out_of_orderness=2)
        log = app.table("log", key="id", id=int, n=tm.column(tm.list(int), default=[]))

        @app.transaction(events, opaque=True)
        def take(tx: Any, e: Any, log: Any = log) -> None:
            log[0].n = [*log[0].n, e.n]

        for rows in (1, 100):
            with app.start(epoch_rows_max=rows) as mill:
                mill.finish()
                assert mill.table(log)[0]["n"] == found
                dropped = [] if late == "admit" else [4]
                assert [row["n"] for row in mill.output(events.late).rows()] == dropped
    app = tm.App("strict")
    events = app.stream("events", time="at", late="error", at=int, n=int)
    events.read(tm.files(tmp_path / "in.csv"), out_of_orderness=2)

    @app.transaction(events)
    def see(tx: Any, e: Any) -> None:
        tx.require(e.n > 0)

    late_row = r"row 3 of source events/.*in\.csv \(counted from 0\) is late"
    with pytest.raises(tm.InputError, match=late_row), app.start() as mill:
        mill.finish()


def test_a_batch_that_the_end_has_executed_stays(tmp_path: Path) -> None:
    given, data = tmp_path / "in.csv", tmp_path / "data"
    given.write_text("at,n\n1,1\n12,2\n")

    def run() -> tuple[list[list[Any]], list[int]]:
        app = tm.App("ended")
        events = app.stream("events", time="at", at=int, n=int).batches(time=10)
        events.read(tm.files(given))
        seen = app.table("seen", key="n", n=int, with_=int)

        @app.procedure(events)
        def add(tx: Any, events: Any) -> None:
            for e in events:
                seen.insert(n=e.n, with_=len(events))

        events.late.keep()
        with app.start(data_dir=data) as mill:
            mill.finish()
            rows = [list(row.values()) for row in mill.table(seen).rows()]
            return rows, [row["n"] for row in mill.output(events.late).rows()]

    assert run() == ([[1, 1], [2, 1]], [])
    with given.open("a") as file:
        file.write("13,3\n21,4\n")
    rows, late = run()
    assert rows == [[1, 1], [2, 1], [4, 1]]
    assert late == [3]


def test_files_of_a_followed_folder_are_read_in_the_order_of_their_names(tmp_path: Path) -> None:
    for name, n in (("b", 2), ("10", 0), ("a", 1), ("c", 3), ("2", 5)):
        (tmp_path / f"{name}.csv").write_text(f"n\n{n}\n{n}\n")
    copy = Copy(tm.files(tmp_path, "csv", follow=True))
    with copy.app.start() as mill:
        mill.drain()
        assert [n for [n] in kept(mill, copy.copy)] == [0, 0, 5, 5, 1, 1, 2, 2, 3, 3]
        mill.stop()


def test_each_file_is_a_source_of_its_own(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "a.csv").write_text("at,n\n10,1\n12,2\n11,9\n30,3\n")
    (folder / "b.csv").write_text("at,n\n1,4\n11,5\n12,6\n2,8\n13,7\n")
    for rows in (1, 3, 100):
        app = tm.App("sources")
        events = app.stream("events", time="at", at=int, n=int)
        events.read(tm.files(folder, "csv"))
        log = app.table("log", key="id", id=int, n=tm.column(tm.list(int), default=[]))

        @app.transaction(events, opaque=True)
        def take(tx: Any, e: Any, log: Any = log) -> None:
            log[0].n = [*log[0].n, e.n]

        with app.start(epoch_rows_max=rows) as mill:
            mill.finish()
            # By time, then by source, then by row; late by the rows of the same file alone.
            assert mill.table(log)[0]["n"] == [4, 1, 5, 2, 6, 7, 3]
            assert sorted(row["n"] for row in mill.output(events.late).rows()) == [8, 9]
