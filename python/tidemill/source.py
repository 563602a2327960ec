"""Lines of the user's files, and the analysis of their source and bytecode."""

from __future__ import annotations

import ast
import builtins
import dis
import hashlib
import inspect
import os
import sys
import textwrap
from collections.abc import Callable, Iterator, MutableMapping, MutableSequence, MutableSet
from functools import lru_cache
from types import CodeType, FrameType, ModuleType, TracebackType
from typing import Any

PACKAGE = os.path.dirname(os.path.abspath(__file__)) + os.sep
#: The app of ``tidemill demo``: it comes with the package, and is a user of it.
DEMO = os.path.join(PACKAGE, "demo") + os.sep


def is_own(filename: str) -> bool:
    """Whether a file is part of this package, and not an app."""
    return filename.startswith(PACKAGE) and not filename.startswith(DEMO)


@lru_cache(maxsize=1024)
def shown(filename: str) -> str:
    """Returns a path for messages: relative if it is in the working directory."""
    try:
        relative = os.path.relpath(filename)
    except ValueError:
        return filename
    return filename if relative.startswith("..") else relative


def user_frame() -> FrameType | None:
    """Returns the innermost running frame outside of this package."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and is_own(frame.f_code.co_filename):
        frame = frame.f_back
    return frame


def code_hash(function: Callable[..., Any]) -> str:
    """Returns a hash of a function's code, without its lines and the functions that it calls.

    >>> code_hash(lambda x: x + 1) == code_hash(lambda x: x + 1)
    True
    >>> code_hash(lambda x: x + 1) == code_hash(lambda x: x + 2)
    False
    """
    # The version of Python counts, because each version compiles the same lines differently.
    digest = hashlib.sha256(sys.version.encode())

    def add(code: CodeType) -> None:
        names = (code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars)
        digest.update(code.co_code + repr(names).encode())
        for constant in code.co_consts:
            if isinstance(constant, CodeType):
                add(constant)
            elif isinstance(constant, frozenset):
                digest.update(repr(sorted(map(repr, constant))).encode())
            else:
                digest.update(repr(constant).encode())

    code = getattr(inspect.unwrap(function), "__code__", None)
    if isinstance(code, CodeType):
        add(code)
    return digest.hexdigest()[:16]


def here() -> str:
    """Returns the line of the user's code that is running, as ``file:line``."""
    frame = user_frame()
    return f"{shown(frame.f_code.co_filename)}:{frame.f_lineno}" if frame else ""


def opcode(frame: FrameType) -> str:
    """Returns the name of the bytecode instruction at which a frame is."""
    return dis.opname[frame.f_code.co_code[frame.f_lasti]] if frame.f_lasti >= 0 else ""


def raised_at(error: BaseException) -> tuple[str, int] | None:
    """Returns file and line of the innermost frame of the user that an exception passed.

    Frames of installed libraries count only if there is no other.
    """
    own: tuple[str, int] | None = None
    other: tuple[str, int] | None = None
    trace: TracebackType | None = error.__traceback__
    while trace is not None:
        filename = trace.tb_frame.f_code.co_filename
        if not is_own(filename):
            place = (filename, trace.tb_lineno)
            other = place
            if not is_library(filename):
                own = place
        trace = trace.tb_next
    return own or other


def is_library(filename: str) -> bool:
    """Returns whether a file belongs to Python or to an installed package."""
    standard = os.path.dirname(os.__file__) + os.sep
    return filename.startswith(("<", standard)) or "site-packages" in filename


def returns_nothing(code: CodeType) -> bool:
    """Returns whether every ``return`` of a function returns None.

    >>> def f(x):
    ...     if x:
    ...         return
    ...     print(x)
    >>> returns_nothing(f.__code__), returns_nothing((lambda: 1).__code__)
    (True, False)
    """
    before: dis.Instruction | None = None
    for instruction in dis.get_instructions(code):
        if instruction.opname == "RETURN_CONST" and instruction.argval is not None:
            return False
        if instruction.opname == "RETURN_VALUE" and not (
            before is not None and before.opname == "LOAD_CONST" and before.argval is None
        ):
            return False
        before = instruction
    return True


def _codes(function: Callable[..., Any]) -> Iterator[tuple[CodeType, set[str]]]:
    """Yields a function's code and that of nested ones, each with the outer names that it uses.

    Those are the variables of the functions around the first one.
    """
    code = inspect.unwrap(function).__code__
    codes = [(code, set(code.co_freevars))]
    while codes:
        code, outer = codes.pop()
        inner = [c for c in code.co_consts if isinstance(c, CodeType)]
        codes.extend((c, outer & set(c.co_freevars)) for c in inner)
        yield code, outer


def referenced(function: Callable[..., Any]) -> Iterator[object]:
    """Yields the objects that a function's code names in its globals and closure.

    Nested functions are included.
    """
    closure = inspect.getclosurevars(function)
    yield from closure.nonlocals.values()
    names = {name for code, _ in _codes(function) for name in code.co_names}
    for name in sorted(names):
        if name in function.__globals__:
            yield function.__globals__[name]


