"""The outputs of an app on several processes: their largest sizes, and their numbers."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from pathlib import Path

import httpx
import pytest

import tidemill as tm

from .kill.cluster import Process, settings

APP = """
import tidemill as tm

app = tm.App("sizes")
letter = app.entity("letter", key="id", id=int, sent=tm.column(int, default=0))
sent = app.stream("sent", id=int, text=str)


@letter.function(creates=True)
async def send(self, ctx, length: int, times: int) -> int:
    self.sent += 1
    for _ in range(times):
        ctx.emit(sent, id=self.id, text="x" * length)
    return self.sent


@letter.function(creates=True)
async def reply(self, ctx, text: str, times: int) -> str:
    self.sent += 1
    return text * times


@letter.function(creates=True)
async def refuse(self, ctx, length: int) -> None:
    self.sent += 1
    raise tm.Abort("no" * length)
"""


def start(folder: Path, name: str, *more: str, flags: Sequence[str] = ()) -> Process:
    """The app on one worker."""
    (app := folder / "sizes.py").write_text(APP)
    flags = ["--data-dir", str(folder / "data"), *settings(*more), *flags]
    return Process(folder / name, "run", str(app), "--http", "0", "--processes", "1", *flags)


def url_of(process: Process) -> str:
    return process.find(r"http +(http://\S+)")


def rows_of(client: tm.Client, count: int, after: int = -1) -> list[int]:
    """The numbers of so many events."""
    rows: list[int] = []
    for event in client.subscribe("sent", after=after):
        rows.append(event.row)
        if len(rows) == count:
            break
    return rows


def test_what_is_too_large_aborts_its_transaction(tmp_path: Path) -> None:
    max_bytes = "cluster_message_bytes_max=10000"
    with (
        start(tmp_path, "first", max_bytes) as parent,
        tm.Client(url_of(parent), retries=100) as client,
    ):

        def call(function: str, **arguments: object) -> object:
            return client.call(f"letter.{function}", id=1, **arguments)

        assert call("send", length=1000, times=3) == 1
        for function, arguments in (
            ("send", dict(length=6000, times=1)),
            ("reply", dict(text="x" * 600, times=10)),
        ):
            with pytest.raises(tm.Abort, match="bytes in the log, and may take 10000"):
                call(function, **arguments)
        # Only the beginning of the reason is reported.
        with pytest.raises(tm.Abort, match=r"(no){2048} \.\.\.") as refused:
            call("refuse", length=100_000)
        assert len(str(refused.value)) < 5000
        with pytest.raises(tm.InputError, match=r"the call takes .* may take 10000"):
            call("reply", text="x" * 20_000, times=1)
        # None of them has left anything.
        assert call("send", length=0, times=0) == 2
        assert call("reply", text="x", times=4000) == "x" * 4000


def test_another_size_is_as_another_version(tmp_path: Path) -> None:
    """With another size, recorded epochs would have other results."""
    with start(tmp_path, "first", "cluster_message_bytes_max=10000") as parent:
        with tm.Client(url_of(parent), retries=100) as client:
            with pytest.raises(tm.Abort, match="may take 10000"):
                client.call("letter.reply", id=1, text="x" * 600, times=10)
            assert client.call("letter.send", id=1, length=1, times=1) == 1
        assert parent.stop() == 0
    with start(tmp_path, "second") as parent:
        assert parent.process.wait(60) == 1
        assert "with another cluster_message_bytes_max" in parent.errors.read_text()
    with (
        start(tmp_path, "third", flags=("--upgrade",)) as parent,
        tm.Client(url_of(parent), retries=100) as client,
    ):
        assert client.call("letter.reply", id=1, text="x" * 600, times=10) == "x" * 6000
        assert client.row("letter", 1) == {"id": 1, "sent": 2}


def test_a_coordinator_that_starts_again_goes_on_with_the_rows_of_streams(tmp_path: Path) -> None:
    count = 400
    for start_number, name in enumerate(("first", "second", "third")):
        with start(tmp_path, name) as parent, tm.Client(url_of(parent), retries=100) as client:
            client.call("letter.send", id=1, length=1, times=count)
            # A client that has read up to the kill goes on, and a new one reads all rows.
            after = start_number * count - 1
            assert rows_of(client, count, after=after) == list(range(after + 1, after + 1 + count))
            assert rows_of(client, after + 1 + count, after=-1) == list(range(after + 1 + count))
            parent.send(signal.SIGKILL)


#: One worker owns the rows, because versions are retained.
OWNED = """
import tidemill as tm

app = tm.App("owned")
text = tm.column(str, default="")
notes = app.table("notes", key="id", ordered=True, id=int, text=text, history=2)


@app.procedure()
def put(tx, id: int, length: int):
    notes[id].text = "x" * length


@app.procedure()
def refuse(tx, length: int):
    raise tm.Abort("y" * length)


@app.procedure()
def fail(tx, length: int):
    raise ValueError("z" * length)
"""


def test_no_reply_of_one_owner_is_too_large_for_the_log(tmp_path: Path) -> None:
    (app := tmp_path / "owned.py").write_text(OWNED)
    more = settings("cluster_message_bytes_max=100000")
    flags = ["--http", "0", "--processes", "2", "--data-dir", str(tmp_path / "data"), *more]
    with (
        Process(tmp_path / "parent", "run", str(app), *flags) as parent,
        tm.Client(url_of(parent), retries=100) as client,
    ):
        for id in range(5):
            client.call("put", id=id, length=11_000)
        assert len(client.row("notes", 1)["text"]) == 11_000
        rows = f"{url_of(parent)}/tables/notes/rows"
        assert httpx.get(rows, params={"limit": 1}).json()["rows"][0]["id"] == 0
        found = httpx.get(rows, params={"limit": 5})
        assert found.status_code >= 400
        assert "bytes in the log, and may take 100000" in found.text
        with pytest.raises(tm.Abort, match=r"y{4096} \.\.\.") as refused:
            client.call("refuse", length=50_000)
        assert len(str(refused.value)) < 5_000
        with pytest.raises(tm.Fault, match=r"z{4000,} \.\.\."):
            client.call("fail", length=50_000)
