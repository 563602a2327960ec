"""Command lines and settings of the corpus: what is refused is refused in words, by name."""

from __future__ import annotations

import shlex
import tomllib
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import tidemill as tm
from tidemill import config
from tidemill.cli import main

CORPUS = Path(__file__).parents[2] / "corpus" / "arguments.toml"
FOUND = tomllib.loads(CORPUS.read_text())
SETTINGS: dict[str, dict[str, Any]] = FOUND["settings"]

APP = """
import tidemill as tm

app = tm.App("bank")
accounts = app.table("accounts", key="id", id=int, balance=int)
rows = app.stream("rows", id=int)
# A start that wrongly accepts a setting ends by itself, because its input is a file.
rows.read(tm.files("rows.csv"))


@app.transaction(rows)
def take(tx, e):
    accounts[e.id].balance = 1


@app.procedure
def pay(tx, id: int, amount: int = 1):
    row = accounts[id]
    row.balance = (row.balance if row.exists() else 0) + amount
    return row.balance
"""

#: What is there, or may be: a lock is made by who looks.
HERE = ("LOCK", "__pycache__", "app.py", "rows.csv", "empty")

#: Ways to run an app, and its word in messages.
MODES = {
    "memory": config.MEMORY,
    "directory": config.DIRECTORY,
    "processes": config.PROCESSES,
    "coordinator": config.COORDINATOR,
    "worker": config.WORKER,
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An app in the present folder, and nothing else."""
    (tmp_path / "app.py").write_text(APP)
    (tmp_path / "rows.csv").write_text("id\n1\n")
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("case", FOUND["command"], ids=lambda case: case["line"] or "nothing")
def test_command_lines(
    case: dict[str, Any], folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = shlex.split(case["line"].replace("{dir}", "empty"))
    try:
        code = main(words)
    except SystemExit as ended:
        code = int(ended.code or 0)
    said = capsys.readouterr().err
    assert code == case["code"], said
    assert all(word in said for word in case["says"]), said
    assert "bug in Tidemill" not in said
    assert "Traceback" not in said
    # A refused start leaves no files, except for the lock and compiled modules.
    left = {path.name for path in folder.rglob("*")} - {*HERE}
    assert not {name for name in left if not name.endswith(".pyc")}, left


def test_all_settings_are_in_the_corpus() -> None:
    assert set(SETTINGS) == set(config.ALL)


def beside(name: str, mode: str) -> dict[str, Any]:
    """Returns the further settings that a setting depends on."""
    needs = SETTINGS[name].get("needs")
    found: dict[str, Any] = {} if needs is None else {needs: SETTINGS[needs]["value"]}
    if mode == "memory":
        found["durable"] = "none"
    return found


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", SETTINGS)
def test_settings_mean_something_or_are_refused(name: str, mode: str, tmp_path: Path) -> None:
    value = SETTINGS[name]["value"]
    origin = "command line"

    def load(given: Mapping[str, Any]) -> dict[str, Any]:
        return config.load(None, tmp_path, given, {}, lambda _: MODES[mode])

    if mode not in SETTINGS[name]["in"].split():
        with pytest.raises(tm.SettingError) as caught:
            load({name: value})
        assert f"{origin}: {name} means nothing for {MODES[mode]}" in str(caught.value)
        assert caught.value.help
        return
    found = load({**beside(name, mode), name: value})
    assert found[name] == value
    # Where there is a directory, its socket has followers.
    has_followers = mode != "memory" and name.startswith(("tail", "dlq"))
    if "needs" not in SETTINGS[name] or has_followers:
        load({name: value})
        return
    with pytest.raises(tm.SettingError, match=f"{name} means nothing without"):
        load({name: value})


@pytest.mark.parametrize("mode", ["coordinator", "worker"])
def test_processes_of_a_cluster_may_have_the_same_file(mode: str, tmp_path: Path) -> None:
    of_cluster = {
        name: setting["value"]
        for name, setting in SETTINGS.items()
        # A start that empties the data upgrades nothing.
        if {"coordinator", "worker"} & {*setting["in"].split()} and name != "fresh"
    }
    file = tmp_path / "tidemill.toml"
    file.write_text("".join(f"{name} = {toml(value)}\n" for name, value in of_cluster.items()))
    found = config.load(file, tmp_path, {}, {}, lambda _: MODES[mode])
    assert found == of_cluster
    file.write_text("epoch_us_max = 2\n")
    with pytest.raises(tm.SettingError, match="epoch_us_max means nothing for a"):
        config.load(file, tmp_path, {}, {}, lambda _: MODES[mode])


def toml(value: Any) -> str:
    """A value as TOML has it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict):
        return "{" + ", ".join(f'"{k}" = {toml(v)}' for k, v in value.items()) + "}"
    if isinstance(value, str):
        escapes = (f"\\u{ord(c):04x}" if not c.isprintable() else c for c in value)
        return '"' + "".join(escapes) + '"'
    return str(value)


