"""Input through Arrow's interface: frames of all kinds, and invalid arrays."""

from __future__ import annotations

import ctypes
import random
import struct
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import tidemill as tm


def taker(**columns: Any) -> tuple[tm.App, tm.Stream]:
    """An app that keeps what is sent."""
    app = tm.App("taker")
    stream = app.stream("s", **columns)

    @app.transaction(stream, out=columns)
    def take(tx, e):
        return {name: e[name] for name in columns}

    return app, stream


def taken(app: tm.App, rows: object) -> list[dict[str, Any]]:
    with app.start() as mill:
        mill.send("s", rows)
        mill.drain()
        return mill.output("take").rows()


def test_frames_of_all_kinds() -> None:
    app, _ = taker(n=int, t=tm.optional(str))
    wanted = [{"n": 2, "t": "b"}, {"n": 3, "t": None}]
    frame = pd.DataFrame({"n": [1, 2, 3], "t": pd.Categorical(["a", "b", None])})
    # Rows that were filtered have an index without a name.
    assert taken(app, frame[frame.n > 1]) == wanted
    lazy = pl.DataFrame({"n": [2, 3], "t": ["b", None]}).lazy()
    assert taken(app, lazy.collect()) == wanted
    with pytest.raises(tm.InputError, match="holds none") as caught:
        taken(app, lazy)
    assert "collect" in caught.value.help
    nulls = pa.table({"n": [2, 3], "t": pa.nulls(2)})
    assert [row["t"] for row in taken(app, nulls)] == [None, None]
    for column in (pa.array([2, 3], pa.int8()), pa.chunked_array([[2], [3]]), np.array([2, 3]),
                   pl.Series([2, 3]), pd.Series([2, 3])):  # fmt: skip
        assert taken(app, {"n": column, "t": pl.Series(["b", None])}) == wanted
    with pytest.raises(tm.InputError, match=r"pandas\.period"):
        taken(app, pd.DataFrame({"n": pd.period_range("2024-01", periods=2, freq="M")}))
    # An index with a name is a column, be its values a range or not.
    for index in ([1, 2, 3], [1, 2, 4]):
        with pytest.raises(tm.InputError, match="no column 'm'"):
            taken(app, frame.set_index(pd.Index(index, name="m")))
        numbered = frame[["t"]].set_index(pd.Index(index, name="n"))
        assert [row["n"] for row in taken(app, numbered)] == index


def test_columns_without_a_value_have_any_type() -> None:
    """polars exports its null type, also inside of lists and structs, with a buffer."""
    app, _ = taker(n=tm.optional(int), l=tm.optional(tm.list(str)), a=tm.optional(tm.any))
    columns = {"n": [None, None], "l": [[], None], "a": [{"x": None, "y": [None]}, {"x": None}]}
    wanted = [
        {"n": None, "l": [], "a": {"x": None, "y": [None]}},
        {"n": None, "l": None, "a": {"x": None, "y": None}},
    ]
    frame = pl.DataFrame(columns)
    assert frame.schema["n"] == pl.Null
    for rows in (frame, {name: frame[name] for name in columns}, pa.table(columns)):
        assert taken(app, rows) == wanted
    fixed = pl.DataFrame({"l": pl.Series([[None]], dtype=pl.Array(pl.Null, 1))})
    assert taken(app, fixed) == [{"n": None, "l": [None], "a": None}]

    class Wrapped:
        """A frame of a library that passes polars' stream on."""

        def __arrow_c_stream__(self, schema: object = None) -> object:
            return frame.__arrow_c_stream__(schema)

    with pytest.raises(tm.InputError, match="Null") as caught:
        taken(app, Wrapped())
    assert "columns of the null type" in caught.value.help


def test_an_index_and_a_lazy_column_say_how_they_are_sent() -> None:
    app, _ = taker(n=int)
    frame = pd.DataFrame({"n": [1, 2]})
    for named in (
        frame.set_index(pd.Index(["a", "b"], name="m")),
        frame.set_index(pd.MultiIndex.from_tuples([(1, 2), (1, 3)], names=["m", None])),
    ):
        with pytest.raises(tm.InputError, match="no column 'm'") as caught:
            taken(app, named)
        assert "reset_index(drop=True)" in caught.value.help
        assert taken(app, named.reset_index(drop=True)) == [{"n": 1}, {"n": 2}]
    with pytest.raises(tm.InputError, match="no column 'm'") as caught:
        taken(app, pd.DataFrame({"n": [1], "m": [2]}))
    assert "reset_index" not in caught.value.help
    with pytest.raises(tm.InputError, match="a LazyFrame describes rows") as caught:
        taken(app, {"n": pl.LazyFrame({"n": [1]})})
    assert "collect" in caught.value.help
    with pytest.raises(tm.InputError, match="a value of type Series holds no rows"):
        taken(app, pd.Series([1, 2], name="n"))


