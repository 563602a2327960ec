"""Symbolic values: the values of a handler while it is traced, and ``tm.col``.

An operator on a symbolic value appends a node to the :class:`Block` of the handler, with its type
(by the engine's own rules) and the user's line. Where Python needs a real value, the symbolic value
raises an error that tells what to write instead.
"""

from __future__ import annotations

import decimal as dec
import json
import struct
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, NoReturn

from tidemill import _native
from tidemill.context import current, local
from tidemill.errors import ProgramError, Untraceable
from tidemill.source import here, opcode, shown, user_frame
from tidemill.types import BOOL, FLOAT, DataType, Json, Schema, constant

#: An operator in the engine's JSON: a name, or a name with an argument.
Op = Json


@lru_cache(maxsize=4096)
def _unary_type(op: str, operand: str) -> DataType:
    return DataType.from_json(json.loads(_native.unary_type(op, operand)))


@lru_cache(maxsize=4096)
def _binary_type(op: str, left: str, right: str) -> DataType:
    return DataType.from_json(json.loads(_native.binary_type(op, left, right)))


_BRANCH_HELP = (
    "choose a value with tm.where(cond, a, b), refuse with tx.require(cond, reason), guard writes "
    "with 'with tx.when(cond):', join conditions with & | ~; or run the function unchanged with "
    "@app.transaction(..., opaque=True)"
)


def _branch() -> NoReturn:
    frame = user_frame()
    where = f"{shown(frame.f_code.co_filename)}:{frame.f_lineno}" if frame else None
    name = opcode(frame) if frame else ""
    if name == "UNARY_NOT":
        what = "'not' needs a truth value now, and this one differs from event to event"
        first = "write ~x instead of 'not x'; else "
    elif "OR_POP" in name:
        word, sign = ("and", "&") if "FALSE" in name else ("or", "|")
        what = f"'{word}' (or a chained comparison) needs a truth value now, and this one differs "
        what += "from event to event"
        first = f"write (a) {sign} (b) instead of 'a {word} b'; else "
    elif name == "CONTAINS_OP":
        what = "'in' needs a truth value now, and this one differs from event to event"
        first = "write (x == a) | (x == b), or tm.contains(list, x); else "
    elif name.startswith(("CALL", "PRECALL")):
        what = "a function that is called here needs a truth value, and this one differs from "
        what += "event to event"
        first = "write tm.min, tm.max or tm.abs instead of Python's; else "
    else:
        what = "'if' on a value that differs from event to event can't be traced"
        first = ""
    raise ProgramError(what, first + _BRANCH_HELP, where)