def kind_of(name: str) -> str:
    """The kind of a setting, as the corpus calls it."""
    kind = config.ALL[name].kind
    if isinstance(kind, tuple):
        return "one of"
    kinds = {int: "integer", bool: "bool", Path: "path", str: "text", dict: "names"}
    return kinds.get(kind, "bool")  # type: ignore[call-overload, no-any-return]


WRONG = [
    (name, value, wrong["says"])
    for wrong in FOUND["wrong"]
    for name in config.ALL
    if kind_of(name) == wrong["kind"]
    for value in wrong["values"]
]


def test_absurd_values_are_refused_by_name_whichever_way_they_come(tmp_path: Path) -> None:
    file = tmp_path / "tidemill.toml"
    app = tm.App("bank")
    for name, value, says in WRONG:
        if name == "upgrade" and value == "":
            continue
        nowhere = tmp_path / "no"
        ways: dict[str, Callable[[], object]] = {
            "file": partial(config.load, file, tmp_path, {}, {}),
            "flag": partial(config.load, None, nowhere, {name: value}, {}),
            "start": partial(app.start, **{name: value}),
        }
        if isinstance(value, str):
            environ = {f"TIDEMILL_{name.upper()}": value}
            ways["environment"] = partial(config.load, None, nowhere, {}, environ)
        file.write_text(f"{name} = {toml(value)}\n")
        for way, load in ways.items():
            try:
                found = load()
            except tm.SettingError as error:
                said = str(error)
            else:
                pytest.fail(f"{name}={value!r} was taken from {way}: {found}")
            assert name in said, (way, name, value, said)
            assert says.lower() in said.lower(), (way, name, value, said)
            assert "bug" not in said
            assert len(said) < 1000


def test_both_ends_of_each_range_work(tmp_path: Path) -> None:
    ends = [{}, {}]
    for name, setting in config.SETTINGS.items():
        if setting.kind is int and name not in ("workers", "http_port"):
            ends[0][name], ends[1][name] = setting.range
    for end in ends:
        app = tm.App("bank")
        table = app.table("t", key="id", id=int)
        rows = app.stream("rows", id=int)

        @app.transaction(rows, opaque=True)
        def put(tx, e, table=table):
            table.upsert(id=e.id)

        settings = {**end, "http_port": 0, "workers": 1, "log_segment_bytes": 1 << 16}
        if end is ends[0]:
            settings |= {"memory_bytes_max": 1 << 20, "buffered_bytes_max": 1 << 20}
        with app.start(data_dir=tmp_path / str(len(end)) / str(end["tail_rows"]), **settings) as m:
            m.send(rows, [{"id": 1}], wait=True)
            assert len(m.table("t").rows()) == 1


def test_settings_of_one_process_do_nothing_silently_nowhere(folder: Path) -> None:
    app = tm.App("bank")
    for name in ("cluster_sources", "recovery", "snapshot_us", "http_calls_max", "upgrade"):
        with pytest.raises(tm.SettingError, match=f"{name} means nothing"):
            app.start(**{name: SETTINGS[name]["value"]})
