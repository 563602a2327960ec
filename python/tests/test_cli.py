"""The command line, as its users run it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

APP = """
import tidemill as tm

app = tm.App("ledger")
accounts = app.table("accounts", key="id", id=int, balance=tm.decimal(2, default=100))
money = tm.decimal(2)
payments = app.stream("payments", time="at", at=tm.timestamp, src=int, dst=int, amount=money)

@app.transaction(payments)
def pay(tx, e):
    src, dst = accounts[e.src], accounts[e.dst]
    tx.require(src.balance >= e.amount, "insufficient funds")
    src.balance -= e.amount
    dst.balance += e.amount
    return dict(src=e.src, left=src.balance)

@app.transaction(payments)
def note(tx, e):
    print(hash("x"), e.src ** 2)

payments.read(tm.files("payments.csv"))
pay.write(tm.files("out/paid.csv"))

@app.summary
def total(mill):
    return {"total": sum(row["balance"] for row in mill.table("accounts").rows())}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "ledger.py").write_text(APP)
    lines = [f"2024-01-01T00:00:{i % 60:02},{i % 9},{i % 7},{i % 90}.50" for i in range(60)]
    (tmp_path / "payments.csv").write_text("at,src,dst,amount\n" + "\n".join(lines) + "\n")
    return tmp_path