def test_what_ends_while_it_is_read_says_why() -> None:
    app, _ = taker(n=int)
    schema = pa.schema({"n": pa.int64()})

    def batches() -> Iterator[pa.RecordBatch]:
        yield pa.record_batch({"n": [1]})
        raise ValueError("the disk is gone")

    with pytest.raises(tm.InputError, match="the disk is gone"):
        taken(app, pa.RecordBatchReader.from_batches(schema, batches()))
    with pytest.raises(tm.InputError, match="a value of type Int64Array holds no rows"):
        taken(app, pa.array([1]))
    with pytest.raises(tm.InputError, match=r"column 'n' holds no values.*the disk is gone"):
        taken(app, {"n": pa.RecordBatchReader.from_batches(schema, batches())})


def test_the_row_that_does_not_fit_is_counted_over_all_chunks() -> None:
    app, _ = taker(n=tm.decimal(2))
    column = pa.chunked_array([[Decimal("1.000")] * 5, [Decimal("2.000"), Decimal("1.005")]])
    for rows in (pa.table({"n": column}), {"n": column}):
        with pytest.raises(tm.InputError, match=r"row 6: '1\.005' has more than 2 digits"):
            taken(app, rows)


def broken(
    kind: pa.DataType, offsets: list[int], of: pa.Array | bytes, nulls: bytes | None, cut: int
) -> tuple[pa.Array, Callable[[], None]]:
    """Texts, bytes or a list with such offsets, of which ``cut`` bytes are missing. They become so
    when one calls what comes second: pyarrow looks at whatever it makes an array or a table of."""
    is_wide = pa.types.is_large_list(kind) or kind in (pa.large_string(), pa.large_binary())
    packed = struct.pack(f"{len(offsets)}{'q' if is_wide else 'i'}", *offsets)
    buffer = pa.allocate_buffer(len(packed), resizable=True)
    inside = memoryview(buffer).cast("B")
    inside[:] = bytes(len(packed))
    buffers = [None if nulls is None else pa.py_buffer(nulls), buffer]
    children = None
    if isinstance(of, bytes):
        buffers.append(pa.py_buffer(of))
    else:
        children = [of]

    def breaks() -> None:
        inside[:] = packed
        inside.release()
        if cut:
            buffer.resize(len(packed) - cut)

    return pa.Array.from_buffers(kind, len(offsets) - 1, buffers, children=children), breaks


def strings(offsets: list[int], data: bytes) -> pa.Array:
    buffers = [None, pa.py_buffer(struct.pack(f"{len(offsets)}i", *offsets)), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.string(), len(offsets) - 1, buffers)


def test_texts_that_are_no_texts_are_refused_by_row() -> None:
    app, _ = taker(t=tm.optional(str))
    forms: list[Callable[[pa.Array], Any]] = [
        lambda array: pa.table({"t": array}),
        lambda array: {"t": array},
        lambda array: pa.record_batch({"t": array}),
        lambda array: {"t": pa.chunked_array([array])},
    ]
    for offsets, data, is_right in (
        ([0, 1, 3], b"a\xff\xff", False),
        ([0, 1, 3], "aé".encode(), True),
        ([0, 2, 3], "aé".encode(), False),
        ([0, 2, 1, 3], b"abc", False),
        ([0, 1, 3000], b"abc", False),
        ([0, 3000, 3], b"abc", False),
        ([0, -1, 3], b"abc", False),
        ([5, 1, 3], b"abc", False),
    ):
        for form in forms:
            array, breaks = broken(pa.string(), offsets, data, None, 0)
            rows = form(array)
            breaks()
            if is_right:
                assert taken(app, rows) == [{"t": "a"}, {"t": "é"}]
                continue
            with pytest.raises(tm.InputError, match=r"column 't'.*is not valid Arrow"):
                taken(app, rows)
    with pytest.raises(tm.InputError, match="column 't', row 1: it is not valid Arrow"):
        taken(app, pa.table({"t": strings([0, 1, 3], b"a\xff\xff")}))