class Symbolic:
    """A symbolic value, which stands for a value of each event.

    Operators on it give symbolic values.
    """

    __slots__ = ()
    # With None, numpy does not apply its operators item by item.
    __array_ufunc__ = None

    # Arithmetic.

    def __add__(self, other: object) -> Symbolic:
        return node("binary", "add", self, other)

    def __radd__(self, other: object) -> Symbolic:
        return node("binary", "add", other, self)

    def __sub__(self, other: object) -> Symbolic:
        return node("binary", "sub", self, other)

    def __rsub__(self, other: object) -> Symbolic:
        return node("binary", "sub", other, self)

    def __mul__(self, other: object) -> Symbolic:
        return node("binary", "mul", self, other)

    def __rmul__(self, other: object) -> Symbolic:
        return node("binary", "mul", other, self)

    def __truediv__(self, other: object) -> Symbolic:
        return node("binary", "div", self, other)

    def __rtruediv__(self, other: object) -> Symbolic:
        return node("binary", "div", other, self)

    def __floordiv__(self, other: object) -> Symbolic:
        return node("binary", "floor_div", self, other)

    def __rfloordiv__(self, other: object) -> Symbolic:
        return node("binary", "floor_div", other, self)

    def __mod__(self, other: object) -> Symbolic:
        return node("binary", "mod", self, other)

    def __rmod__(self, other: object) -> Symbolic:
        return node("binary", "mod", other, self)

    def __neg__(self) -> Symbolic:
        return node("unary", "neg", self)

    def __pos__(self) -> Symbolic:
        return self

    def __abs__(self) -> Symbolic:
        return node("unary", "abs", self)

    # Logic.

    def __and__(self, other: object) -> Symbolic:
        return node("binary", "and", self, other)

    def __rand__(self, other: object) -> Symbolic:
        return node("binary", "and", other, self)

    def __or__(self, other: object) -> Symbolic:
        return node("binary", "or", self, other)

    def __ror__(self, other: object) -> Symbolic:
        return node("binary", "or", other, self)

    def __invert__(self) -> Symbolic:
        needed = getattr(local.transaction, "needed", None)
        if needed is not None:
            needed.append(("~", here()))
        return node("unary", "not", self)

    # Comparison. Python turns `1 < x` into `x > 1` by itself.

    def __eq__(self, other: object) -> Symbolic:  # type: ignore[override]
        return node("binary", "eq", self, other)

    def __ne__(self, other: object) -> Symbolic:  # type: ignore[override]
        return node("binary", "ne", self, other)

    def __lt__(self, other: object) -> Symbolic:
        return node("binary", "lt", self, other)

    def __le__(self, other: object) -> Symbolic:
        return node("binary", "le", self, other)

    def __gt__(self, other: object) -> Symbolic:
        return node("binary", "gt", self, other)

    def __ge__(self, other: object) -> Symbolic:
        return node("binary", "ge", self, other)

    # Operations that need a real value.

    def __bool__(self) -> bool:
        _branch()

    def __contains__(self, item: object) -> bool:
        raise ProgramError(
            "'in' needs a truth value now, and this one differs from event to event",
            "write tm.contains(text_or_list, x)",
            here(),
        )

    def __hash__(self) -> int:
        raise Untraceable("a value of the event can't be a key of a dict or a member of a set")

    def __iter__(self) -> NoReturn:
        raise Untraceable("a value that is not known yet can't be iterated over")

    def __len__(self) -> int:
        raise Untraceable("len() needs the value itself (tm.length(x) can be traced)")

    def __int__(self) -> int:
        raise Untraceable("int() needs the value itself (tm.cast(x, int) can be traced)")

    def __index__(self) -> int:
        raise Untraceable("an index needs the value itself")

    def __float__(self) -> float:
        raise Untraceable("float() needs the value itself (tm.cast(x, float) can be traced)")

    def __complex__(self) -> complex:
        raise Untraceable("complex() needs the value itself")

    def __str__(self) -> str:
        raise Untraceable("str() needs the value itself (tm.cast(x, str) can be traced)")

    def __format__(self, spec: str) -> str:
        raise Untraceable(
            "an f-string needs the value itself ('text ' + tm.cast(x, str) can be traced)"
        )

    def __bytes__(self) -> bytes:
        raise Untraceable("bytes() needs the value itself")

    def __round__(self, digits: int | None = None) -> NoReturn:
        raise Untraceable(
            "round() needs the value itself (tm.cast(x, tm.decimal(2)) can be traced)"
        )

    def __getitem__(self, index: object) -> NoReturn:
        raise Untraceable("a part of a value needs the value itself")

    def __reduce__(self) -> NoReturn:
        raise Untraceable("a value that is not known yet can't be copied or pickled")

    def __getattr__(self, name: str) -> Any:
        method = _METHODS.get(name)
        if method is None or name.startswith("__"):
            if name.startswith("__"):
                raise AttributeError(name)
            raise Untraceable(f"'.{name}' needs the value itself")

        def call(*arguments: object) -> Symbolic:
            kind, op, count = method
            if len(arguments) != count:
                raise Untraceable(f"'.{name}' with these arguments needs the value itself")
            return node(kind, op, self, *arguments)

        return call


#: The methods of texts for which the engine has an operator.
_METHODS = {
    "lower": ("unary", "lower", 0),
    "upper": ("unary", "upper", 0),
    "strip": ("unary", "strip", 0),
    "startswith": ("binary", "starts_with", 1),
    "endswith": ("binary", "ends_with", 1),
}


class Traced(Symbolic):
    """A typed node of the block of the handler that is traced."""

    __slots__ = ("block", "id", "nullable", "ty")

    def __init__(self, block: Block, id: int, ty: DataType | None, nullable: bool) -> None:
        self.block = block
        self.id = id
        self.ty = ty
        self.nullable = nullable

    def over(self, window: object) -> Any:
        """Returns the versions of a row's column in a window: ``row.price.over(tm.last(9))``."""
        transaction: Any = current("a window is read")
        return transaction.over_value(self, window)

    def __repr__(self) -> str:
        return f"<{self.ty or 'null'} that is not known yet>"


