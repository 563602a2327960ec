"""Durable data outlives the process, and rows arrive in every way."""

from __future__ import annotations

import datetime as dt
import threading
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from pathlib import Path
from typing import Any

import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import tidemill as tm


class Counter:
    """An app with a pushed stream."""

    def __init__(self, time: str | None = None) -> None:
        self.app = tm.App("counter")
        self.counts = self.app.table("counts", key="k", k=int, n=tm.column(int, default=0))
        self.rows = self.app.stream("rows", time=time, k=int, at=tm.column(int, default=0))
        counts = self.counts

        @self.app.transaction(self.rows)
        def count(tx, e):
            counts[e.k].n += 1
            return dict(k=e.k, n=counts[e.k].n)

        self.count = count


@pytest.fixture
def counter() -> Counter:
    return Counter()


@pytest.mark.parametrize("durable", ["log", "log+snapshots"])
def test_a_start_goes_on_where_the_last_one_ended(tmp_path: Path, durable: str) -> None:
    for start in range(3):
        counter = Counter()
        counter.count.write(tm.files(tmp_path / "out.csv"))
        with counter.app.start(data_dir=tmp_path / "data", durable=durable) as mill:
            assert mill.sent(counter.rows) == 3 * start
            status = mill.status()
            assert status["known_rows"] == 3 * start
            assert (status["known_epoch"] > 0) == (start > 0)
            mill.send(counter.rows, [{"k": 1}, {"k": 2}, {"k": 1}])
        assert mill.summary()["events"] == 3 * (start + 1)
        assert mill.table("counts")[1]["n"] == 2 * (start + 1)
    assert (tmp_path / "out.csv").read_text().splitlines()[-1] == "1,6"
    with counter.app.start(data_dir=tmp_path / "data", fresh=True) as mill:
        assert mill.sent("rows") == 0
        assert len(mill.table("counts")) == 0
    with pytest.raises(tm.ProgramError, match="there is no stream 'row'"):
        mill.sent("row")


def test_rows_that_wait_for_their_time_wait_over_restarts(tmp_path: Path) -> None:
    counter = Counter(time="at")
    counter.rows.push(out_of_orderness=2)
    with counter.app.start(data_dir=tmp_path) as mill:
        mill.send(counter.rows, [{"k": 1, "at": 1}, {"k": 1, "at": 5}], wait=True)
        assert mill.status()["buffered"] > 0
    with counter.app.start(data_dir=tmp_path) as mill:
        assert mill.sent(counter.rows) == 2
        mill.send(counter.rows, [{"k": 1, "at": 6}], wait=True)
        assert mill.table("counts")[1]["n"] == 1
        mill.finish()
    assert mill.table("counts")[1]["n"] == 3


def test_what_was_finished_stays_finished(counter: Counter, tmp_path: Path) -> None:
    mill = counter.app.start(data_dir=tmp_path)
    mill.send(counter.rows, [{"k": 1}])
    epochs = mill.finish()["epochs"]
    with counter.app.start(data_dir=tmp_path) as mill:
        with pytest.raises(tm.ProgramError, match="was ended for good by an earlier run") as caught:
            mill.send(counter.rows, [{"k": 1}])
        assert "stop() instead of finish()" in caught.value.help
    assert mill.summary()["epochs"] == epochs


def test_settings_that_contradict_each_other(counter: Counter, tmp_path: Path) -> None:
    with pytest.raises(tm.SettingError, match="without a data directory"):
        counter.app.start(durable="log")
    with pytest.raises(tm.SettingError, match="is not a path"):
        counter.app.start(data_dir=3)
    with pytest.raises(tm.SettingError, match="is none of none, log"):
        counter.app.start(data_dir=tmp_path, durable="always")
    with counter.app.start(data_dir=tmp_path, durable="none") as mill:
        mill.send(counter.rows, [{"k": 1}], wait=True)
    assert list(tmp_path.iterdir()) == []


def test_one_start_at_a_time(counter: Counter, tmp_path: Path) -> None:
    with (
        counter.app.start(data_dir=tmp_path),
        pytest.raises(
            tm.ResourceError, match=r"this process has the data directory .* open already, since "
        ),
    ):
        counter.app.start(data_dir=tmp_path)
    other = tm.App("other")
    with pytest.raises(tm.SettingError, match="belongs to app 'counter', not to 'other'"):
        other.start(data_dir=tmp_path)


