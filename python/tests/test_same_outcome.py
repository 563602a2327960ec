"""A traced function and the same function with real values have one outcome."""

from __future__ import annotations

import linecache
from decimal import Decimal
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import tidemill as tm

from .conftest import Outcome, reference

# Expressions of each type, as source text. None of them can fail: Python computes both branches of
# tm.where, and a value before the insert that it is for, where the engine computes what it needs,
# when it needs it. Overflow where a value is stored has a test of its own.


def _leaf(kind: str) -> st.SearchStrategy[str]:
    columns = {"int": "n", "dec": "d", "float": "f", "str": "s", "bool": "b"}
    name = columns[kind]
    constants: dict[str, st.SearchStrategy[str]] = {
        "int": st.integers(-3, 3).map(str),
        "dec": st.integers(-300, 300).map(lambda u: f'D("{Decimal(u).scaleb(-2)}")'),
        "float": st.sampled_from(["0.5", "-0.0", "1e300", "-3.25"]),
        "str": st.sampled_from(["''", "'a'", "'Ab'", "'b '"]),
        "bool": st.sampled_from(["(e.n > 1)", "row0.exists()"]),
    }
    return st.one_of(
        st.sampled_from([f"e.{name}", f"row0.{name}", f"row1.{name}"]), constants[kind]
    )


def expressions(kind: str, depth: int) -> st.SearchStrategy[str]:
    if depth == 0:
        return _leaf(kind)
    x = expressions(kind, depth - 1)
    i, f = expressions("int", depth - 1), expressions("float", depth - 1)
    d, s, b = (expressions(k, depth - 1) for k in ("dec", "str", "bool"))
    compared = st.sampled_from(["==", "!=", "<", "<=", ">", ">="])
    grown: dict[str, list[st.SearchStrategy[str]]] = {
        "int": [
            st.tuples(i, st.sampled_from("+-"), i).map(lambda t: f"({t[0]} {t[1]} {t[2]})"),
            st.tuples(i, st.sampled_from(["// 3", "% 3", "* -2", "// -2"])).map(
                lambda t: f"({t[0]} {t[1]})"
            ),
            st.tuples(i, i).map(lambda t: f"tm.max({t[0]}, {t[1]})"),
            s.map(lambda t: f"tm.length({t})"),
            b.map(lambda t: f"tm.cast({t}, int)"),
            i.map(lambda t: f"tm.abs({t})"),
            d.map(lambda t: f"tm.cast({t}, int)"),
        ],
        "dec": [
            st.tuples(d, st.sampled_from("+-"), d).map(lambda t: f"({t[0]} {t[1]} {t[2]})"),
            st.tuples(d, i).map(lambda t: f"({t[0]} + {t[1]})"),
            d.map(lambda t: f"tm.div({t}, -7, scale=2)"),
            st.tuples(d, d).map(lambda t: f"tm.min({t[0]}, {t[1]})"),
            st.tuples(d, d).map(lambda t: f"tm.cast({t[0]} * {t[1]}, tm.decimal(2))"),
        ],
        "float": [
            st.tuples(f, st.sampled_from("+-*"), f).map(lambda t: f"({t[0]} {t[1]} {t[2]})"),
            st.tuples(f, i).map(lambda t: f"({t[0]} + {t[1]})"),
            st.tuples(f, st.sampled_from(["/ 3", "// 0.5", "% -2"])).map(
                lambda t: f"({t[0]} {t[1]})"
            ),
            i.map(lambda t: f"({t} / 7)"),
            st.tuples(f, f).map(lambda t: f"tm.min({t[0]}, {t[1]})"),
        ],
        "str": [
            st.tuples(s, s).map(lambda t: f"({t[0]} + {t[1]})"),
            st.tuples(st.sampled_from(["upper", "lower", "strip"]), s).map(
                lambda t: f"tm.{t[0]}({t[1]})"
            ),
            i.map(lambda t: f"tm.cast({t}, str)"),
            d.map(lambda t: f"tm.cast({t}, str)"),
        ],
        "bool": [
            st.tuples(st.one_of(st.tuples(i, compared, i), st.tuples(s, compared, s))).map(
                lambda t: f"({t[0][0]} {t[0][1]} {t[0][2]})"
            ),
            st.tuples(d, compared, i).map(lambda t: f"({t[0]} {t[1]} {t[2]})"),
            st.tuples(f, compared, i).map(lambda t: f"({t[0]} {t[1]} {t[2]})"),
            st.tuples(b, st.sampled_from("&|"), b).map(lambda t: f"({t[0]} {t[1]} {t[2]})"),
            b.map(lambda t: f"tm.not_({t})"),
            st.tuples(s, s).map(lambda t: f"tm.contains({t[0]}, {t[1]})"),
        ],
    }
    chosen = st.tuples(b, x, x).map(lambda t: f"tm.where({t[0]}, {t[1]}, {t[2]})")
    return st.one_of(_leaf(kind), chosen, *grown[kind])


