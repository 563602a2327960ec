"""The last rows of streams of an app on several processes: numbers, restarts, moves, limits."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from .kill.cluster import Process, settings, wait_for

#: An app whose file has bad and late rows, and whose events cause others.
METER = """
import tidemill as tm

app = tm.App("meter")
meters = app.table("meters", key="id", id=int, n=tm.column(int, default=0))
readings = app.stream("readings", time="at", at=int, id=int, n=int)
readings.read(tm.files("readings.csv", follow=FOLLOW))
alarms = app.stream("alarms", at=int, id=int, n=int)


@app.transaction(readings)
def take(tx, e):
    meters[e.id].n += e.n
    tx.emit(alarms, at=e.at, id=e.id, n=meters[e.id].n)
"""

#: More of the app: a stream that rows are sent into.
NOTES = """
others = app.table("others", key="id", id=int, n=tm.column(int, default=0))
notes = app.stream("notes", time="at", at=int, id=int, n=int).push(idle="100ms")


@app.transaction(notes)
def note(tx, e):
    others[e.id].n = e.n
"""

ONE: list[str] = []
TWO = ["--processes", "2", *settings()]
#: The rows of a step: most are events, each 10th is late, and each 25th is bad.
STEP = 100


def grow(folder: Path, step: int) -> None:
    """Adds rows to the file."""
    lines = [] if step else ["at,id,n"]
    for n in range(step * STEP, (step + 1) * STEP):
        if n % 25 == 7:
            lines.append(f"{n},bad,{n}")
        else:
            lines.append(f"{n - 5 if n % 10 == 3 else n},{n % 7},{n}")
    with (folder / "readings.csv").open("a") as file:
        file.write("\n".join(lines) + "\n")


def command(folder: Path, *args: str) -> tuple[int, list[Any], str]:
    """Runs a command; its exit code, the lines of JSON, and the errors."""
    line = [sys.executable, "-m", "tidemill.cli", *args, "--json"]
    done = subprocess.run(line, cwd=folder, capture_output=True, text=True, timeout=120)
    return done.returncode, [json.loads(text) for text in done.stdout.splitlines()], done.stderr


def retained(folder: Path, *flags: str) -> dict[str, Any]:
    """The retained rows of all streams, as the commands show them."""
    code, [*alarms, end], errors = command(
        folder, "tail", "alarms", "--no-follow", "--data-dir", "data", *flags
    )
    assert code == 0, errors
    code, [listed], errors = command(folder, "dlq", "ls", "--data-dir", "data")
    assert code == 0, errors
    assert end["next"] == (alarms[-1]["row"] + 1 if alarms else end["next"])
    return {"alarms": alarms, "dlq": listed["rows"], "streams": listed["streams"]}


def expected(tmp_path: Path, steps: int) -> dict[str, Any]:
    """The retained rows of one process that has read the same file in one go."""
    folder = tmp_path / f"expected-{steps}"
    folder.mkdir()
    (folder / "app.py").write_text(METER.replace("FOLLOW", "False"))
    for step in range(steps):
        grow(folder, step)
    code, _, errors = command(folder, "run", "app.py", "--data-dir", "data")
    assert code == 0, errors
    found = retained(folder, "--from", "0")
    assert len(found["alarms"]) > 80 * steps
    assert {row["stream"] for row in found["dlq"]} == {"readings.dead", "readings.late"}
    return found


def several(folder: Path, name: str, *flags: str) -> Process:
    line = ["run", "app.py", "--data-dir", "data", *TWO, *flags]
    return Process(folder / name, *line, within=["env", "-C", str(folder)])


@pytest.mark.skipif(sys.platform != "linux", reason="it kills processes")
def test_rows_keep_their_numbers_when_the_coordinator_is_killed(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(METER.replace("FOLLOW", "True"))
    grow(tmp_path, 0)
    follower = None
    for step in range(3):
        wanted = expected(tmp_path, step + 1)

        def is_there(wanted: dict[str, Any] = wanted) -> bool:
            try:
                found = retained(tmp_path, "--from", "0")
            except AssertionError:
                # Nothing is there yet.
                return False
            return bool(found == wanted)

        with several(tmp_path, f"run-{step}") as app:
            wait_for(f"the rows of step {step}", is_there)
            if step == 0:
                # A follower has the rows of before and those that come.
                line = [sys.executable, "-m", "tidemill.cli", "tail", "alarms", "--from", "0"]
                follower = subprocess.Popen(
                    [*line, "--data-dir", "data", "--json"],
                    cwd=tmp_path,
                    stdout=subprocess.PIPE,
                    text=True,
                )
                assert follower.stdout is not None
                lines = [json.loads(follower.stdout.readline()) for _ in wanted["alarms"]]
                assert lines == wanted["alarms"]
            if step == 1:
                assert app.stop() == 0
            else:
                app.send(signal.SIGKILL)
        if step == 1:
            assert is_there()
        elif step == 2:
            # The killed process has stored the first ones, up to a moment ago.
            found = retained(tmp_path, "--from", "0")
            assert found["alarms"] == wanted["alarms"][: len(found["alarms"])]
        if follower is not None:
            # It was cut off by the kill.
            assert follower.wait(60) == (0 if step else 1)
            follower = None
        grow(tmp_path, step + 1)


def test_rows_move_between_one_process_and_several(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(METER.replace("FOLLOW", "False"))
    for step, flags in enumerate([ONE, TWO, ONE, TWO, TWO, ONE]):
        grow(tmp_path, step)
        code, _, errors = command(tmp_path, "run", "app.py", "--data-dir", "data", *flags)
        assert code == 0, errors
        assert retained(tmp_path, "--from", "0") == expected(tmp_path, step + 1), step


def test_rows_stay_in_an_upgrade(tmp_path: Path) -> None:
    code_of = METER.replace("FOLLOW", "False")
    (tmp_path / "app.py").write_text(code_of)
    grow(tmp_path, 0)
    code, _, errors = command(tmp_path, "run", "app.py", "--data-dir", "data", *TWO)
    assert code == 0, errors
    grow(tmp_path, 1)
    more = 'notes = app.table("notes", key="id", id=int)\nalarms = app.stream'
    (tmp_path / "app.py").write_text(code_of.replace("alarms = app.stream", more))
    upgraded = ["run", "app.py", "--data-dir", "data", *TWO, "--upgrade"]
    code, _, errors = command(tmp_path, *upgraded)
    assert code == 0, errors
    wanted = expected(tmp_path, 2)
    assert retained(tmp_path, "--from", "0") == wanted
    # Rows with other columns go, and their numbers are not used again.
    changed = code_of.replace('"alarms", at=int, id=int', '"alarms", at=int, meter=int')
    changed = changed.replace("at=e.at, id=e.id", "at=e.at, meter=e.id")
    (tmp_path / "app.py").write_text(changed)
    grow(tmp_path, 2)
    code, _, errors = command(tmp_path, *upgraded, "--lossy")
    assert code == 0, errors
    found = retained(tmp_path)
    first = wanted["alarms"][-1]["row"] + 1
    assert [row["row"] for row in found["alarms"]] == [*range(first, first + 86)]
    assert {*found["alarms"][0]["value"]} == {"at", "meter", "n"}
    assert found["dlq"] == expected(tmp_path, 3)["dlq"]


def test_limits_are_those_of_one_process(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(METER.replace("FOLLOW", "False"))
    for step in range(2):
        grow(tmp_path, step)
        limits = ["dlq_rows_max=3", "tail_rows=5"]
        flags = [part for limit in limits for part in ("--set", limit)]
        code, _, errors = command(tmp_path, "run", "app.py", "--data-dir", "data", *TWO, *flags)
        assert code == 0, errors
        wanted = expected(tmp_path, step + 1)
        found = retained(tmp_path)
        assert found["alarms"] == wanted["alarms"][-5:]
        for stream, known in wanted["streams"].items():
            rows = [row for row in wanted["dlq"] if row["stream"] == stream]
            assert [row for row in found["dlq"] if row["stream"] == stream] == rows[-3:]
            dropped = max(0, len(rows) - 3)
            assert found["streams"][stream] == known | {"dropped": dropped}
        code, _, errors = command(tmp_path, "tail", "alarms", "--from", "0", "--data-dir", "data")
        assert code == 1
        assert "row 0 of alarms is no longer retained" in errors


def test_late_rows_are_sent_again(tmp_path: Path) -> None:
    code = METER.replace("FOLLOW", "True") + NOTES
    (tmp_path / "app.py").write_text(code)
    grow(tmp_path, 0)
    names: dict[str, Any] = {}
    exec(compile(code, "app.py", "exec"), names)
    app = names["app"]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path)
        with app.start(data_dir="data") as mill:
            sent = [{"at": at, "id": 90, "n": at} for at in (1_000, 2_000, 1_500)]
            mill.send(names["notes"], sent)
            mill.drain()

    def replay(stream: str, *args: str) -> tuple[int, list[Any], str]:
        return command(tmp_path, "dlq", "replay", stream, *args, "--data-dir", "data")

    with several(tmp_path, "run") as process:
        dlq = ["dlq", "ls", "notes.late", "--data-dir", "data"]
        wait_for("the late row", lambda: command(tmp_path, *dlq)[1][0].get("rows"))
        [late] = command(tmp_path, *dlq)[1][0]["rows"]
        assert (late["row"], late["value"]) == (0, sent[2])
        # All rows or none: the second one is not there.
        status, _, errors = replay("notes.late", "--row", "0", "--row", "7")
        assert status == 1
        assert "row 7: it is not retained" in errors
        status, _, errors = replay("readings.dead", "--row", "0")
        assert status == 1
        assert "readings is not a pushed stream" in errors
        value = json.dumps({"at": 3_000, "id": 91, "n": 7})
        status, [said], errors = replay("notes.late", "--row", "0", "--value", value)
        assert (status, said["sent"]) == (0, 1), errors
        other = ["query", "others", "--data-dir", "data"]
        wait_for("its event", lambda: len(command(tmp_path, *other)[1][0].get("rows", [])) == 2)
        rows = command(tmp_path, *other)[1][0]["rows"]
        assert {row["id"]: row["n"] for row in rows} == {90: 2_000, 91: 7}
        assert process.stop() == 0
    status, _, errors = replay("notes.late", "--row", "0")
    assert status == 1
    assert "no engine runs on data, and 'dlq_replay' needs one" in errors


def test_damaged_rows_are_named_and_refused(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(METER.replace("FOLLOW", "False"))
    grow(tmp_path, 0)
    code, _, errors = command(tmp_path, "run", "app.py", "--data-dir", "data", *TWO)
    assert code == 0, errors
    [path] = (tmp_path / "data" / "cluster" / "snapshots" / "meter").glob("retained.*")
    whole = path.read_bytes()
    path.write_bytes(whole[:-20] + b"!" + whole[-19:])
    for args in (["run", "app.py", *TWO], ["run", "app.py"], ["tail", "alarms"], ["dlq", "ls"]):
        code, _, errors = command(tmp_path, *args, "--data-dir", "data")
        assert code == 1, args
        assert path.name in errors, args
    path.write_bytes(whole)
    code, _, errors = command(tmp_path, "run", "app.py", "--data-dir", "data", *TWO)
    assert code == 0, errors
