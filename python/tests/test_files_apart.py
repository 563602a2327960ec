"""Nothing is written that is read, or that the engine keeps; and what it keeps is its owner's."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

import tidemill as tm

APP = """
import tidemill as tm

app = tm.App("apart")
t = app.table("t", key="id", id=int, n=tm.column(int, default=0))
s = app.stream("s", id=int)
s.read(tm.files({source!r}))


@app.transaction(s)
def count(tx, e):
    t[e.id].n += 1
    return dict(id=e.id, n=t[e.id].n)


count.write(tm.files({sink!r}))
count.aborted.write(tm.files({other!r}))
"""


def run(
    folder: Path, *flags: str, source: str = "in.csv", sink: str = "out/a.csv", other: str = "b.csv"
) -> subprocess.CompletedProcess[str]:
    (folder / "app.py").write_text(APP.format(source=source, sink=sink, other=other))
    command = [sys.executable, "-m", "tidemill.cli", "run", "app.py", *flags]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120)


def refused(done: subprocess.CompletedProcess[str], said: str) -> None:
    assert done.returncode != 0
    assert said in done.stderr


def tree(folder: Path) -> dict[str, str]:
    """All links and where they lead, all files and the hash of what is in them."""
    found: dict[str, str] = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if name == "app.py":
            continue
        if path.is_symlink():
            found[name] = os.readlink(path)
        elif path.is_file():
            found[name] = hashlib.sha256(path.read_bytes()).hexdigest()
    return found


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "in").mkdir()
    for name in ("in.csv", "in/1.csv"):
        (tmp_path / name).write_text("id\n1\n1\n2\n")
    (tmp_path / "link.csv").symlink_to("in.csv")
    os.link(tmp_path / "in.csv", tmp_path / "hard.csv")
    (tmp_path / "elsewhere").symlink_to("in")
    return tmp_path


@pytest.mark.parametrize("flags", [[], ["--fresh"], ["--fresh", "--processes", "1"]])
@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({"sink": "link.csv"}, "both read and written"),
        ({"sink": "hard.csv"}, "both read and written"),
        ({"sink": "in/out.csv", "source": "in"}, "would read what is written"),
        ({"sink": "elsewhere/out.csv", "source": "in/*.csv"}, "would read what is written"),
        ({"sink": "new.csv", "other": "in/../new.csv"}, "are one file"),
        ({"sink": "apart.tidemill/cluster/out.csv"}, "where the engine keeps its data"),
    ],
    ids=["link", "hard link", "folder", "pattern", "twice", "data"],
)
def test_what_is_not_apart_is_refused_and_stays(
    folder: Path, files: dict[str, str], said: str, flags: list[str]
) -> None:
    before = tree(folder)
    done = run(folder, *flags, **files)
    refused(done, said)
    assert "app.py:" in done.stderr
    assert tree(folder) == before


def test_of_a_folder_of_somebody_else_the_folder_is_named_and_of_ones_own_the_file(
    folder: Path,
) -> None:
    before = tree(folder)
    done = run(folder, "--data-dir", ".", sink="a.csv")
    refused(done, "is not a data directory")
    assert "give an empty or new folder" in done.stderr
    assert tree(folder) == before
    assert run(folder).returncode == 0
    before = tree(folder)
    done = run(folder, sink="apart.tidemill/a.csv")
    refused(done, "apart.tidemill/a.csv (stream count) is in apart.tidemill, where the engine")
    assert tree(folder) == before


def test_a_start_anew_deletes_what_is_the_engines_and_no_more(folder: Path) -> None:
    assert run(folder).returncode == 0
    data, other = folder / "apart.tidemill", folder / "other"
    other.mkdir()
    (other / "kept").write_text("kept")
    # Files that other versions and kills have left, and links to files of others.
    (data / "trial").write_bytes(b"")
    (data / "deaths").write_text("{}")
    (data / "deaths.new").write_text("{}")
    (data / ".sock-1-0").mkdir()
    for name in ("input", "store"):
        (data / name).rename(folder / f"real_{name}")
        (data / name).symlink_to(other)
    before = (folder / "out/a.csv").read_text()
    done = run(folder, "--fresh")
    assert done.returncode == 0, done.stderr
    assert "deleted in apart.tidemill: " in done.stderr
    assert "store" in done.stderr
    assert (folder / "out/a.csv").read_text() == before
    assert (other / "kept").read_text() == "kept"
    assert sorted(path.name for path in other.iterdir()) == ["kept"]
    assert (data / "store").is_dir()
    assert not (data / "store").is_symlink()
    assert not (data / "FRESH").exists()
    assert not (data / ".sock-1-0").exists()

    (data / "notes.txt").write_text("mine")
    left = tree(folder)
    done = run(folder, "--fresh")
    refused(done, "notes.txt")
    assert tree(folder) == left


@pytest.mark.parametrize("left", [["APP"], ["APP", "cuts"], ["trial", "deaths"], []])
def test_a_start_anew_that_was_killed_is_done_by_the_next_start(
    folder: Path, left: list[str]
) -> None:
    assert run(folder).returncode == 0
    data = folder / "apart.tidemill"
    before = (folder / "out/a.csv").read_text()
    # As it is after a kill: it was said, and some of it has gone.
    (data / "trial").write_bytes(b"")
    (data / "deaths").write_text("{}")
    (data / "FRESH").write_text("")
    for path in sorted(data.rglob("*"), reverse=True):
        if path.relative_to(data).parts[0] not in [*left, "FRESH", "LOCK"]:
            path.rmdir() if path.is_dir() else path.unlink()
    (folder / "out/a.csv").write_text("what another run has written")
    done = run(folder)
    assert done.returncode == 0, done.stderr
    assert "started from scratch" in done.stdout
    assert (folder / "out/a.csv").read_text() == before
    assert not (data / "FRESH").exists()


def test_what_an_earlier_version_left_is_no_foreign_file(folder: Path) -> None:
    data = folder / "apart.tidemill"
    data.mkdir()
    (data / "trial").write_bytes(b"\x01\x00")
    (data / "deaths").write_text('{"0:7": 2}')
    assert run(folder).returncode == 0
    assert not (data / "deaths").exists()
    (data / "APP").rename(data / "APP.old")
    (folder / "out/a.csv").unlink()
    assert run(folder).returncode == 0


def test_a_folder_of_somebody_else_is_left_alone(folder: Path) -> None:
    data = folder / "apart.tidemill"
    for flags in ([], ["--fresh"], ["--fresh", "--processes", "1"]):
        inner = data / "cluster" if "--processes" in flags else data
        for name in ("store", "log", "input"):
            (inner / name).mkdir(parents=True, exist_ok=True)
            (inner / name / "mine").write_text("mine")
        os.chmod(inner, 0o755)
        done = run(folder, *flags)
        refused(done, str(inner.relative_to(folder)))
        assert (inner / "store" / "mine").read_text() == "mine"
        assert (inner / "log" / "mine").read_text() == "mine"
        assert inner.stat().st_mode & 0o777 == 0o755


@pytest.mark.parametrize("flags", [[], ["--processes", "1"]])
def test_data_is_for_its_owner(folder: Path, flags: list[str]) -> None:
    old = os.umask(0)
    try:
        assert run(folder, *flags).returncode == 0
        data = folder / "apart.tidemill" / ("cluster" if flags else "")
        assert (folder / "out/a.csv").stat().st_mode & 0o777 == 0o666
        check_private(data)
        for path in [data, *data.rglob("*")]:
            os.chmod(path, 0o755)
        assert run(folder, *flags).returncode == 0
        check_private(data)
    finally:
        os.umask(old)


def check_private(data: Path) -> None:
    paths = [data, *data.rglob("*")]
    assert len(paths) > 4
    for path in paths:
        assert path.stat().st_mode & 0o077 == 0, path


def test_nothing_is_written_through_a_link(folder: Path) -> None:
    assert run(folder).returncode == 0
    (folder / "mine").write_text("mine")
    (folder / "apart.tidemill" / "trial").symlink_to(folder / "mine")
    (folder / "in.csv").write_text("id\n1\n1\n2\n3\n")
    done = run(folder)
    refused(done, "is a link")
    assert (folder / "mine").read_text() == "mine"


def test_a_pipe_that_is_called_app_stops_nobody(folder: Path) -> None:
    data = folder / "apart.tidemill"
    data.mkdir()
    os.mkfifo(data / "APP")
    done = run(folder)
    refused(done, "is a pipe")
    os.mkfifo(folder / "pipe.csv")
    done = run(folder, "--durable", "none", source="pipe.csv")
    refused(done, "is a pipe")


def test_a_backup_is_made_elsewhere(folder: Path) -> None:
    assert run(folder).returncode == 0
    (folder / "way").symlink_to("apart.tidemill")
    for target in ("apart.tidemill/copy", "way/store/copy", "apart.tidemill"):
        command = [sys.executable, "-m", "tidemill.cli", "backup", target]
        command += ["--data-dir", "apart.tidemill"]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60)
        refused(done, "the directory to copy")


def test_a_long_value_is_refused_wherever_it_comes_from() -> None:
    app = tm.App("long")
    s = app.stream("s", a=int, b=str)

    @app.transaction(s)
    def copy(tx, e):
        return {"a": e.a}

    with app.start() as mill:
        for rows in (
            [{"a": 1, "b": "x"}, {"a": 2, "b": "y" * (17 << 20)}],
            {"a": [1, 2], "b": ["x", "y" * (17 << 20)]},
        ):
            with pytest.raises(tm.InputError, match="row 1: column 'b': a value of 17825792 bytes"):
                mill.send(s, rows)
        mill.send(s, [{"a": 3, "b": "y" * (16 << 20)}])
        mill.drain()
        assert mill.output(copy).rows() == [{"a": 3}]