class Deferred(Symbolic):
    """An expression over ``tm.col``, which gets its type when a stream is known."""

    __slots__ = ("at", "build")

    def __init__(self, build: Callable[[Block], Traced], at: str) -> None:
        self.build = build
        self.at = at

    def __repr__(self) -> str:
        return "<an expression over tm.col>"


def col(name: str) -> Symbolic:
    """Returns an expression for a column of the stream on which ``filter`` or ``map`` is called.

    Operators and the functions of ``tm`` make further expressions of it.

    Args:
        name: The column's name.

    Returns:
        The expression.

    Example:
        >>> import tidemill as tm
        >>> app = tm.App("ledger")
        >>> payments = app.stream("payments", id=int, amount=int)
        >>> payments.filter((tm.col("amount") > 0) & ~tm.is_null(tm.col("id")))
        <stream payments.filter: id: int, amount: int>
    """
    at = here()

    def build(block: Block) -> Traced:
        return block.column(name, at)

    return Deferred(build, at)


def is_symbolic(*values: object) -> bool:
    """Returns whether one of the values is symbolic."""
    return any(isinstance(value, Symbolic) for value in values)


def node(kind: str, op: Op, *operands: object) -> Symbolic:
    """Returns a node over operands, of which at least one is symbolic."""
    at = here()
    for operand in operands:
        if isinstance(operand, Traced):
            return operand.block.node(kind, op, operands, at)

    def build(block: Block) -> Traced:
        bound = [o.build(block) if isinstance(o, Deferred) else o for o in operands]
        return block.node(kind, op, bound, at)

    return Deferred(build, at)


