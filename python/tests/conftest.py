"""Fixtures and helpers that the tests share."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from typing import Any

import pytest

import tidemill as tm
from tidemill import _native


class Outcome:
    """Tables and outputs of an app, by name, as the reference executor has them."""

    def __init__(self, found: dict[str, Any]) -> None:
        self.tables: dict[str, list[dict[str, Any]]] = found["tables"]
        self.outputs: dict[str, list[dict[str, Any]]] = found["outputs"]
        self.aborts: int = found["aborts"]

    def reasons(self) -> list[str]:
        """The reasons of all aborts."""
        return [
            row["reason"]
            for name, rows in self.outputs.items()
            if name.endswith(".aborted")
            for row in rows
        ]


def reference(app: tm.App, *events: tuple[tm.Stream, object]) -> Outcome:
    """Runs an app over events, one transaction at a time."""
    spec, opaques = app.spec({}, keep_all=True, push=True)
    sent = [(stream.name, rows) for stream, rows in events]
    return Outcome(_native.run_reference(json.dumps(spec), opaques, sent))


def marked_line(function: Callable[..., Any], marker: str = "# here") -> str:
    """``file.py:line`` of the line in a function that bears a marker."""
    lines, first = inspect.getsourcelines(function)
    found = [i for i, line in enumerate(lines) if marker in line and "marker" not in line]
    assert len(found) == 1, f"one line of {function.__name__} bears {marker}"
    name = inspect.getsourcefile(function)
    assert name is not None
    return f"{name.rsplit('/', 1)[-1]}:{first + found[0]}"


def refusal(define: Callable[[], object]) -> tm.ProgramError:
    """The error that a declaration raises; it must name the line marked ``# here``."""
    with pytest.raises(tm.ProgramError) as caught:
        define()
    error = caught.value
    assert error.at is not None
    assert error.at.rsplit("/", 1)[-1] == marked_line(define)
    return error


class Ledger:
    """A small app to declare handlers in."""

    def __init__(self) -> None:
        self.app = tm.App("ledger")
        self.accounts = self.app.table(
            "accounts",
            key="id",
            id=int,
            balance=tm.decimal(2, default=0),
            owner=tm.optional(str),
            tags=tm.column(tm.list(str), default=[]),
        )
        self.pairs = self.app.table("pairs", key=("a", "b"), a=int, b=str, n=int)
        self.payments = self.app.stream(
            "payments", src=int, dst=int, amount=tm.decimal(2), memo=str, flag=bool, x=float
        )
        self.large = self.app.stream("large", src=int, note=tm.optional(str))


@pytest.fixture
def ledger() -> Ledger:
    """A fresh small app."""
    return Ledger()


def payment(src: int = 1, dst: int = 2, amount: int = 10, **others: object) -> dict[str, object]:
    """An event of the small app."""
    base = {"src": src, "dst": dst, "amount": amount, "memo": "", "flag": True, "x": 0.5}
    return {**base, **others}