def test_keys_of_dictionaries_and_offsets_of_lists_are_looked_at() -> None:
    app, _ = taker(t=tm.optional(str), l=tm.optional(tm.list(int)), a=tm.any)
    keys = pa.py_buffer(struct.pack("3b", 0, 9, 1))
    kind = pa.dictionary(pa.int8(), pa.string())
    words = pa.DictionaryArray.from_buffers(kind, 3, [None, keys], pa.array(["a", "b"]))
    offsets = pa.py_buffer(struct.pack("3i", 0, 9, 2))
    items = pa.Array.from_buffers(pa.list_(pa.int64()), 2, [None, offsets],
                                  children=[pa.array([1, 2])])  # fmt: skip
    deep = pa.StructArray.from_arrays([strings([0, 1, 2], b"\xff\xff")], ["x"])
    views = pa.ListViewArray.from_arrays(pa.array([0, 1], pa.int32()), pa.array([9, 1], pa.int32()),
                                         pa.array([1, 2]))  # fmt: skip
    buffer = pa.allocate_buffer(8)
    inside = memoryview(buffer).cast("B").cast("i")
    inside[:] = memoryview(struct.pack("2i", 1, 3)).cast("i")
    ends = pa.Array.from_buffers(pa.int32(), 2, [None, buffer])
    runs = pa.RunEndEncodedArray.from_arrays(ends, pa.array(["a", "b"]))
    wrong = (("t", words), ("t", runs), ("l", items), ("l", views), ("a", deep), ("a", views))
    tables = [(c, pa.table({"a": pa.nulls(len(array)), c: array})) for c, array in wrong]
    # The last run now ends before the last row.
    inside[1] = 2
    for column, table in tables:
        with pytest.raises(tm.InputError, match=rf"column '{column}'.*is not valid Arrow"):
            taken(app, table)


def test_broken_arrays_are_refused_or_taken_and_nothing_ends() -> None:
    """Offsets, texts, nulls and keys as the dice will have them."""
    app, _ = taker(t=tm.optional(str), y=tm.optional(bytes), l=tm.optional(tm.list(str)))
    dice = random.Random(7)
    outcomes = []
    with app.start() as mill:
        for _ in range(400):
            length, data = (
                dice.randrange(1, 5),
                bytes(dice.choice(b"ab\xc3\xa9\xff") for _ in range(9)),
            )
            edges = sorted(dice.randrange(10) for _ in range(length + 1))
            if dice.random() < 0.5:
                edges[dice.randrange(length + 1)] = dice.choice([-1, 10, 2**31 - 1, 0, 4])
            wide = dice.random() < 0.3
            nulls = bytes([dice.randrange(256)]) if dice.random() < 0.3 else None
            cut = dice.choice([0] * 9 + [length * (8 if wide else 4)])
            column = dice.choice("tyl")
            narrow = {"t": pa.string(), "y": pa.binary(), "l": pa.list_(pa.string())}
            large = {
                "t": pa.large_string(),
                "y": pa.large_binary(),
                "l": pa.large_list(pa.string()),
            }
            items = strings([0, 1, 2, 3, 4, 5, 6, 7, 8, 9], data) if column == "l" else data
            kind = (large if wide else narrow)[column]
            array, breaks = broken(kind, edges, items, nulls, cut)
            rows = pa.table({column: array})
            breaks()
            try:
                mill.send("s", rows)
                outcomes.append("taken")
            except tm.InputError as error:
                outcomes.append("refused" if f"column '{column}'" in error.what else error.what)
        mill.drain()
        count = len(mill.output("take").rows())
    assert count >= outcomes.count("taken") > 20
    assert outcomes.count("refused") > 20
    assert {*outcomes} == {"taken", "refused"}


class Capsule:
    """The interface itself with a wrong number of nulls, which no library has checked."""

    def __init__(self, array: pa.Array, nulls: int) -> None:
        self.schema, self.array = array.__arrow_c_array__()
        get = ctypes.pythonapi.PyCapsule_GetPointer
        get.restype, get.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
        place = get(self.array, b"arrow_array")
        ctypes.cast(place, ctypes.POINTER(ctypes.c_int64))[1] = nulls

    def __arrow_c_array__(self, requested_schema: object = None) -> tuple[object, object]:
        return self.schema, self.array


def test_null_counts_that_are_wrong_are_refused() -> None:
    app, _ = taker(n=tm.optional(int))
    array = pa.StructArray.from_arrays([pa.array([1, None, 3])], ["n"])
    wrong = Capsule(pa.array([1, None, 3]), 3)
    with pytest.raises(tm.InputError, match="column 'n' is not valid Arrow"):
        taken(app, {"n": wrong})
    # It has no length in Python, and needs none.
    assert len(taken(app, {"n": Capsule(pa.array([1, None, 3]), 1)})) == 3
    assert len(taken(app, pa.RecordBatch.from_struct_array(array))) == 3
