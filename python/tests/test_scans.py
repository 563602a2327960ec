"""Scans in both orders, and by a prefix: the rows of a plain list that is sorted and cut."""

from __future__ import annotations

import random
from typing import Any

import pytest

import tidemill as tm

from .test_entities_nodes import is_one

#: Texts with many common beginnings, also at the edges of Unicode.
LAST = "\U0010ffff"
TEXTS = [
    "",
    "a",
    "aa",
    "ab",
    "b",
    "ba",
    "\ud7ff",
    "\ud7ffx",
    "\ue000",
    "a\U0010ffff",
    LAST,
    "é",
    "éa",
]
BYTES = [b"", b"\x00", b"a", b"a\xff", b"a\xffz", b"b", b"\xfe\xff", b"\xff\x01"]


def library() -> tm.App:
    app = tm.App("library")
    words = app.table("words", key="word", ordered=True, word=str, n=int)
    blobs = app.table("blobs", key="blob", ordered=True, blob=bytes)
    pairs = app.table("pairs", key=("k", "word"), ordered=True, k=int, word=str, tag=str)
    by_tag = pairs.index("tag")
    shelf = app.entity(
        "shelf", key=("k", "word"), k=int, word=str, n=int, ordered=True, partition_prefix=1
    )

    @app.procedure
    def put(tx: Any, word: str, n: int, tag: str) -> None:
        words.upsert(word=word, n=n)
        pairs.upsert(k=n % 3, word=word, tag=tag)

    @app.procedure
    def put_blob(tx: Any, blob: bytes) -> None:
        blobs.upsert(blob=blob)

    @app.procedure
    def drop(tx: Any, word: str, n: int) -> None:
        words[word].delete()
        pairs[n % 3, word].delete()

    @app.procedure
    def look(tx: Any, prefix: str, k: int, limit: int | None, reverse: bool) -> Any:
        # Own writes count in both orders.
        words.upsert(word=prefix, n=k)
        words["b"].delete()
        return [
            [row.word for row in words.scan(prefix=prefix, limit=limit, reverse=reverse)],
            [row.word for row in words.scan("aa", "é", limit=limit, reverse=reverse)],
            [row.word for row in pairs.scan(prefix=(k, prefix), limit=limit, reverse=reverse)],
            [(row.k, row.word) for row in pairs.scan(k, limit=limit, reverse=reverse)],
            [(row.k, row.word) for row in by_tag.scan(prefix=prefix, limit=limit, reverse=reverse)],
            [(row.k, row.word) for row in by_tag.scan("a", limit=limit, reverse=reverse)],
        ]

    @app.procedure
    def look_blobs(tx: Any, prefix: bytes, reverse: bool) -> Any:
        return [row.blob for row in blobs.scan(prefix=prefix, reverse=reverse)]

    @shelf.function(creates=True)
    async def stand(self: Any, ctx: tm.Context, prefix: str, limit: int | None) -> Any:
        self.n = 1
        last = shelf.scan((self.k,), limit=limit, reverse=True)
        begun = shelf.scan(prefix=(self.k, prefix), reverse=True)
        return [[row.word for row in rows] for rows in (last, begun)]

    return app


def cut(rows: list[Any], limit: int | None, reverse: bool) -> list[Any]:
    return sorted(rows, reverse=reverse)[:limit]