def tidemill(folder: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    base = {k: v for k, v in os.environ.items() if not k.startswith(("TIDEMILL_", "PYTHONHASH"))}
    return subprocess.run(
        [sys.executable, "-m", "tidemill.cli", *arguments],
        cwd=folder,
        env={**base, **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def line(ended: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    return found


def test_run(folder: Path) -> None:
    ended = tidemill(folder, "run", "ledger.py", "--json")
    assert ended.returncode == 0, ended.stderr
    found = line(ended)
    assert found["app"] == "ledger"
    assert found["transactions"] == 120
    assert found["hash_seed"] == "0"
    assert found["total"]
    assert not found["interrupted"]
    assert (folder / "out/paid.csv").exists()
    memory = tidemill(folder, "run", "ledger.py", "--json", "--durable", "none")
    assert memory.returncode == 1
    assert line(memory)["error"]["kind"] == "SettingError"
    assert "--fresh (fresh=True)" in line(memory)["error"]["help"]
    fresh = tidemill(folder, "run", "ledger.py", "--fresh", "--json", "--workers", "1")
    assert line(fresh)["state_hash"] == found["state_hash"]
    people = tidemill(folder, "run", "ledger.py", "--fresh")
    assert "transactions" in people.stdout
    # The output of functions may precede the report.
    assert "data  ledger.tidemill: started from scratch\n" in people.stdout
    assert people.stderr == "--fresh: deleted in ledger.tidemill: APP, cuts, input, store\n"


def test_a_finished_run_is_not_done_again(folder: Path) -> None:
    first = line(tidemill(folder, "run", "ledger.py", "--json"))
    written = (folder / "out/paid.csv").read_bytes()
    for durable in ("log+snapshots", "log"):
        ended = tidemill(folder, "run", "ledger.py", "--json", "--durable", durable)
        again = line(ended)
        differs = {"seconds", "events_per_s", "tables", "continued_at_epoch"}
        assert {k: v for k, v in again.items() if k not in differs} == {
            k: v for k, v in first.items() if k not in differs
        }
        assert again["continued_at_epoch"] == first["epochs"]
        assert "1 \n" not in ended.stdout
        assert (folder / "out/paid.csv").read_bytes() == written
    people = tidemill(folder, "run", "ledger.py").stdout
    assert people.startswith(
        f"data  ledger.tidemill: continuing at epoch {first['epochs']}, 60 events recorded"
    )


def test_the_data_directory_is_where_one_says(folder: Path) -> None:
    (folder / "tidemill.toml").write_text('data_dir = "there"\n')
    assert line(tidemill(folder, "run", "ledger.py", "--json"))["data_dir"] == "there"
    here = tidemill(folder, "run", "ledger.py", "--json", "--fresh", "--data-dir", "here")
    assert line(here)["data_dir"] == "here"
    assert (folder / "there/APP").exists()
    assert (folder / "here/APP").exists()
    other = tidemill(folder, "run", "ledger.py", "--data-dir", ".")
    assert other.returncode == 1
    assert "is not a data directory" in other.stderr
    other = tidemill(folder, "run", "ledger.py", "--data-dir", ".", "--fresh")
    assert "is not a data directory" in other.stderr
    assert tidemill(folder, "run", "ledger.py", "--durable", "some").returncode == 2
    wrong = tidemill(folder, "run", "ledger.py", "--set", "durable=some")
    assert "is none of none, log, log+snapshots" in wrong.stderr


def test_a_hash_seed_of_the_users_stays(folder: Path) -> None:
    ended = tidemill(folder, "run", "ledger.py", "--json", PYTHONHASHSEED="7")
    assert line(ended)["hash_seed"] == "7"


def test_inspect(folder: Path) -> None:
    ended = tidemill(folder, "inspect", "ledger.py", "--json")
    assert ended.returncode == 0, ended.stderr
    handlers = {h["name"]: h for h in line(ended)["handlers"]}
    assert handlers["pay"]["traced"]
    assert not handlers["note"]["traced"]
    assert "ledger.py:19: TypeError: unsupported operand" in handlers["note"]["why"]
    people = tidemill(folder, "inspect", "ledger.py")
    assert "ledger.py:19" in people.stdout.replace("\n", "")
    pay = next(row for row in people.stdout.splitlines() if row.startswith("pay "))
    note = next(row for row in people.stdout.splitlines() if row.startswith("note "))
    assert "  traced (" in pay
    assert "  opaque  " in note


@pytest.mark.parametrize(
    ("change", "arguments", "kind", "what", "at"),
    [
        (
            ("e.amount\n", "e.amuont\n"),
            (),
            "ProgramError",
            "has no column 'amuont'",
            "ledger.py:13",
        ),
        (("app = tm", "app = 1/0; tm"), (), "ProgramError", "ZeroDivisionError", "ledger.py:4"),
        (("import tidemill", "import ="), (), "ProgramError", "SyntaxError", "ledger.py:2"),
        (("", ""), ("--set", "wrkers=2"), "SettingError", "no setting 'wrkers'", None),
        (("", ""), ("--workers", "two"), "SettingError", "is not an integer", None),
        (('payments.read(tm.files("payments.csv"))', ""), (), "ProgramError", "reads nothing", ""),
        (('tm.App("ledger")', "None"), (), "ProgramError", "'NoneType' object has no", ""),
    ],
)
def test_errors(
    folder: Path,
    change: tuple[str, str],
    arguments: tuple[str, ...],
    kind: str,
    what: str,
    at: str | None,
) -> None:
    (folder / "ledger.py").write_text(APP.replace(*change) if change[0] else APP)
    ended = tidemill(folder, "run", "ledger.py", "--json", *arguments)
    assert ended.returncode == 1
    error = line(ended)["error"]
    assert error["kind"] == kind
    assert what in error["what"]
    assert at is None or at in error["at"]
    assert "Traceback" not in ended.stderr
    assert "Traceback" in tidemill(folder, "run", "ledger.py", "--debug", *arguments).stderr


def test_usage(folder: Path) -> None:
    assert tidemill(folder, "fly").returncode == 2
    assert tidemill(folder, "run").returncode == 2
    missing = tidemill(folder, "run", "nope.py")
    assert missing.returncode == 1
    assert "there is no file nope.py" in missing.stderr


def test_several_apps(folder: Path) -> None:
    (folder / "two.py").write_text("import tidemill as tm\na = tm.App('a')\nb = tm.App('b')\n")
    ended = tidemill(folder, "inspect", "two.py")
    assert "has 2 apps: a, b" in ended.stderr
    assert tidemill(folder, "inspect", "two.py:b", "--json").returncode == 0


def test_settings_come_from_file_environment_and_flag(folder: Path) -> None:
    (folder / "tidemill.toml").write_text("epoch_rows_max = 1\nepoch_us_max = 7\nworkers = 1\n")
    ended = tidemill(
        folder, "inspect", "ledger.py", "--json", "--set", "workers=2", TIDEMILL_EPOCH_US_MAX="8"
    )
    found = line(ended)["settings"]
    assert [found[n] for n in ("epoch_rows_max", "epoch_us_max", "workers")] == [1, 8, 2]
    wrong = tidemill(folder, "run", "ledger.py", TIDEMILL_WORKER="2")
    assert "did you mean 'workers'?" in wrong.stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals_end_a_run_gracefully(folder: Path, number: int) -> None:
    slow = APP.replace("print(hash", "import time; time.sleep(0.2); print(hash")
    (folder / "ledger.py").write_text(slow)
    process = subprocess.Popen(
        [sys.executable, "-m", "tidemill.cli", "run", "ledger.py", "--json", "--set",
         "epoch_rows_max=1", "--set", "epoch_bytes_max=1"],
        cwd=folder,
        stdout=subprocess.PIPE,
        text=True,
    )  # fmt: skip
    assert process.stdout is not None
    process.stdout.readline()
    # Nobody else may have its data meanwhile.
    second = tidemill(folder, "run", "ledger.py", "--json")
    assert line(second)["error"]["kind"] == "ResourceError"
    assert "another process runs on data directory ledger.tidemill" in second.stderr
    process.send_signal(number)
    rest, _ = process.communicate(timeout=60)
    # SIGTERM is how a service is stopped; Ctrl-C breaks off what would have gone on.
    assert process.returncode == (0 if number == signal.SIGTERM else 130)
    stopped = json.loads(rest.splitlines()[-1])
    assert stopped["interrupted"]
    assert 0 < stopped["events"] < 60
    # It has left a snapshot, so that nothing is executed again.
    (folder / "ledger.py").write_text(APP)
    ended = tidemill(folder, "run", "ledger.py", "--json")
    going_on = line(ended)
    assert going_on["continued_at_epoch"] == stopped["epochs"]
    assert going_on["transactions"] == 120
    assert ended.stdout.count("\n") < 60
    whole = tidemill(folder, "run", "ledger.py", "--json", "--fresh", "--durable", "none")
    for name in ("state_hash", "output_hash", "total", "events", "outputs"):
        assert going_on[name] == line(whole)[name]


def test_bench(folder: Path) -> None:
    made = ("--events", "2000", "--keys", "100", "--abort", "0.1", "--repeat", "1", "--json")
    for workload in (
        "sl",
        "gs",
        "gs --length 4 --average",
        "gs --computed 0.2",
        "gs --window 50",
        "tp",
    ):
        found = []
        for program in ("rust", "traced", "python"):
            ended = tidemill(folder, "bench", *workload.split(), "--program", program, *made)
            assert ended.returncode == 0, ended.stderr
            assert line(ended)["valid"]
            assert line(ended)["program"] == program
            found.append((line(ended)["state_hash"], line(ended)["output_hash"]))
        assert len(set(found)) == 1, workload


def test_bench_in_phases(folder: Path) -> None:
    made = ("--events", "2600", "--keys", "100", "--repeat", "1")
    ended = tidemill(folder, "bench", "sl", "--dynamic", *made, "--json")
    assert ended.returncode == 0, ended.stderr
    assert [phase["events"] for phase in line(ended)["phases"]] == [200] * 13
    ended = tidemill(folder, "bench", "tp", "--dynamic", *made)
    assert ended.returncode != 0
    assert "--dynamic" in ended.stderr


def test_bench_from_files_and_pushed(folder: Path) -> None:
    made = ("--events", "2000", "--keys", "100", "--repeat", "1", "--json")
    whole = ("--write-source", "sl.parquet", "--source", "sl.parquet", "--durable", "log")
    runs = [
        ("sl", "--program", "traced", *whole),
        ("push", "--durable", "log+snapshots"),
        ("push", "--program", "python", "--form", "arrow", "--durable", "log"),
        ("push", "--program", "python", "--form", "columns", "--stage", "map"),
        ("push", "--program", "python", "--form", "dicts", "--stage", "filter", "--rate", "4000"),
    ]
    for run in runs:
        ended = tidemill(folder, "bench", *run, "--sink", "out", *made)
        assert ended.returncode == 0, ended.stderr
        assert line(ended)["valid"], run


def test_bench_of_procedures(folder: Path) -> None:
    show = "leaderboard --candidates 5 --phones 400 --every 80 --repeat 1 --json --sink out"
    found = []
    for program in ("rust", "python"):
        for durable in ("none", "log"):
            run = (*show.split()[: -2 if durable == "none" else None], "--durable", durable)
            ended = tidemill(folder, "bench", *run, "--program", program)
            assert ended.returncode == 0, ended.stderr
            assert line(ended)["valid"], ended.stdout
            assert (line(ended)["running"], line(ended)["durable"]) == (1, durable)
            found.append((line(ended)["state_hash"], line(ended)["output_hash"]))
    assert len(set(found)) == 1, found
    for name in ("pe-triggers", "ee-triggers"):
        chain = f"{name} --length 5 --events 200 --repeat 1 --json"
        found = []
        for program in ("rust", "python"):
            ended = tidemill(folder, "bench", *chain.split(), "--program", program)
            assert ended.returncode == 0, ended.stderr
            assert line(ended)["valid"]
            found.append(line(ended)["output_hash"])
        assert len(set(found)) == 1, found
    ended = tidemill(folder, "bench", *show.split(), "--program", "traced")
    assert ended.returncode != 0
    assert "procedures are functions" in ended.stderr


def test_bench_of_graphs_of_calls(folder: Path) -> None:
    small = "--warehouses 2 --items 120 --events 600"
    runs = [
        f"tpcc --program python {small}",
        f"tpcc --program rust {small}",
        "hotel --events 1500",
        "hotel --events 300 --rate 2000",
        "movie --events 400",
        f"calls --of tpcc --threads 2 {small}",
    ]
    for run in runs:
        ended = tidemill(folder, "bench", *run.split(), "--repeat", "1", "--json")
        assert ended.returncode == 0, ended.stderr
        assert line(ended)["valid"], run
    paced = "http --program python --events 300 --keys 40 --rate 600 --sink out --json"
    calls = tidemill(folder, "bench", *paced.split())
    assert calls.returncode == 0, calls.stderr
    assert line(calls)["valid"]
    assert line(calls)["latency_ms"]["p50"] > 0
    assert line(ended)["protocol"]["all"]["messages_a_request"] > 0
    ended = tidemill(folder, "bench", "hotel", "--program", "rust")
    assert "has its functions in Python" in ended.stderr


def test_bench_of_functions(folder: Path) -> None:
    transfers = "ycsb-t --keys 50 --skew 0.9 --abort 0.1 --events 800 --repeat 1 --json"
    found = []
    for program in ("rust", "traced", "python"):
        for durable in ("none", "log"):
            # Without a folder there is one of the workload's name.
            run = (*transfers.split(), "--durable", durable, "--program", program)
            ended = tidemill(folder, "bench", *run)
            assert ended.returncode == 0, ended.stderr
            assert line(ended)["valid"], ended.stdout
            found.append((line(ended)["state_hash"], line(ended)["output_hash"]))
    assert len(set(found)) == 1, found
    assert (folder / "ycsb-t.tidemill").is_dir()


def test_doctor(folder: Path) -> None:
    ended = tidemill(folder, "doctor", "--json")
    assert ended.returncode == 0
    found = line(ended)
    assert found["ok"]
    assert {"python", "engine", "cores", "memory", "load", "disk", "clock"} <= {
        finding["name"] for finding in found["findings"]
    }


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 0)])
def test_a_signal_ends_a_start(folder: Path, number: int, code: int) -> None:
    # Nobody answers there, and a start waits for brokers.
    topic = 'tm.kafka("late", brokers="127.0.0.1:1", timeout=60)'
    late = f"app.stream('late', id=int).read({topic})\nprint('loaded', flush=True)\n"
    (folder / "ledger.py").write_text(f"{APP}\n{late}")
    process = subprocess.Popen(
        [sys.executable, "-m", "tidemill.cli", "run", "ledger.py"],
        cwd=folder,
        env={**os.environ, "PYTHONHASHSEED": "0"},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        while "loaded" not in process.stdout.readline():
            pass
        time.sleep(0.5)
        process.send_signal(number)
        assert process.wait(timeout=25) == code
    finally:
        process.kill()
        process.stdout.close()


def test_lines_for_other_programs_are_not_wrapped(folder: Path) -> None:
    name = "a_handler_with_a_long_name_that_says_what_it_does_and_why_it_does_that"
    text = (folder / "ledger.py").read_text()
    (folder / "ledger.py").write_text(
        text + f'\n\n@app.transaction(payments, name="{name}")\ndef again(tx, e):\n'
        "    tx.require(e.amount > 0, 'no')\n"
    )
    assert tidemill(folder, "run", "ledger.py").returncode == 0
    for command in (["inspect", "ledger.py"], ["inspect"]):
        said = tidemill(folder, *command, COLUMNS="80").stdout
        rows = [row for row in said.splitlines() if f"{name}.aborted" in row]
        assert rows, said
        assert all("ledger.py:" in row for row in rows), said


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("worker x.py --upgrade", "--upgrade is for the coordinator only"),
        ("coordinator x.py --join 127.0.0.1:1", "--join is for workers only"),
        ("run x.py --join 127.0.0.1:1", "--join is a flag of 'tidemill worker'"),
        ("run x.py --frseh", "did you mean --fresh?"),
    ],
)
def test_flags_of_other_commands_are_named(folder: Path, command: str, words: str) -> None:
    ended = tidemill(folder, *command.split())
    assert ended.returncode == 2
    assert words in ended.stderr
