"""Operations act in program order, and a unique index holds after each of them.

So it is in every kind of function, and wherever rows live."""

from __future__ import annotations

import linecache
import random
from collections.abc import Callable
from typing import Any

import pytest

import tidemill as tm

from .conftest import reference
from .test_entities_nodes import Calls, in_process, on_nodes

#: An operation: its name, the row's key, and the text.
Op = tuple[str, int, str]

MAILS = "abc"
START: list[Op] = [("insert", 1, "a"), ("insert", 2, "b")]
#: The cases that once differed, and whether they commit.
CASES: list[tuple[list[Op], bool]] = [
    ([("delete", 1, ""), ("delete", 2, ""), ("insert", 1, "b")], True),
    ([("set", 1, "t"), ("set", 2, "a"), ("set", 1, "b")], True),
    ([("set", 2, "a"), ("set", 1, "b"), ("set", 2, "c")], False),
    ([("insert", 3, "c"), ("delete", 3, ""), ("insert", 4, "c")], True),
    ([("upsert", 3, "a"), ("delete", 1, "")], False),
    ([("update", 1, "b"), ("delete", 2, "")], False),
    # A row that comes column by column counts when it has them all.
    ([("set", 3, "a"), ("delete", 1, ""), ("tag", 3, "x")], True),
    ([("set", 3, "a"), ("tag", 3, "x"), ("delete", 1, "")], False),
]


class Model:
    """The expected results of operations."""

    def __init__(self, tag: str | None = None) -> None:
        self.rows: dict[int, dict[str, Any]] = {}
        self.tag = tag

    def run(self, ops: list[Op]) -> str | None:
        """Why they abort, if they do."""
        before = {key: dict(row) for key, row in self.rows.items()}
        reason = self._all(ops)
        if reason is not None:
            self.rows = before
        return reason

    def _all(self, ops: list[Op]) -> str | None:
        for name, key, text in ops:
            row = self.rows.get(key)
            if name == "insert" and row is not None:
                return f"p[{key}] exists already"
            if name == "update" and row is None:
                return f"p[{key}] is missing"
            if name in ("insert", "upsert"):
                self.rows[key] = {"id": key, "mail": text, "tag": "new"}
            elif name == "delete":
                self.rows.pop(key, None)
            else:
                made = self.rows.setdefault(key, {"id": key, "mail": None, "tag": self.tag})
                made["tag" if name == "tag" else "mail"] = text
            whole = [r["mail"] for r in self.rows.values() if r["tag"] and r["mail"]]
            for mail in sorted(set(whole)):
                if whole.count(mail) > 1:
                    return f'p.by_mail["{mail}"] exists already'
        for key, row in self.rows.items():
            if row["tag"] is None:
                return f"p[{key}] has no value for column 'tag'"
        return None


def statements(ops: list[Op]) -> str:
    """The operations as lines of a function."""
    lines = {
        "insert": "p.insert(id={0}, mail={1!r}, tag='new')",
        "upsert": "p.upsert(id={0}, mail={1!r}, tag='new')",
        "update": "p[{0}].update(mail={1!r})",
        "delete": "p[{0}].delete()",
        "set": "p[{0}].mail = {1!r}",
        "tag": "p[{0}].tag = {1!r}",
    }
    return "\n".join("    " + lines[name].format(key, text) for name, key, text in ops)


def defined(source: str, names: dict[str, Any]) -> Any:
    """The function ``f`` of a source, which tracebacks and the tracer find."""
    name = f"<ops {len(linecache.cache)}>"
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    exec(compile(source, name, "exec"), names)
    return names["f"]


def table(app: tm.App) -> tm.Table:
    """People, whose mail is their own."""
    p = app.table("p", key="id", id=int, mail=tm.optional(str), tag=str)
    p.index("mail", unique=True)
    return p


def handlers(kind: str, scripts: list[list[Op]]) -> tm.App:
    """An app with a handler for each script."""
    app = tm.App("people")
    p = table(app)
    for number, ops in enumerate(scripts):
        body = statements(ops)
        if kind == "called":
            f = defined(f"def f(tx, n: int):\n{body}\n    return 0\n", {"p": p})
            app.procedure(name=f"f{number}")(f)
            continue
        stream = app.stream(f"s{number}", n=int)
        f = defined(f"def f(tx, e):\n{body}\n", {"p": p})
        if kind == "procedure":
            app.procedure(stream, name=f"f{number}")(f)
        else:
            app.transaction(stream, name=f"f{number}", opaque=kind == "opaque")(f)
    return app


def entities(scripts: list[list[Op]]) -> tm.App:
    """Returns the app with an entity, whose functions change the rows one after the other."""
    app = tm.App("people")
    tag = tm.column(str, default="new")
    person = app.entity("p", key="id", id=int, mail=tm.optional(str), tag=tag)
    person.table.index("mail", unique=True)
    run = app.entity("run", key="id", id=int)

    @person.function(creates=True)
    async def set_mail(self, ctx, mail: str):
        self.mail = mail

    names = {"person": person, "tm": tm}
    lines = {
        "insert": "    await person.create(id={0}, mail={1!r})",
        "delete": "    await person[{0}].delete()",
        "set": "    await person[{0}].set_mail({1!r})",
    }
    for number, ops in enumerate(scripts):
        body = "\n".join(lines[name].format(key, text) for name, key, text in ops)
        f = defined(f"async def f(self, ctx):\n{body}\n    return 0\n", dict(names))
        run.function(name=f"f{number}", creates=True)(f)
    return app