@pytest.mark.parametrize("seed", range(3))
def test_scans_give_the_rows_of_a_sorted_list(seed: int) -> None:
    dice, calls, wanted = random.Random(seed), [], []
    words: dict[str, int] = {}
    pairs: dict[tuple[int, str], str] = {}
    shelf: dict[int, set[str]] = {}
    for _ in range(70):
        word, n, tag = dice.choice(TEXTS), dice.randrange(9), dice.choice(TEXTS)
        prefix = dice.choice([text for text in TEXTS if text != LAST])
        limit, reverse = dice.choice([None, 0, 1, 2, 4]), dice.random() < 0.6
        kind = dice.choice(["put", "put", "put", "drop", "look", "look", "stand"])
        reply: Any = None
        if kind == "put":
            words[word], pairs[n % 3, word] = n, tag
            calls.append(("put", {"word": word, "n": n, "tag": tag}))
        elif kind == "drop":
            words.pop(word, None), pairs.pop((n % 3, word), None)
            calls.append(("drop", {"word": word, "n": n}))
        elif kind == "stand":
            stand = shelf.setdefault(n % 3, set())
            stand.add(word)
            begun = [other for other in stand if other.startswith(prefix)]
            reply = [cut([*stand], limit, True), cut(begun, None, True)]
            row = {"k": n % 3, "word": word, "prefix": prefix, "limit": limit}
            calls.append(("shelf.stand", row))
        else:
            words[prefix] = k = n % 3
            words.pop("b", None)
            tags = [(tag, *key) for key, tag in pairs.items()]
            reply = [
                cut([w for w in words if w.startswith(prefix)], limit, reverse),
                cut([w for w in words if "aa" <= w < "é"], limit, reverse),
                cut([w for (of, w) in pairs if of == k and w.startswith(prefix)], limit, reverse),
                [[*p] for p in cut([p for p in pairs if p[0] >= k], limit, reverse)],
                [
                    [*t[1:]]
                    for t in cut([t for t in tags if t[0].startswith(prefix)], limit, reverse)
                ],
                [[*t[1:]] for t in cut([t for t in tags if t[0] >= "a"], limit, reverse)],
            ]
            row = {"prefix": prefix, "k": k, "limit": limit, "reverse": reverse}
            calls.append(("look", row))
        wanted.append(("returned", reply))
    found = is_one(library, calls, seeds=1)
    assert found["replies"] == wanted


def test_prefixes_of_bytes() -> None:
    calls: list[tuple[str, dict[str, Any]]] = [("put_blob", {"blob": blob}) for blob in BYTES]
    wanted: list[Any] = [("returned", None)] * len(BYTES)
    for prefix in (b"", b"a", b"a\xff", b"\xfe\xff", b"x"):
        for reverse in (False, True):
            calls.append(("look_blobs", {"prefix": prefix, "reverse": reverse}))
            kept = [blob for blob in BYTES if blob.startswith(prefix)]
            wanted.append(("returned", cut(kept, None, reverse)))
    assert is_one(library, calls, seeds=1)["replies"] == wanted


def test_prefixes_that_mean_nothing_are_refused() -> None:
    app = tm.App("wrong")
    pairs = app.table("pairs", key=("k", "word"), ordered=True, k=int, word=str)
    totals = app.table("totals", key="id", id=int, n=tm.column(int, default=0))
    events = app.stream("events", id=int, word=str)
    wrong: list[Any] = [
        (lambda: pairs.scan(prefix=1), "does not end with the beginning of a text"),
        (lambda: pairs.scan(prefix=(1, 2)), "does not end with the beginning of a text"),
        (lambda: pairs.scan(prefix=(1, "a", "b")), "a prefix with 3 values"),
        (lambda: pairs.scan(prefix=()), "a prefix with 0 values"),
        (lambda: pairs.scan(1, prefix=(1, "a")), "start and end, or a prefix"),
        (lambda: pairs.scan(prefix=(1, LAST)), "no value comes after"),
    ]

    @app.procedure
    def look(tx: Any, n: int) -> Any:
        return len(wrong[n][0]())

    @app.transaction(events)
    def count(tx: Any, e: Any) -> None:
        totals[e.id].n = pairs.scan(prefix=(e.id, "a")).count()

    @app.transaction(events, name="by_word", out={"n": int})
    def by_word(tx: Any, e: Any) -> Any:
        return {"n": len(pairs.scan(prefix=(e.id, e.word), reverse=True))}

    @app.procedure
    def put(tx: Any, k: int, word: str) -> None:
        pairs.upsert(k=k, word=word)

    assert (count.path, by_word.path) == ("traced", "opaque")
    with app.start() as mill:
        for n, (_, why) in enumerate(wrong):
            with pytest.raises(tm.Fault, match=why):
                mill.call(look, n=n)
        for k, word in ((1, "a"), (1, "ab"), (1, "b"), (2, "a")):
            mill.call(put, k=k, word=word)
        mill.send(events, [{"id": 1, "word": "b"}], wait=True)
        assert mill.table(totals).rows() == [{"id": 1, "n": 2}]
        assert mill.output(by_word).rows() == [{"n": 1}]