def loaded(function: Callable[..., Any]) -> Iterator[tuple[object, str]]:
    """Yields the outer objects that a function's code loads by their names, with their lines.

    Nested functions are included. Names that are not defined yet are left out.

    >>> table = {}
    >>> def uses(x):
    ...     return x.table, len(x)
    >>> [found.__name__ for found, _ in loaded(uses)]
    []
    """
    plain = inspect.unwrap(function)
    closure = inspect.getclosurevars(plain).nonlocals
    for code, outer in _codes(plain):
        line = code.co_firstlineno
        for instruction in dis.get_instructions(code):
            line = instruction.starts_line or line
            name = str(instruction.argval)
            place = f"{shown(code.co_filename)}:{line}"
            if instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
                if name in plain.__globals__:
                    yield plain.__globals__[name], place
            elif instruction.opname == "LOAD_DEREF" and name in outer and name in closure:
                yield closure[name], place


def globals_written(function: Callable[..., Any]) -> Iterator[str]:
    """Yields the outer variables to which a function's code assigns.

    Nested functions are included.
    """
    for code, own in _codes(function):
        for instruction in dis.get_instructions(code):
            is_global = instruction.opname in ("STORE_GLOBAL", "DELETE_GLOBAL")
            is_outer = instruction.opname in ("STORE_DEREF", "DELETE_DEREF")
            if is_global or (is_outer and instruction.argval in own):
                yield instruction.argval


_CHANGING = frozenset(
    [
        "add",
        "append",
        "appendleft",
        "clear",
        "difference_update",
        "discard",
        "extend",
        "extendleft",
        "insert",
        "intersection_update",
        "pop",
        "popitem",
        "popleft",
        "remove",
        "reverse",
        "rotate",
        "setdefault",
        "sort",
        "subtract",
        "symmetric_difference_update",
        "update",
    ]
)


def globals_changed(function: Callable[..., Any]) -> Iterator[str]:
    """Yields the outer lists, dicts and sets that a function's source changes."""
    plain = inspect.unwrap(function)
    try:
        tree = ast.parse(textwrap.dedent("".join(inspect.getsourcelines(plain)[0])))
    except (OSError, TypeError, SyntaxError):
        return
    outside = {**plain.__globals__, **inspect.getclosurevars(plain).nonlocals}
    own = {*plain.__code__.co_varnames, *plain.__code__.co_cellvars}
    for node in ast.walk(tree):
        parts: list[ast.expr] = []
        if isinstance(node, ast.Assign | ast.Delete):
            parts = [part for part in node.targets if isinstance(part, ast.Subscript)]
        elif isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Subscript):
            parts = [node.target]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            parts = [node.func] if node.func.attr in _CHANGING else []
        for part in parts:
            root = part
            while isinstance(root, ast.Subscript | ast.Attribute):
                root = root.value
            if isinstance(root, ast.Name) and root.id not in own:
                held = outside.get(root.id)
                if isinstance(held, MutableMapping | MutableSequence | MutableSet):
                    yield root.id


def unknown(function: Callable[..., Any], module: ModuleType) -> Iterator[tuple[str, int]]:
    """Yields the attributes that a function's code names but a module lacks, with their lines.

    Nested functions are included.

    >>> import tidemill as tm
    >>> def wrong(x):
    ...     return tm.coalese(x, 0)
    >>> [name for name, _ in unknown(wrong, tm)]
    ['coalese']
    """
    plain = inspect.unwrap(function)
    names = getattr(plain, "__globals__", {})
    for code, _ in _codes(plain):
        is_module, line = False, code.co_firstlineno
        for instruction in dis.get_instructions(code):
            line = instruction.starts_line or line
            if instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
                is_module = names.get(str(instruction.argval)) is module
                continue
            if is_module and instruction.opname in _ATTRIBUTES:
                name = str(instruction.argval)
                if not hasattr(module, name):
                    yield name, line
            is_module = False


def method_lines(
    function: Callable[..., Any], parameter: int, method: str, *, always: bool = False
) -> Iterator[str]:
    """Yields the lines at which a function's code names a method of one of its parameters.

    Nested functions are included. With ``always`` only lines before a function's first branch are,
    which every call of it reaches.
    """
    plain = inspect.unwrap(function)
    if parameter >= plain.__code__.co_argcount:
        return
    name = plain.__code__.co_varnames[parameter]
    for code, _ in _codes(plain):
        is_owner, line = False, code.co_firstlineno
        for instruction in dis.get_instructions(code):
            if always and instruction.opname.startswith(("POP_JUMP", "JUMP_IF", "FOR_ITER")):
                break
            line = instruction.starts_line or line
            if is_owner and instruction.opname in _ATTRIBUTES and instruction.argval == method:
                yield f"{shown(code.co_filename)}:{line}"
            # Some versions of Python load two variables with one instruction.
            of = instruction.argval
            is_loaded = instruction.opname.startswith(("LOAD_FAST", "LOAD_DEREF"))
            is_owner = is_loaded and (of[-1] if isinstance(of, tuple) else of) == name


