"""The promises of docs/guides/kafka.md that need no broker."""

from __future__ import annotations

from typing import Any

import pytest

import tidemill as tm

#: Nobody listens there.
AT: dict[str, Any] = {"brokers": "127.0.0.1:1", "timeout": 0.05}


def reading(column: object = int, **options: Any) -> tm.Error:
    """Why an app does not start that reads a topic."""
    app = tm.App("reads")
    app.stream("events", n=column).read(tm.kafka("t", **AT, **options))
    with pytest.raises(tm.Error) as caught:
        app.start()
    assert "test_promises_kafka.py" in str(caught.value), "it names the user's line"
    return caught.value


def writing(**options: Any) -> tm.Error:
    """Why an app does not start that writes a topic."""
    app = tm.App("writes")
    events = app.stream("events", n=int)

    @app.transaction(events)
    def copy(tx, e):
        return dict(n=e.n)

    copy.write(tm.kafka("t", **AT, **options))
    with pytest.raises(tm.Error) as caught:
        app.start()
    return caught.value


#: What to say instead of a property that the promises hang on.
TAKEN = {
    "bootstrap.servers": "brokers=",
    "group.id": "no group is joined",
    "enable.auto.commit": "the data directory has the position",
    "auto.offset.reset": "begin=",
    "isolation.level": "uncommitted messages are not read",
    "acks": "all replicas",
    "enable.idempotence": "each once",
    "enable.gapless.guarantee": "none missing",
    "message.timeout.ms": "undeliverable messages wait",
    "max.in.flight.requests.per.connection": "",
    "transactional.id": "transactions=True",
    "partitioner": "the key",
}


@pytest.mark.parametrize("name", TAKEN)
def test_properties_that_promises_hang_on_can_not_be_chosen(name: str) -> None:
    for error in (reading(properties={name: "1"}), writing(properties={name: "1"})):
        assert isinstance(error, tm.SettingError)
        assert f"{name} can't be set" in error.what
        assert error.help
        assert TAKEN[name] in error.help


def test_properties_that_librdkafka_does_not_know_are_named() -> None:
    assert "no.such = 1 is refused" in reading(properties={"no.such": 1}).what
    # Valid settings reach the broker.
    assert isinstance(reading(properties={"client.id": "x"}), tm.IoError)


FITS: dict[str, tuple[object, ...]] = {
    "timestamp": (tm.timestamp, int, tm.optional(int)),
    "partition": (int, tm.optional(int)),
    "offset": (int,),
    "key": (str, bytes, int),
    "header:who": (str, bytes),
    "value": (str, bytes),
}


@pytest.mark.parametrize("what", FITS)
def test_what_stands_beside_a_value_fits_its_column(what: str) -> None:
    for column in FITS[what]:
        assert isinstance(reading(column, meta={"n": what}), tm.IoError), column
    if what in ("timestamp", "partition", "offset"):
        for column in (str, bytes, float, *([] if what == "timestamp" else [tm.timestamp])):
            error = reading(column, meta={"n": what})
            assert isinstance(error, tm.SettingError), column
            assert f"can't hold the message's {what}" in error.what


def test_keys_and_headers_are_refused_before_anything_is_sent() -> None:
    assert "no column 'm'" in writing(key="m").what
    assert "tidemill-id can't be set" in writing(headers={"tidemill-id": "x"}).what
    assert isinstance(writing(key="n", headers={"who": "x"}), tm.IoError)