def calls(kind: str, count: int) -> Calls:
    """Each script once."""
    if kind == "entity":
        return [(f"run.f{number}", {"id": number}) for number in range(count)]
    if kind == "called":
        return [(f"f{number}", {"n": 0}) for number in range(count)]
    return [(f"s{number}", {"n": 0}) for number in range(count)]


def any_scripts(dice: random.Random, names: list[str]) -> list[list[Op]]:
    """Scripts of a few operations on few rows."""

    def op() -> Op:
        return (dice.choice(names), dice.randint(1, 4), dice.choice(MAILS))

    return [START, *([op() for _ in range(dice.randint(1, 5))] for _ in range(12))]


def is_as_the_model_says(kind: str, scripts: list[list[Op]], nodes: tuple[int, ...]) -> None:
    """Tables and reasons are the model's, in one process and on nodes."""

    def make() -> tm.App:
        return entities(scripts) if kind == "entity" else handlers(kind, scripts)

    model = Model("new" if kind == "entity" else None)
    reasons = [model.run(ops) for ops in scripts]
    rows = [model.rows[key] for key in sorted(model.rows)]
    asked = calls(kind, len(scripts))

    def aborts(found: dict[str, Any]) -> list[str | None]:
        if kind in ("called", "entity"):
            return [reply[1] if reply[0] == "aborted" else None for reply in found["replies"]]
        told = {
            name: events[0]["reason"]
            for name, events in found["outputs"].items()
            if name.endswith(".aborted")
        }
        return [told.get(f"f{number}.aborted") for number in range(len(scripts))]

    found = in_process(make(), asked)
    assert aborts(found) == reasons
    assert found["tables"]["p"] == rows
    for count in nodes:
        for epoch in (1, 1000):
            found = on_nodes(make(), asked, count, 7, epoch)
            assert aborts(found) == reasons, f"{count} nodes, epochs of {epoch}"
            assert found["tables"]["p"] == rows
            assert found["not_deterministic"] == 0


KINDS = ["traced", "opaque", "procedure", "called"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("ops", "commits"), CASES)
def test_cases(kind: str, ops: list[Op], commits: bool) -> None:
    assert (Model().run([*START, *ops]) is None) == commits
    is_as_the_model_says(kind, [START, ops], (1, 2))


@pytest.mark.parametrize("kind", [*KINDS, "entity"])
@pytest.mark.parametrize("seed", range(8))
def test_any_operations(kind: str, seed: int) -> None:
    names = ["insert", "delete", "set", "set"]
    if kind != "entity":
        names += ["upsert", "update", "tag"]
    is_as_the_model_says(kind, any_scripts(random.Random(seed), names), (3,))


@pytest.mark.parametrize("seed", range(8))
def test_the_reference_says_the_same(seed: int) -> None:
    names = ["insert", "delete", "set", "set", "upsert", "update", "tag"]
    scripts = any_scripts(random.Random(seed), names)
    model = Model()
    reasons = [reason for ops in scripts if (reason := model.run(ops)) is not None]
    for kind in ("traced", "opaque"):
        app = handlers(kind, scripts)
        streams = [stream for stream in app.streams if stream.origin == "input"]
        found = reference(app, *((stream, [{"n": 0}]) for stream in streams))
        assert sorted(found.reasons()) == sorted(reasons)
        assert found.tables["p"] == [model.rows[key] for key in sorted(model.rows)]


def watched(make: Callable[[tm.App, Any, Any, Any], None]) -> list[str]:
    """The rows of which triggers were told, in order."""
    app = tm.App("watched")
    p = table(app)
    q = app.table("q", key="id", id=int, n=tm.column(int, default=0))
    told = app.stream("told", what=str)
    come = app.stream("come", n=int)
    make(app, p, q, come)

    @app.trigger(p)
    def of_p(tx, change):
        tx.emit(told, what=f"p{change.new.id}")

    @app.trigger(q)
    def of_q(tx, change):
        tx.emit(told, what=f"q{change.new.id}")

    with app.start() as mill:
        mill.send(come, [{"n": 1}])
        mill.drain()
        return [row["what"] for row in mill.output(told)]


def test_triggers_come_in_the_order_of_writes() -> None:
    def traced(app: tm.App, p: Any, q: Any, come: Any) -> None:
        @app.transaction(come)
        def write(tx, e):
            q[2].n = q[1].n + 1
            p.insert(id=1, mail="a", tag="x")
            q[1].n = 1

    def opaque(app: tm.App, p: Any, q: Any, come: Any) -> None:
        @app.transaction(come, opaque=True)
        def write(tx, e):
            q[2].n = q[1].n + 1
            p.insert(id=1, mail="a", tag="x")
            q[1].n = 1

    assert watched(traced) == watched(opaque) == ["q2", "p1", "q1"]
