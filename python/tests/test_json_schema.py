"""Replies have the JSON that the OpenAPI document promises."""

from __future__ import annotations

import datetime as dt
import decimal as dec
from typing import Annotated, Any, Literal

import httpx
import jsonschema
import pytest

import tidemill as tm

MOMENT = dt.datetime(2026, 5, 1, 12, 30, tzinfo=dt.UTC)


class Stay(dict[str, Any]):
    """Its JSON is not known."""


CASES: list[tuple[Any, object, Any]] = [
    (dec.Decimal, dec.Decimal("-1.20"), {"type": "string", "format": "decimal"}),
    (dt.datetime, MOMENT, {"type": "string", "format": "date-time"}),
    (bytes, b"\x00\xff", {"type": "string", "pattern": "^0x([0-9a-fA-F]{2})*$"}),
    (tuple[int, ...], (1, 2, 3), {"type": "array", "items": {"type": "integer"}}),
    (
        tuple[str, dec.Decimal],
        ("a", dec.Decimal("1.5")),
        {
            "type": "array",
            "prefixItems": [{"type": "string"}, {"type": "string", "format": "decimal"}],
            "minItems": 2,
            "maxItems": 2,
        },
    ),
    (
        list[dt.datetime] | None,
        [MOMENT],
        {
            "anyOf": [
                {"type": "array", "items": {"type": "string", "format": "date-time"}},
                {"type": "null"},
            ]
        },
    ),
    (Literal["paid", "due"], "due", {"enum": ["paid", "due"]}),
    (Annotated[int, "a count"], 7, {"type": "integer"}),
    (Stay, [1], {}),
]


@pytest.mark.parametrize(("annotation", "value", "expected"), CASES)
def test_a_reply_is_what_its_schema_says(annotation: Any, value: object, expected: Any) -> None:
    app = tm.App("replies")
    guests = app.entity("guests", key="id", id=int, n=tm.column(int, default=0))

    def answer(tx, id: int):
        return value

    def ask(self, ctx):
        return value

    answer.__annotations__["return"] = annotation
    ask.__annotations__["return"] = annotation
    app.procedure(answer)
    guests.function(creates=True)(ask)
    with app.start(http_port=0) as mill:
        paths = httpx.get(f"{mill.url}/openapi.json", timeout=30).json()["paths"]
        for name in ("answer", "guests.ask"):
            response = paths[f"/call/{name}"]["post"]["responses"]["200"]
            schema = response["content"]["application/json"]["schema"]
            assert schema["properties"]["reply"] == expected
            called = httpx.post(f"{mill.url}/call/{name}", json={"id": 1}, timeout=30)
            assert called.status_code == 200, called.text
            jsonschema.validate(called.json(), schema)
            assert "reply" in called.json()


def test_streams_of_private_functions_are_not_in_the_document() -> None:
    app = tm.App("hotel")
    rooms = app.entity("rooms", key="id", id=int, n=tm.column(int, default=0))

    @rooms.function(creates=True, private=True)
    def clean(self, ctx) -> int:
        self.n += 1
        return int(self.n)

    @rooms.function(creates=True)
    def book(self, ctx) -> int:
        return 1

    with app.start(http_port=0) as mill:
        paths = httpx.get(f"{mill.url}/openapi.json", timeout=30).json()["paths"]
        for name in ("rooms.clean", "rooms.clean.aborted", "rooms.nothing"):
            refused = httpx.get(f"{mill.url}/streams/{name}", timeout=30)
            assert refused.status_code == 404
            assert "clean" not in refused.json()["error"].get("help", "")
        wrong = httpx.get(f"{mill.url}/streams/rooms.book?from=x", timeout=30)
        assert (wrong.status_code, wrong.json()["error"]["what"]) == (
            400,
            "the query is not the number of a row",
        )
    with pytest.raises(tm.ResourceError, match="the engine has stopped"):
        mill.call(book, id=1)
    streams = [path for path in paths if path.startswith("/streams/")]
    assert streams == ["/streams/rooms.book", "/streams/rooms.book.aborted"]