@pytest.mark.parametrize("durable", [False, True])
def test_many_threads_send(counter: Counter, tmp_path: Path, durable: bool) -> None:
    where: dict[str, Any] = {"data_dir": tmp_path} if durable else {}
    begin = threading.Barrier(6)

    def send(k: int) -> None:
        begin.wait()
        for number in range(20):
            mill.send(counter.rows, [{"k": k}] * 3, wait=number % 2 == 0)
            if number % 2 == 0:
                # Acknowledged rows are visible.
                assert mill.table("counts")[k]["n"] >= 3 * (number + 1)

    with counter.app.start(**where) as mill, ThreadPoolExecutor(6) as pool:
        for sent in [pool.submit(send, k) for k in range(6)]:
            sent.result()
    assert {row["k"]: row["n"] for row in mill.table("counts")} == dict.fromkeys(range(6), 60)
    assert mill.sent(counter.rows) == 360
    # Each sender's rows keep their order.
    seen = [(row["k"], row["n"]) for row in mill.output(counter.count)]
    assert sorted(seen) == [(k, n) for k in range(6) for n in range(1, 61)]


def test_waiting_for_nothing_returns(counter: Counter) -> None:
    with counter.app.start() as mill:
        mill.send(counter.rows, [], wait=True)
        mill.send(counter.rows, pa.table({"k": pa.array([], pa.int64())}), wait=True)
        assert mill.sent(counter.rows) == 0


def test_a_parquet_file_is_completed_by_the_next_run(counter: Counter, tmp_path: Path) -> None:
    out = tmp_path / "out.parquet"
    given = tmp_path / "in.csv"
    given.write_text("k\n1\n2\n1\n")
    app = tm.App("copy")
    rows = app.stream("rows", k=int)

    @app.transaction(rows)
    def copy(tx, e):
        return dict(k=e.k)

    rows.read(tm.files(given))
    copy.write(tm.files(out))
    for _ in range(2):
        with app.start(data_dir=tmp_path / "data", durable="log") as mill:
            mill.finish()
        assert pq.read_table(out).column("k").to_pylist() == [1, 2, 1]
        # As if the first had been killed behind its last cut.
        out.unlink()


def test_what_a_file_gets_after_the_end_is_taken(tmp_path: Path) -> None:
    given = tmp_path / "in.csv"
    given.write_text("k\n1\n")
    counter = Counter()
    counter.rows.read(tm.files(given))
    for durable, expected in (("log", 1), ("log", 2), ("log+snapshots", 3), ("log+snapshots", 4)):
        mill = counter.app.start(data_dir=tmp_path / "data", durable=durable)
        mill.finish()
        assert mill.table("counts")[1]["n"] == expected
        with given.open("a") as file:
            file.write("1\n")


FRAME = {
    "id": [1, 2, 3],
    "name": ["a", None, "c"],
    "x": [0.5, 1.5, 2.5],
    "ok": [True, False, True],
    "at": [dt.datetime(2024, 1, day, tzinfo=dt.UTC) for day in (1, 2, 3)],
}


def frame_app() -> tuple[tm.App, tm.Stream, tm.Handler]:
    app = tm.App("frames")
    rows = app.stream("rows", id=int, name=str | None, x=float, ok=bool, at=tm.timestamp)
    table = app.table(
        "rows", key="id", id=int, name=str | None, x=float, ok=bool, at=tm.timestamp,
        money=tm.decimal(2, default=Decimal("1.5")),
    )  # fmt: skip

    @app.transaction(rows)
    def keep(tx, e):
        table.upsert(id=e.id, name=e.name, x=e.x, ok=e.ok, at=e.at)
        return dict(id=e.id, at=e.at)

    return app, rows, keep


def test_frames_of_pandas() -> None:
    app, rows, keep = frame_app()
    with app.start() as mill:
        mill.send(rows, pd.DataFrame(FRAME), wait=True)
        found = mill.table("rows").to_pandas()
        assert found["id"].tolist() == [1, 2, 3]
        assert found["at"].tolist() == FRAME["at"]
        assert found["money"].tolist() == [Decimal("1.50")] * 3
        assert mill.output(keep).to_pandas()["id"].tolist() == [1, 2, 3]
        with pytest.raises(tm.InputError, match=r"row 0: 1\.0 can't be stored"):
            mill.send(rows, pd.DataFrame({**FRAME, "id": [1, 2.5, 3]}))


def test_frames_of_polars() -> None:
    app, rows, keep = frame_app()
    with app.start() as mill:
        mill.send(rows, pl.DataFrame(FRAME), wait=True)
        found = mill.table("rows").to_polars()
        assert found.drop("money").to_dicts() == pl.DataFrame(FRAME).to_dicts()
        assert mill.output(keep).to_polars().height == 3
        assert [row["name"] for row in mill.table("rows")] == FRAME["name"]
