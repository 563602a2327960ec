"""Repeated declarations in an interactive session."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import tidemill as tm

HEAD = """
import tidemill as tm
app = tm.App("bank")
accounts = app.table("accounts", key="id", id=int, balance=tm.column(int, default=0))
payments = app.stream("payments", id=int, amount=int)
"""

PAY = """
@app.transaction(payments)
def pay(tx, e):
    accounts[e.id].balance += FACTOR * e.amount
    return {"id": e.id}
"""

CALLED = """
@app.procedure
def look(tx, id: int):
    return FACTOR * accounts[id].balance
"""

ENTITY = """
shop = app.entity("shop", key="id", id=int, sold=tm.column(int, default=0))

@shop.function(creates=True)
async def sell(self, ctx, n: int):
    self.sold += FACTOR * n
    return self.sold
"""


def session(folder: Path, *cells: str) -> list[str]:
    """Runs cells one after the other at Python's prompt, and returns what each printed."""
    code = [
        *("import sys, traceback",),
        *("def cell(text):",),
        *("    try: exec(compile(text, '<cell>', 'exec'), globals())",),
        *("    except Exception: print(traceback.format_exc().splitlines()[-2:])",),
        *("    print('---', flush=True)", ""),
        *(f"cell({cell!r})" for cell in cells),
    ]
    done = subprocess.run(
        [sys.executable, "-i", "-q"],
        input="\n".join(code) + "\n",
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    parts = [part.strip() for part in done.stdout.split("---\n")]
    assert len(parts) == len(cells) + 1, done.stdout + done.stderr
    return parts[:-1]


def run(cell: str, factor: int) -> str:
    return cell.replace("FACTOR", str(factor))


SEND = """
with app.start(workers=1) as mill:
    mill.send(payments, [{"id": 1, "amount": 5}], wait=True)
    print(mill.table("accounts")[1]["balance"])
"""


def test_a_handler_is_replaced_in_its_place(tmp_path: Path) -> None:
    other = "@app.transaction(payments)\ndef other(tx, e): accounts[e.id].balance *= 10\n"
    orders = "print([h.name for h in app.handlers], [s.name for s in app.streams])"
    found = session(
        tmp_path,
        HEAD,
        run(PAY, 1),
        other,
        "pay.write(tm.files('paid.csv'))",
        orders,
        run(PAY, 3),
        "pay.write(tm.files('paid.csv'))",
        orders,
        SEND,
        run(PAY, 4),
        SEND,
    )
    assert found[4] == found[7]
    assert found[5] == found[6] == ""
    # The other handler still runs after it.
    assert found[8:] == ["150", "", "200"]
    assert (tmp_path / "paid.csv").read_text() == "id\n1\n"


def test_an_output_may_come_and_go(tmp_path: Path) -> None:
    silent = "@app.transaction(payments)\ndef pay(tx, e): accounts[e.id].balance += 7\n"
    assert session(tmp_path, HEAD, run(PAY, 1), silent, SEND, run(PAY, 2), SEND)[2:] == [
        *("", "7", "", "10"),
    ]


def test_tables_streams_procedures_and_entities(tmp_path: Path) -> None:
    call = "with app.start() as mill: print(mill.call(look, id=1), mill.call(sell, id=1, n=2))"
    index = "by_balance = accounts.index('balance')"
    head = HEAD.split("\n", 3)[3]
    once = [HEAD, index, run(PAY, 1), run(CALLED, 1), run(ENTITY, 1), call]
    again = [head, index, run(PAY, 2), run(CALLED, 2), run(ENTITY, 2), call]
    count = "print(len(app.tables), len(app.streams), len(app.handlers), len(app.calls))"
    found = session(tmp_path, *once, count, *again, count, SEND)
    assert found[5] == "0 2"
    assert found[12] == "0 4"
    assert found[6] == found[13]
    assert found[14] == "10"
    assert all(found[place] == "" for place in (7, 8, 9, 10, 11))


def test_a_changed_table_is_replaced_while_nothing_uses_it(tmp_path: Path) -> None:
    changed = HEAD.split("\n", 3)[3].replace("balance=tm", "owner=str, balance=tm")
    columns = "print(app.tables['accounts'])"
    found = session(tmp_path, HEAD, changed, columns, run(PAY, 1), HEAD.split("\n", 3)[3])
    assert "owner: str" in found[2]
    assert "table accounts is declared again in another way" in found[4]
    assert "run all cells again from the one with tm.App(...)" in found[4]


def test_what_others_refer_to_is_not_replaced(tmp_path: Path) -> None:
    taker = "@app.transaction(pay)\ndef count(tx, e): accounts[e.id].balance += 1\n"
    found = session(tmp_path, HEAD, run(PAY, 1), taker, run(PAY, 2), SEND)
    assert "handler pay is declared again, and count refers to the earlier one" in found[3]
    assert "run all cells again" in found[3]
    assert found[4] == "6"


def test_a_running_app_is_not_changed(tmp_path: Path) -> None:
    found = session(
        tmp_path, HEAD, run(PAY, 1), "mill = app.start()", run(PAY, 2), "mill.stop()", run(PAY, 2)
    )
    assert "handler pay is declared again while the app runs" in found[3]
    assert "mill.stop()" in found[3]
    assert found[5] == ""


def test_a_failed_declaration_leaves_the_earlier_one(tmp_path: Path) -> None:
    wrong = "@app.procedure\ndef look(tx, id: int):\n    global n\n    n = 1\n"
    broken = "@app.transaction(payments)\ndef pay(tx, e): accounts[e.id].balanse += 1\n"
    found = session(tmp_path, HEAD, run(PAY, 1), broken, SEND, wrong, run(CALLED, 3), SEND)
    assert "no column 'balanse'" in found[2]
    assert found[3] == "5"
    assert found[5:] == ["", "5"]


def test_in_a_file_a_second_declaration_is_an_error() -> None:
    app = tm.App("bank")
    payments = app.stream("payments", id=int)

    def pay(tx, e): ...

    app.transaction(payments)(pay)
    with pytest.raises(tm.ProgramError, match=r"two handlers named 'pay'; the first is at .*\.py:"):
        app.transaction(payments)(pay)
    with pytest.raises(tm.ProgramError, match="two streams named 'payments'"):
        app.stream("payments", id=int)
    with pytest.raises(tm.ProgramError, match="two tables named 't'"):
        [app.table("t", key="id", id=int) for _ in range(2)]