class Block:
    """The nodes of one handler, filter or map. Equal expressions share a node."""

    def __init__(self, owner: str, event: Schema) -> None:
        self.owner = owner
        self.event = event
        self.nodes: list[Json] = []
        self._types: list[tuple[DataType | None, bool]] = []
        self._known: dict[str, int] = {}
        self._constants: dict[int, object] = {}

    def push(self, expr: Json, ty: DataType | None, nullable: bool, at: str) -> Traced:
        """Appends a node, or returns the equal node that exists."""
        key = json.dumps(expr)
        id = self._known.get(key)
        if id is None:
            id = self._known[key] = len(self.nodes)
            self.nodes.append({"expr": expr, "at": at})
            self._types.append((ty, nullable))
        ty, nullable = self._types[id]
        return Traced(self, id, ty, nullable)

    def column(self, name: str, at: str) -> Traced:
        """Returns a column of the event."""
        index = self.event.find(self.owner, name, at)
        column = self.event.columns[index]
        return self.push({"column": index}, column.ty, column.nullable, at)

    def const(self, value: object, at: str) -> Traced:
        """Returns a constant."""
        try:
            ty, value_json = constant(value)
        except TypeError as error:
            why = str(error)
            if isinstance(value, list | tuple) and is_symbolic(*value):
                why = "a list of values that are not known yet can't be traced"
            raise Untraceable(why) from None
        except ProgramError as error:
            raise ProgramError(error.what, error.help, at) from None
        if ty == FLOAT:
            # By their bits, because a float can change when it is written and read as text.
            (bits,) = struct.unpack("<Q", struct.pack("<d", value_json["float"]))
            made = self.push({"float_bits": bits}, ty, False, at)
        else:
            made = self.push({"const": value_json}, ty, value is None, at)
        self._constants[made.id] = value
        return made

    def lift(self, value: object, at: str | None = None) -> Traced:
        """Returns a value as a node; values that are not symbolic become constants."""
        at = at or here()
        if isinstance(value, Traced):
            if value.block is not self:
                raise ProgramError(
                    "a value of another event is used here: a variable holds it since another "
                    "handler was traced",
                    "store shared values in a table",
                    at,
                )
            return value
        if isinstance(value, Deferred):
            return value.build(self)
        return self.const(value, at)

    def node(self, kind: str, op: Op, operands: Sequence[object], at: str) -> Traced:
        """Returns an operator's node, with the type of its result."""
        nodes = [self.lift(operand, at) for operand in operands]
        if kind == "unary":
            return self._unary(op, nodes[0], at)
        if kind == "binary":
            return self._binary(op, nodes[0], nodes[1], at)
        if kind == "where":
            condition = nodes[0]
            if condition.ty is not None and condition.ty != BOOL:
                raise ProgramError(
                    f"the condition of tm.where is {condition.ty}, not bool",
                    "compare it with a value",
                    at,
                )
            a, b = self._common(nodes[1], nodes[2], "tm.where", at)
            expr = {"where": [condition.id, a.id, b.id]}
            return self.push(expr, a.ty or b.ty, a.nullable or b.nullable, at)
        assert kind == "coalesce"
        a, b = self._common(nodes[0], nodes[1], "tm.coalesce", at)
        return self.push({"coalesce": [a.id, b.id]}, a.ty or b.ty, a.nullable and b.nullable, at)

    def _unary(self, op: Op, x: Traced, at: str) -> Traced:
        expr = {"unary": [op, x.id]}
        if op == "is_null":
            return self.push(expr, BOOL, False, at)
        if x.ty is None:
            raise ProgramError(
                "this operation is not defined for null", "use tm.coalesce(x, default)", at
            )
        try:
            ty = _unary_type(json.dumps(op), json.dumps(x.ty.json()))
        except ValueError as error:
            raise ProgramError(str(error), "", at) from None
        return self.push(expr, ty, False, at)

    def _binary(self, op: Op, l: Traced, r: Traced, at: str) -> Traced:  # noqa: E741
        expr = {"binary": [op, l.id, r.id]}
        if l.ty is None or r.ty is None:
            if op in ("eq", "ne"):
                return self.push(expr, BOOL, False, at)
            raise ProgramError(
                f"{op} is not defined for null",
                "compare with == None, or use tm.coalesce(x, default)",
                at,
            )
        try:
            ty = _binary_type(json.dumps(op), json.dumps(l.ty.json()), json.dumps(r.ty.json()))
        except ValueError as error:
            help = ""
            if l.ty.kind == "str" and op == "mod":
                raise Untraceable("formatting a text needs the value itself") from None
            for side in (l, r):
                given = self._constants.get(side.id)
                if isinstance(given, float) and "decimal" in (l.ty.kind, r.ty.kind):
                    help = f'write decimal.Decimal("{given!r}") instead of {given!r}'
            raise ProgramError(str(error), help, at) from None
        return self.push(expr, ty, False, at)

    def _common(self, a: Traced, b: Traced, what: str, at: str) -> tuple[Traced, Traced]:
        """Converts a constant branch to the type of the other; raises if the types differ then."""
        if a.ty is None or b.ty is None or a.ty == b.ty:
            return a, b
        types = a.ty, b.ty
        a, b = self._adapted(a, types[1], at), self._adapted(b, types[0], at)
        if a.ty != b.ty:
            raise ProgramError(
                f"the two branches of {what} have the types {a.ty} and {b.ty}",
                "convert them to one type with tm.cast(x, type)",
                at,
            )
        return a, b

    def _adapted(self, node: Traced, ty: DataType, at: str) -> Traced:
        value = self._constants.get(node.id)
        if isinstance(value, int) and not isinstance(value, bool):
            if ty.kind == "float":
                return self.const(float(value), at)
            if ty.kind == "decimal":
                value = dec.Decimal(value)
        smaller = node.ty is not None and (node.ty.kind == "int" or node.ty.scale < ty.scale)
        if isinstance(value, dec.Decimal) and ty.kind == "decimal" and smaller:
            unit = dec.Decimal(1).scaleb(-ty.scale)
            return self.const(value.quantize(unit, None, dec.Context(prec=60)), at)
        return node

    def fits(self, value: object, column: Any, owner: str, at: str) -> Traced:
        """Returns the node of a value for a column, and raises if the value does not fit."""
        node = self.lift(value, at)
        if node.ty is None:
            if not column.nullable and self._constants.get(node.id, 0) is None:
                raise ProgramError(
                    f"{owner}: '{column.name}' may not be null",
                    "declare it as tm.optional(...)",
                    at,
                )
            return node
        if not node.ty.stores_in(column.ty):
            given = self._constants.get(node.id)
            help = f"convert it with tm.cast(x, {column.ty})"
            if isinstance(given, float) and column.ty.kind == "decimal":
                help = f'write decimal.Decimal("{given!r}") instead of {given!r}'
            raise ProgramError(
                f"{owner}: '{column.name}' is {column.ty}, but the value given is {node.ty}",
                help,
                at,
            )
        return node

    def is_const(self, node: Traced) -> bool:
        """Returns whether a node is a constant."""
        return node.id in self._constants

    def json(self) -> Json:
        """Returns the nodes in the form that the engine reads."""
        return self.nodes