#: Functions that block on input or output: modules with their functions, or None for all of them.
_BLOCKING = {
    "time": ("sleep",),
    "builtins": ("input", "open"),
    "os": ("popen", "system", "waitpid"),
    "asyncio": None,
    "http.client": None,
    "httpx": None,
    "requests": None,
    "socket": None,
    "subprocess": None,
    "urllib.request": None,
}


_ATTRIBUTES = ("LOAD_ATTR", "LOAD_METHOD")


def blocking(function: Callable[..., Any]) -> Iterator[str]:
    """Yields the blocking functions that a function's code names, in the words of the code.

    Nested functions are included.

    >>> import time
    >>> def naps():
    ...     time.sleep(1)
    >>> list(blocking(naps))
    ['time.sleep']
    """
    plain = inspect.unwrap(function)
    names = {**vars(builtins), **getattr(plain, "__globals__", {})}
    for code, _ in _codes(plain):
        found: object = None
        said = ""
        for instruction in dis.get_instructions(code):
            if instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
                said = str(instruction.argval)
                found = names.get(said)
            elif isinstance(found, ModuleType) and instruction.opname in _ATTRIBUTES:
                said = f"{said}.{instruction.argval}"
                found = getattr(found, str(instruction.argval), None)
            else:
                found = None
            if found is not None and not isinstance(found, ModuleType) and _is_blocking(found):
                yield said


def _is_blocking(found: object) -> bool:
    module = str(getattr(found, "__module__", None) or "")
    name = getattr(found, "__name__", "")
    for blocks, functions in _BLOCKING.items():
        is_of = module == blocks or module.startswith(f"{blocks}.")
        if is_of and (functions is None or name in functions):
            return callable(found)
    # Functions that are written in C have other modules than their Python names suggest.
    return module in ("_io", "io", "posix", "nt") and name in ("open", "popen", "system", "waitpid")


class Silent:
    """A construct that tracing would record wrongly without an error."""

    def __init__(self, line: int, what: str, help: str) -> None:
        self.line = line
        self.what = what
        self.help = help


def silent_mistakes(function: Callable[..., Any]) -> Silent | None:
    """Returns the first construct of a function that would be traced wrongly without an error.

    These are ``return`` inside ``with tx.when(...)``, and ``is None`` on a value of the event or of
    a row. Neither calls a method in which a symbolic value could raise an error.
    """
    try:
        lines, first = inspect.getsourcelines(function)
        tree = ast.parse(textwrap.dedent("".join(lines)))
    except (OSError, TypeError, SyntaxError):
        return None
    definition = tree.body[0]
    if not isinstance(definition, ast.FunctionDef):
        return None
    parameters = [a.arg for a in [*definition.args.posonlyargs, *definition.args.args]]
    if len(parameters) < 2:
        return None
    for found in _walk(definition, parameters):
        found.line += first - 1
        return found
    return None


def _walk(definition: ast.FunctionDef, parameters: list[str]) -> Iterator[Silent]:
    tainted = set(parameters[:2])

    def is_tainted(node: ast.expr) -> bool:
        return any(isinstance(n, ast.Name) and n.id in tainted for n in ast.walk(node))

    grown = True
    while grown:
        grown = False
        for node in ast.walk(definition):
            if isinstance(node, ast.Assign) and is_tainted(node.value):
                targets = node.targets
            elif isinstance(node, ast.AnnAssign | ast.NamedExpr) and node.value is not None:
                targets = [node.target] if is_tainted(node.value) else []
            else:
                continue
            for name in (n for t in targets for n in ast.walk(t) if isinstance(n, ast.Name)):
                if isinstance(name.ctx, ast.Store) and name.id not in tainted:
                    tainted.add(name.id)
                    grown = True
    for node in ast.walk(definition):
        if isinstance(node, ast.With) and any(
            _is_when(i.context_expr, parameters) for i in node.items
        ):
            for inner in ast.walk(node):
                if isinstance(inner, ast.Return):
                    yield Silent(
                        inner.lineno,
                        "a return inside 'with tx.when(...)' would apply to every event",
                        "emit the event inside the block with tx.emit, or return after the block "
                        "with tm.where(cond, a, b)",
                    )
        if not isinstance(node, ast.Compare) or not isinstance(node.ops[0], ast.Is | ast.IsNot):
            continue
        if any(_is_value(n) and is_tainted(n) for n in [node.left, *node.comparators]):
            negated = isinstance(node.ops[0], ast.IsNot)
            yield Silent(
                node.lineno,
                f"'{'is not' if negated else 'is'}' compares Python objects, and a traced "
                "function has none yet: the result would be the same for every event",
                "write ~tm.is_null(x)" if negated else "write tm.is_null(x)",
            )


def _is_when(node: ast.expr, parameters: list[str]) -> bool:
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "when"
        and isinstance(node.func.value, ast.Name)
        and node.func.value.id == parameters[0]
    )


def _is_value(node: ast.expr) -> bool:
    return isinstance(node, ast.Name | ast.Attribute | ast.Subscript)
