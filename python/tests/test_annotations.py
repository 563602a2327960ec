"""`Annotated` declares a column's type, and says a plain type to type checkers."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from decimal import Decimal
from typing import Annotated, Any, NotRequired, Required, TypedDict

import pytest

import tidemill as tm
from tidemill.types import column_type

Money = Annotated[Decimal, tm.decimal(2)]


@dataclass
class Account:
    id: int
    limit: Money | None
    rates: list[Annotated[Decimal, tm.decimal(4)]]
    balance: Money = Decimal(1)


class Payment(TypedDict, total=False):
    id: Required[int]
    amount: Required[Money]
    note: NotRequired[Annotated[str, "of another library"]]


def test_classes_and_parameters_have_the_scale() -> None:
    app = tm.App("bank")
    accounts = app.table("accounts", key="id", schema=Account)
    payments = app.stream("payments", schema=Payment, tip=tm.column(Money, default=0))
    assert str(accounts.schema) == (
        "id: int, limit: decimal(2)?, rates: list(decimal(4)), balance: decimal(2)"
    )
    assert str(payments.schema) == "id: int, amount: decimal(2), note: str, tip: decimal(2)"

    @app.procedure
    def open_account(tx: tm.Tx, id: int, first: Money, more: Money | None = None) -> str:
        row = accounts.insert(id=id, limit=more, rates=[first], balance=first)
        return f"{row.balance} {row.limit} {row.rates}"

    with app.start() as mill:
        got = mill.call(open_account, id=1, first=Decimal("1.50"))
        assert got == "1.50 None [Decimal('1.5000')]"
        with pytest.raises(tm.InputError, match=r"'1\.505' has more than 2 digits"):
            mill.call(open_account, id=2, first=Decimal("1.505"))


AGREE: list[tuple[Any, str]] = [
    (Annotated[Any, tm.decimal(2)], "decimal(2)"),
    (Annotated[int, tm.column(int, default=1)], "int"),
    (Annotated[dt.datetime, tm.timestamp], "timestamp"),
    (Annotated[list[Decimal], tm.list(tm.decimal(1))], "list(decimal(1))"),
    (Annotated[list[int | None], tm.list(int)], "list(int)"),
    (Annotated[dict[str, int], tm.any], "any"),
    (Annotated[Money | None, tm.optional(tm.decimal(3))], "decimal(3)"),
    (Annotated[Money, "a note"], "decimal(2)"),
]


@pytest.mark.parametrize(("given", "ty"), AGREE)
def test_parts_that_agree(given: Any, ty: str) -> None:
    assert str(column_type(given).ty) == ty


DIFFER: list[tuple[Any, str, str]] = [
    (Annotated[int, tm.decimal(2)], "int", "decimal(2)"),
    (Annotated[bool, tm.column(int, default=1)], "bool", "int"),
    (Annotated[int, tm.timestamp], "int", "timestamp"),
    (Annotated[list[int], tm.list(str)], "list[int]", "list(str)"),
    (Annotated[str, tm.list(str)], "str", "list(str)"),
    (Annotated[int | None, tm.column(int)], "int | None", "int"),
    (Annotated[int, tm.optional(int)], "int", "int that may be null"),
]


@pytest.mark.parametrize(("given", "plain", "ty"), DIFFER)
def test_parts_that_differ_are_refused(given: Any, plain: str, ty: str) -> None:
    with pytest.raises(tm.ProgramError) as caught:
        tm.App("a").table("t", key="id", id=int, x=given)
    says = f"an annotation says {plain} to type checkers, and {ty} to Tidemill"
    assert caught.value.what == f"table t, column 'x': {says}"
    assert "Annotated[Decimal, tm.decimal(2)]" in caught.value.help


def test_two_types_in_one_annotation_are_refused() -> None:
    with pytest.raises(tm.ProgramError, match="has 2 types of a column"):
        column_type(Annotated[Money, tm.decimal(3)])