COLUMNS = {"n": "int", "d": "dec", "f": "float", "s": "str", "b": "bool"}


@st.composite
def statements(draw: st.DrawFn, depth: int) -> list[str]:
    """Statements of a handler; ``WHEN(c):`` becomes ``with tx.when(c):`` or ``if c:``."""
    lines: list[str] = []
    for _ in range(draw(st.integers(1, 3))):
        kind = draw(
            st.sampled_from(
                ["set", "set", "local", "require", "emit", "insert", "upsert", "update", "delete"]
                + (["when", "when"] if depth else [])
            )
        )
        row = draw(st.sampled_from(["row0", "row1", "row2"]))
        name = draw(st.sampled_from(sorted(COLUMNS)))
        value = draw(expressions(COLUMNS[name], 2))
        key = draw(expressions("int", 1))
        if kind == "set":
            lines.append(f"{row}.{name} = {value}")
        elif kind == "local":
            lines.append(f"row2 = rows[{key} % 4]")
        elif kind == "require":
            reason = draw(expressions("str", 1))
            lines.append(f"tx.require({draw(expressions('bool', 2))}, {reason})")
        elif kind == "emit":
            lines.append(f"tx.emit(seen, {name}={value})")
        elif kind in ("insert", "upsert"):
            lines.append(f"rows.{kind}(k={key} % 4, {name}={value})")
        elif kind == "update":
            lines.append(f"{row}.update({name}={value})")
        elif kind == "delete":
            lines.append(f"{row}.delete()")
        else:
            lines.append(f"WHEN({draw(expressions('bool', 1))}):")
            # Rows chosen under a condition would be unknown to what follows it.
            inner = [i for i in draw(statements(depth - 1)) if not i.startswith("row2 =")]
            lines.extend("    " + line for line in inner or ["pass"])
    return lines


def source(lines: list[str], guard: str) -> str:
    body = ["row0, row1 = rows[e.k], rows[e.j]", "row2 = row0", *lines]
    body.append("return dict(n=row0.n, s=row1.s, f=row2.f)")
    text = "\n".join("    " + line for line in body)
    return f"def handler(tx, e):\n{text}\n".replace("WHEN", guard)


EVENT = dict(
    k=st.integers(0, 3),
    j=st.integers(0, 3),
    n=st.integers(-5, 5),
    d=st.integers(-500, 500).map(lambda u: Decimal(u).scaleb(-2)),
    f=st.sampled_from([0.0, -0.0, 1.5, -2.25, float("inf"), float("nan"), 1e308]),
    s=st.sampled_from(["", "a", "É", " b"]),
    b=st.booleans(),
)


def build(lines: list[str], opaque: bool) -> tuple[tm.App, tm.Stream, tm.Handler]:
    """An app whose one handler has these statements, its input, and the handler."""
    app = tm.App("same")
    columns: dict[str, object] = dict(
        n=tm.column(int, default=0),
        d=tm.decimal(2, default=0),
        f=tm.column(float, default=0.0),
        s=tm.column(str, default=""),
        b=tm.column(bool, default=False),
    )
    rows = app.table("rows", key="k", k=int, **columns)
    seen = app.stream("seen", **columns)
    feed = app.stream("feed", k=int, j=int, n=int, d=tm.decimal(2), f=float, s=str, b=bool)
    text = source(lines, "if " if opaque else "with tx.when")
    file = f"<generated {hash(text)}>"
    linecache.cache[file] = (len(text), None, text.splitlines(True), file)
    scope: dict[str, Any] = {"rows": rows, "seen": seen, "tm": tm, "D": Decimal}
    exec(compile(text, file, "exec"), scope)
    out = dict(n=int, s=str, f=float)
    handler = app.transaction(feed, opaque=opaque, out=out, emits=[seen])(scope["handler"])
    assert handler.path == ("opaque" if opaque else "traced")
    return app, feed, handler


def outcome(lines: list[str], events: list[dict[str, Any]], opaque: bool) -> Outcome:
    app, feed, _ = build(lines, opaque)
    return reference(app, (feed, events))


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(statements(2), st.lists(st.fixed_dictionaries(EVENT), max_size=8))
def test_traced_is_opaque(lines: list[str], events: list[dict[str, Any]]) -> None:
    traced = outcome(lines, events, opaque=False)
    opaque = outcome(lines, events, opaque=True)
    # By their texts: these tell 0.0 from -0.0 and 1 from True, and NaN is NaN.
    assert repr(traced.tables) == repr(opaque.tables)
    assert repr(traced.outputs) == repr(opaque.outputs)


def test_overflow_is_an_abort_on_both_paths() -> None:
    lines = ["row0.n = e.n + 9223372036854775807"]
    event = dict(k=1, j=1, n=1, d=0, f=0.0, s="", b=True)
    for opaque in (False, True):
        found = outcome(lines, [event, {**event, "n": 0}], opaque)
        assert found.reasons() == ["overflow"]
        assert found.tables["rows"][0]["n"] == 2**63 - 1
