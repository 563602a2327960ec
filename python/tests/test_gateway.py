"""Clients over HTTP: calls that are executed once, events, and everything that may go wrong."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import json
import os
import random
import re
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from pathlib import Path
from typing import Any

import httpx
import pytest

import tidemill as tm
from tidemill.cli.token import write


class Hotel:
    """Rooms that clients reserve."""

    def __init__(self) -> None:
        app = self.app = tm.App("hotel")
        rooms = self.rooms = app.table("rooms", key="hotel", hotel=str, free=int)
        self.given_back = app.stream("given_back", hotel=str)

        @app.procedure
        def open_hotel(tx, hotel: str, free: int = 1):
            rooms.insert(hotel=hotel, free=free)

        @app.procedure(role="clerk")
        def reserve(tx, hotel: str, n: int = 1):
            tx.require(rooms[hotel].free >= n, "no rooms left")
            rooms[hotel].free -= n
            return {"hotel": hotel, "left": rooms[hotel].free}

        @app.procedure
        def echo(
            tx,
            i: int = 0,
            f: float = 0.0,
            b: bool = False,
            s: str = "",
            y: bytes = b"",
            d: tm.decimal(2) = Decimal("0.00"),  # type: ignore[valid-type]
            t: tm.optional(tm.timestamp) = None,  # type: ignore[valid-type]
            l: tm.list(int) = (),  # type: ignore[valid-type]  # noqa: E741
            a: tm.optional(tm.any) = None,  # type: ignore[valid-type]
        ):
            return [i, f, b, s, y, str(d), None if t is None else t.isoformat(), list(l), a]

        @app.procedure
        def slow(tx, ms: int):
            time.sleep(ms / 1000)
            return ms

        @app.transaction(self.given_back)
        def give_back(tx, e):
            rooms[e.hotel].free += 1
            return dict(hotel=e.hotel)

        self.open_hotel, self.reserve, self.echo = open_hotel, reserve, echo
        self.slow, self.give_back = slow, give_back
        # Other tests check authentication.
        self.clerks, app.roles = app.roles, {}


@pytest.fixture
def hotel() -> Hotel:
    return Hotel()


@pytest.fixture
def mill(hotel: Hotel) -> Iterator[tm.Mill]:
    with hotel.app.start(http_port=0) as mill:
        yield mill


@pytest.fixture
def client(mill: tm.Mill) -> Iterator[tm.Client]:
    assert mill.url is not None
    with tm.Client(mill.url) as client:
        yield client


def test_calls_and_what_they_come_to(hotel: Hotel, client: tm.Client) -> None:
    assert client.call(hotel.open_hotel, hotel="Ritz", free=3) is None
    assert client.call("reserve", hotel="Ritz") == {"hotel": "Ritz", "left": 2}
    with pytest.raises(tm.Abort, match="no rooms left"):
        client.call(hotel.reserve, hotel="Ritz", n=3)
    with pytest.raises(tm.Abort, match="exists already"):
        client.call(hotel.open_hotel, hotel="Ritz")
    assert client.row(hotel.rooms, "Ritz") == {"hotel": "Ritz", "free": 2}
    assert client.row("rooms", "Savoy") is None
    with pytest.raises(tm.ProgramError, match="did you mean 'reserve'"):
        client.call("reserv", hotel="Ritz")
    with pytest.raises(tm.InputError, match="parameter 'n'"):
        client.call(hotel.reserve, hotel="Ritz", n="many")
    with pytest.raises(tm.InputError, match="can't be sent"):
        client.call(hotel.reserve, hotel=object())


def test_values_go_there_and_back(hotel: Hotel, client: tm.Client) -> None:
    at = dt.datetime(2026, 1, 31, 12, 30, tzinfo=dt.timezone(dt.timedelta(hours=1)))
    found = client.call(
        hotel.echo,
        i=-(2**63),
        f=float("inf"),
        b=True,
        s="é\n\x00",
        y=b"\x00\xff",
        d=Decimal("12.5"),
        t=at,
        l=[1, 2],
        a={"x": [1, None, 2.5, "y"]},
    )
    assert found == [
        -(2**63),
        "inf",
        True,
        "é\n\x00",
        "0x00ff",
        "12.50",
        "2026-01-31T11:30:00+00:00",
        [1, 2],
        {"x": [1, None, 2.5, "y"]},
    ]
    assert client.call(hotel.echo) == [0, 0.0, False, "", "0x", "0.00", None, [], None]


def test_a_request_is_executed_once(hotel: Hotel, client: tm.Client) -> None:
    client.call(hotel.open_hotel, hotel="Ritz", free=3)
    once = client.using(request_id="mine")
    first = once.call(hotel.reserve, hotel="Ritz")
    assert [once.call(hotel.reserve, hotel="Ritz") for _ in range(3)] == [first] * 3
    with pytest.raises(tm.InputError, match="that of another call"):
        once.call(hotel.reserve, hotel="Ritz", n=2)
    with pytest.raises(tm.InputError, match="that of another call"):
        once.call(hotel.slow, ms=1)
    assert client.row("rooms", "Ritz") == {"hotel": "Ritz", "free": 2}


def test_who_waits_too_long_may_ask_again(hotel: Hotel, client: tm.Client) -> None:
    with pytest.raises(tm.DeadlineError, match="no reply within") as raised:
        client.using(deadline=0.05).call(hotel.slow, ms=300)
    id = raised.value.request_id
    assert client.using(request_id=id).call(hotel.slow, ms=300) == 300


def test_many_clients_at_once(hotel: Hotel, mill: tm.Mill) -> None:
    mill.call(hotel.open_hotel, hotel="Ritz", free=150)

    def reserve(_: int) -> int:
        with tm.Client(str(mill.url)) as client:
            done = 0
            for _ in range(20):
                try:
                    client.call(hotel.reserve, hotel="Ritz")
                    done += 1
                except tm.Abort:
                    pass
        return done

    with ThreadPoolExecutor(10) as pool:
        assert sum(pool.map(reserve, range(10))) == 150
    assert mill.table("rooms")["Ritz"]["free"] == 0


def test_asynchronous_clients(hotel: Hotel, mill: tm.Mill) -> None:
    async def main() -> list[int]:
        async with tm.AsyncClient(str(mill.url)) as client:
            await client.call(hotel.open_hotel, hotel="Ritz", free=100)
            replies = [client.call(hotel.reserve, hotel="Ritz") for _ in range(50)]
            left = [reply["left"] for reply in await asyncio.gather(*replies)]
            with pytest.raises(tm.Abort):
                await client.call(hotel.reserve, hotel="Ritz", n=51)
            with pytest.raises(tm.DeadlineError):
                await client.using(deadline=0.05, retries=0).call(hotel.slow, ms=300)
            assert await client.row("rooms", "Ritz") == {"hotel": "Ritz", "free": 50}
            assert "/call/reserve" in (await client.openapi())["paths"]
            rows = []
            async for event in client.subscribe(hotel.reserve, after=-1):
                rows.append(event.row)
                if len(rows) == 50:
                    break
            assert rows == list(range(50))
        return left

    assert sorted(asyncio.run(main())) == list(range(50, 100))


def test_a_stream_is_followed_over_a_restart(hotel: Hotel, tmp_path: Path) -> None:
    app = hotel.app
    port = free_port()
    settings = {"data_dir": str(tmp_path / "data"), "http_port": port}
    seen: list[tm.Event] = []
    changed: list[object] = []
    url = f"http://127.0.0.1:{port}"

    def follow() -> None:
        with tm.Client(url, retries=50) as client:
            for event in client.subscribe(hotel.give_back, after=-1):
                seen.append(event)
                if len(seen) == 6:
                    return

    def watch() -> None:
        with tm.Client(url, retries=50) as client:
            for change in client.changes("rooms"):
                changed.append(change)
                if isinstance(change, tm.Cut) and change.changes[0].row == {
                    "hotel": "Ritz",
                    "free": 7,
                }:
                    return

    threads = [threading.Thread(target=target, daemon=True) for target in (follow, watch)]
    for thread in threads:
        thread.start()
    for run in range(2):
        with app.start(**settings) as mill:
            if run == 0:
                mill.call(hotel.open_hotel, hotel="Ritz")
            while not any(isinstance(change, tm.Reset) for change in changed[-2:]):
                time.sleep(0.01)
            for _ in range(3):
                mill.send(hotel.given_back, {"hotel": ["Ritz"]}, wait=True)
            while len(seen) < 3 * (run + 1):
                time.sleep(0.01)
            if run == 1:
                for thread in threads:
                    thread.join(20)
    assert [event.row for event in seen] == list(range(6))
    assert not any(thread.is_alive() for thread in threads)
    last = changed[-1]
    assert isinstance(last, tm.Cut)
    assert last.changes == [tm.Change(("Ritz",), {"hotel": "Ritz", "free": 7})]


def test_who_was_away_goes_on_behind_a_snapshot(hotel: Hotel, tmp_path: Path) -> None:
    settings = {"data_dir": str(tmp_path / "data"), "http_port": 0, "tail_rows": 4}
    for run in range(2):
        with hotel.app.start(**settings) as mill, tm.Client(str(mill.url)) as client:
            if run == 0:
                mill.call(hotel.open_hotel, hotel="Ritz")
            else:
                # Of before the stop, which has left a snapshot.
                events = client.subscribe(hotel.give_back, after=0)
                assert [next(events).row for _ in range(2)] == [1, 2]
            mill.send(hotel.given_back, {"hotel": ["Ritz"] * 3}, wait=True)
    with hotel.app.start(**settings) as mill, tm.Client(str(mill.url)) as client:
        events = client.subscribe(hotel.give_back, after=1)
        assert [next(events).row for _ in range(4)] == [2, 3, 4, 5]
        with pytest.raises(tm.GoneError) as raised:
            next(client.subscribe(hotel.give_back, after=0))
        assert raised.value.first == 2


def test_events_that_are_gone_are_not_passed_over(hotel: Hotel) -> None:
    with hotel.app.start(http_port=0, tail_rows=3) as mill, tm.Client(str(mill.url)) as client:
        mill.call(hotel.open_hotel, hotel="Ritz")
        mill.send(hotel.given_back, {"hotel": ["Ritz"] * 5}, wait=True)
        with pytest.raises(tm.GoneError) as raised:
            next(client.subscribe("give_back", after=-1))
        assert raised.value.first == 2
        assert next(client.subscribe("give_back", after=1)).row == 2
        with pytest.raises(tm.ProgramError, match="did you mean 'give_back'"):
            next(client.subscribe("give_bak"))


def test_who_is_let_in(hotel: Hotel, tmp_path: Path) -> None:
    tokens = tmp_path / "tokens.toml"
    clerk, guest = write(tokens, "ann", ["clerk"]), write(tokens, "bob", [])
    assert (tokens.stat().st_mode & 0o777) == 0o600
    assert clerk not in tokens.read_text()
    hotel.app.roles = hotel.clerks
    roles = {"tables/rooms": "clerk"}
    settings: dict[str, Any] = {"http_port": 0, "http_tokens": tokens, "http_roles": roles}
    with hotel.app.start(**settings) as mill:
        url = str(mill.url)
        mill.call(hotel.open_hotel, hotel="Ritz", free=9)
        with tm.Client(url, token=clerk) as client:
            assert client.using(request_id="1").call(hotel.reserve, hotel="Ritz")["left"] == 8
            assert client.row("rooms", "Ritz") is not None
        with tm.Client(url, token=guest) as client:
            for refused in (
                lambda: client.call(hotel.reserve, hotel="Ritz"),
                lambda: client.row("rooms", "Ritz"),
                lambda: next(client.changes("rooms")),
            ):
                with pytest.raises(tm.AccessError, match="bob may not use"):
                    refused()
            # Ids are a client's own.
            assert client.using(request_id="1").call(hotel.slow, ms=1) == 1
        for client, words in (
            (tm.Client(url), "Authorization: Bearer TOKEN"),
            (tm.Client(url, token="guess"), "start it again after a change"),
        ):
            with client, pytest.raises(tm.AccessError, match="token") as caught:
                client.call(hotel.slow, ms=1)
            assert words in caught.value.help
        bob = {"Authorization": f"Bearer {guest}"}
        for path, headers in (("tables/rooms/rows", bob), ("streams/given_back", {})):
            found = httpx.get(f"{url}/{path}", headers=headers).json()["error"]
            assert found["kind"] == "AccessError"
        assert httpx.get(f"{url}/health").json()["ready"]
    with pytest.raises(tm.SettingError, match="needs the role clerk, and there are no tokens"):
        hotel.app.start(http_port=0)
    with pytest.raises(tm.SettingError, match="there is no tables/room"):
        hotel.app.start(**settings | {"http_roles": {"tables/room": "clerk"}})


def test_strangers_need_tokens_and_a_certificate(hotel: Hotel, tmp_path: Path) -> None:
    tokens = tmp_path / "tokens.toml"
    write(tokens, "ann", [])
    cert, key = certificate(tmp_path)
    for more in ({}, {"http_tokens": tokens}, {"http_cert": cert, "http_key": key}):
        with pytest.raises(tm.SettingError, match="needs tokens and a certificate"):
            hotel.app.start(http_port=0, http_host="0.0.0.0", **more)
    for more, match in (
        ({"http_cert": cert}, "belong together"),
        ({"http_cert": key, "http_key": cert}, "certificate"),
        ({"http_host": "example.org"}, "not an address"),
        ({"http_tokens": tmp_path / "none"}, "none"),
        ({"http_prot": 1}, "did you mean 'http_port'"),
    ):
        with pytest.raises((tm.SettingError, tm.IoError), match=match):
            hotel.app.start(http_port=0, **more)


def test_https(hotel: Hotel, tmp_path: Path) -> None:
    cert, key = certificate(tmp_path)
    tokens = tmp_path / "tokens.toml"
    token = write(tokens, "ann", [])
    settings: dict[str, Any] = {"http_cert": cert, "http_key": key, "http_tokens": tokens}
    with hotel.app.start(http_port=0, http_host="0.0.0.0", **settings) as mill:
        url = str(mill.url).replace("0.0.0.0", "127.0.0.1")
        assert url.startswith("https://")
        trusts = ssl.create_default_context(cafile=str(cert))
        with tm.Client(url, token=token, verify=trusts) as client:
            assert client.call(hotel.slow, ms=1) == 1
        with (
            tm.Client(url, token=token, deadline=1, retries=1) as client,
            pytest.raises(tm.IoError, match="certificate"),
        ):
            client.call(hotel.slow, ms=1)
        # Plain words to a port that wants others.
        plain = socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2])))
        plain.sendall(b"GET /health HTTP/1.1\r\n\r\n")
        assert b"HTTP" not in plain.recv(100)


def test_hostile_input_harms_nobody(hotel: Hotel) -> None:
    settings = {"http_port": 0, "http_idle_us": 200_000, "http_body_bytes_max": 4096}
    with hotel.app.start(**settings) as mill:
        url = httpx.URL(str(mill.url))
        address = (url.host, url.port or 80)
        post = b"POST /call/slow HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        whole = post + b'Content-Length: 8\r\n\r\n{"ms":1}'
        dice = random.Random(1)
        for _ in range(300):
            kind = dice.randrange(4)
            if kind == 0:
                sent = dice.randbytes(dice.randrange(1, 400))
            elif kind == 1:
                sent = whole[: dice.randrange(len(whole))]
            elif kind == 2:
                damaged = bytearray(whole)
                for _ in range(dice.randrange(1, 5)):
                    damaged[dice.randrange(len(damaged))] = dice.randrange(256)
                sent = bytes(damaged)
            else:
                sent = post + b"Content-Length: 5000\r\n\r\n" + dice.randbytes(100)
            with socket.create_connection(address) as there:
                there.sendall(sent)
                if dice.random() < 0.3:
                    there.settimeout(10)
                    with contextlib.suppress(ConnectionError):
                        while there.recv(4096):
                            pass
        with httpx.Client(base_url=url) as http:
            assert http.get("/health").status_code == 200
            large = http.post("/call/slow", json={"ms": 1, "x": "y" * 5000})
            assert large.status_code == 413
            # Byte by byte, and too slowly.
            with socket.create_connection(address) as there:
                there.settimeout(10)
                heard = b""
                try:
                    for byte in whole:
                        there.sendall(bytes([byte]))
                        time.sleep(0.02)
                    heard = there.recv(100)
                except (ConnectionError, TimeoutError):
                    pass
                assert not heard or heard.startswith((b"HTTP/1.1 408", b"HTTP/1.1 4"))
        with tm.Client(str(url)) as client:
            assert client.call(hotel.slow, ms=1) == 1
            metrics = httpx.get(f"{url}/metrics").text
            assert re.search(r"^tidemill_http_calls_waiting 0$", metrics, re.MULTILINE)


def test_a_client_that_leaves_leaves_its_call(hotel: Hotel, mill: tm.Mill) -> None:
    url = httpx.URL(str(mill.url))
    body = json.dumps({"hotel": "Left", "free": 2}).encode()
    with socket.create_connection((url.host, url.port or 80)) as there:
        there.sendall(
            b"POST /call/open_hotel HTTP/1.1\r\nHost: localhost\r\n"
            b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)
        )
        while not mill.sent("open_hotel.calls"):
            time.sleep(0.001)
    mill.drain()
    assert mill.table("rooms")["Left"]["free"] == 2


def test_there_is_room_for_so_many_calls(hotel: Hotel) -> None:
    with hotel.app.start(http_port=0, http_calls_max=2) as mill:
        with ThreadPoolExecutor(12) as pool, tm.Client(str(mill.url)) as client:
            # Calls without room are refused, retried, and executed.
            assert list(pool.map(lambda ms: client.call(hotel.slow, ms=ms), [20] * 12)) == [20] * 12
        metrics = httpx.get(f"{mill.url}/metrics").text
        found = re.search(r"^tidemill_http_calls_refused_total (\d+)$", metrics, re.MULTILINE)
        assert found is not None
        assert int(found[1]) > 0


def test_the_document_is_an_openapi_document(hotel: Hotel, client: tm.Client) -> None:
    from openapi_spec_validator import validate

    document = client.openapi()
    validate(document)
    reserve = document["paths"]["/call/reserve"]["post"]["requestBody"]["content"]
    schema = reserve["application/json"]["schema"]
    assert schema["required"] == ["hotel"]
    assert schema["properties"]["n"]["default"] == 1
    assert {"/health", "/metrics", "/streams/give_back", "/tables/rooms/rows"} <= set(
        document["paths"]
    )


def examples(schema: dict[str, Any], dice: random.Random) -> Any:
    """A value that a schema allows, as often as not at a border."""
    if "anyOf" in schema:
        return examples(dice.choice(schema["anyOf"]), dice)
    if "enum" in schema:
        return dice.choice(schema["enum"])
    match schema.get("type"):
        case "integer":
            low, high = schema["minimum"], schema["maximum"]
            return dice.choice([0, 1, -1, 7, low, high, dice.randint(low, high)])
        case "number":
            return dice.choice([0, -0.0, 1e300, 0.1, -5])
        case "boolean":
            return dice.random() < 0.5
        case "null":
            return None
        case "array":
            return [examples(schema["items"], dice) for _ in range(dice.randrange(4))]
        case "object":
            fields = schema["properties"].items()
            needed = schema.get("required", [])
            return {n: examples(s, dice) for n, s in fields if n in needed or dice.random() < 0.7}
        case "string" if schema.get("format") == "date-time":
            return dice.choice(["2026-01-31T12:00:00Z", "1970-01-01T00:00:00.000001+02:00"])
        case "string" if "x" in schema.get("pattern", ""):
            return dice.choice(["0x", "0x00ff"])
        case "string" if "pattern" in schema:
            return dice.choice(["0", "-1.5", "12.25"])
        case "string":
            return dice.choice(["", "a", "é\u0000\n", "𝄞" * 3, "x" * 300])
    return dice.choice([None, 1, "x", [1, {"y": None}], {"z": 2.5}])


def test_whatever_the_document_allows_is_answered_as_it_says(
    hotel: Hotel, client: tm.Client, mill: tm.Mill
) -> None:
    dice = random.Random(2)
    document = client.openapi()
    with httpx.Client(base_url=str(mill.url)) as http:
        for path, methods in document["paths"].items():
            if "post" not in methods or path == "/call/slow":
                continue
            operation = methods["post"]
            schema = operation["requestBody"]["content"]["application/json"]["schema"]
            for n in range(120):
                body = examples(schema, dice)
                if allowed := n % 3 > 0:
                    sent = json.dumps(body)
                else:
                    # And what it does not allow.
                    wrong: dict[str, Any] = dict(body)
                    wrong[dice.choice([*schema["properties"], "unknown"])] = {
                        "no": [object.__name__]
                    }
                    sent = json.dumps(wrong if dice.random() < 0.7 else [body])
                answer = http.post(path, content=sent, headers={"content-type": "application/json"})
                assert str(answer.status_code) in operation["responses"], (path, sent)
                if allowed:
                    assert answer.status_code in (200, 409), (path, sent, answer.text)
                assert isinstance(answer.json(), dict)
        for path in ("/health", "/metrics", "/tables/rooms/rows?key=Ritz", "/openapi.json"):
            assert http.get(path).status_code == 200
            assert http.request("BREW", path).status_code in (405, 501)


def texts(schema: dict[str, Any], dice: random.Random) -> list[str]:
    """Returns valid and invalid values of a parameter, as the texts that a client sends."""
    wrong = [
        "",
        "-1",
        "x",
        "1.5",
        "9" * 30,
        "é",
        "1,2",
        " 1",
        "null",
        "x" * 3000,
        "'; --",
        "%",
        "&=",
    ]
    if dice.random() < 0.3:
        return [dice.choice(wrong) for _ in range(dice.choice([1, 1, 1, 0, 2, 3]))]
    if schema["type"] == "array":
        count = dice.randint(schema["minItems"], schema.get("maxItems", 4))
        return [dice.choice(["Ritz", "1", "-5", "Sävoy"]) for _ in range(count)]
    if schema["type"] == "integer":
        low = schema["minimum"]
        return [str(dice.choice([low, low + 1, 1000, schema.get("maximum", 2**53)]))]
    return [dice.choice(["1", "0", "17", "a-b", "x" * schema.get("maxLength", 20)])]


def test_whatever_parameters_come_the_answer_is_one_of_the_documents(
    hotel: Hotel, client: tm.Client, mill: tm.Mill
) -> None:
    dice = random.Random(3)
    seen = set()
    with httpx.Client(base_url=str(mill.url), timeout=30) as http:
        for path, methods in client.openapi()["paths"].items():
            for method, operation in methods.items():
                if path == "/call/slow":
                    continue
                for _ in range(60):
                    query: list[tuple[str, str]] = []
                    headers: list[tuple[str, bytes]] = []
                    for parameter in operation.get("parameters", []):
                        if not parameter.get("required") and dice.random() < 0.4:
                            continue
                        for text in texts(parameter["schema"], dice):
                            if parameter["in"] == "query":
                                query.append((parameter["name"], text))
                            else:
                                headers.append((parameter["name"], text.strip().encode()))
                    if dice.random() < 0.1:
                        query.append(("unknown", "1"))
                    body = {}
                    if method == "post":
                        of = operation["requestBody"]["content"]["application/json"]["schema"]
                        body = {"json": examples(of, dice)}
                    sent = (method, path, query, headers)
                    # Of events only the beginning is read: they have no end.
                    with http.stream(method, path, params=query, headers=headers, **body) as answer:
                        meant = operation["responses"].get(str(answer.status_code))
                        assert meant is not None, (sent, answer.status_code)
                        kind = answer.headers["content-type"].split(";")[0]
                        assert kind in meant["content"], (sent, kind)
                        if kind == "application/json":
                            answer.read()
                            assert isinstance(answer.json(), dict), (sent, answer.text)
                        seen.add((method, answer.status_code))
        assert http.get("/health").json()["ready"]
    assert seen >= {("get", 200), ("get", 400), ("post", 200), ("post", 400)}, seen


APP = """
import tidemill as tm

app = tm.App("counter")
counts = app.table("counts", key="name", name=str, n=tm.column(int, default=0))

@app.procedure
def count(tx, name: str):
    counts[name].n += 1
    return counts[name].n
"""


def test_a_served_app_is_killed_and_no_call_is_lost_or_done_twice(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(APP)
    port = free_port()
    command = [sys.executable, "-m", "tidemill.cli", "run", "app.py", "--http", str(port)]

    def start() -> subprocess.Popen[str]:
        return subprocess.Popen(command, cwd=tmp_path, text=True, stdout=subprocess.PIPE)

    running = start()
    replies: dict[int, list[int]] = {worker: [] for worker in range(4)}

    def ask(worker: int) -> None:
        with tm.Client(f"http://127.0.0.1:{port}", deadline=120, retries=10_000) as client:
            for _ in range(60):
                replies[worker].append(client.call("count", name=str(worker)))

    workers = [threading.Thread(target=ask, args=(worker,), daemon=True) for worker in replies]
    for worker in workers:
        worker.start()
    for done in (30, 90, 150):
        while sum(map(len, replies.values())) < done:
            time.sleep(0.001)
        running.send_signal(signal.SIGKILL)
        running.wait()
        running = start()
    for worker in workers:
        worker.join(100)
    with tm.Client(f"http://127.0.0.1:{port}") as client:
        for worker in range(4):
            assert replies[worker] == list(range(1, 61)), f"client {worker}"
            assert client.row("counts", str(worker)) == {"name": str(worker), "n": 60}
    running.send_signal(signal.SIGTERM)
    out, _ = running.communicate(timeout=60)
    assert running.returncode == 0
    assert f"http  http://127.0.0.1:{port}" in out


def test_an_app_that_is_asked_nothing_is_refused(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(APP)
    command = [sys.executable, "-m", "tidemill.cli", "run", "app.py"]
    ended = subprocess.run(command, cwd=tmp_path, text=True, capture_output=True)
    assert ended.returncode == 1
    assert "--http" in ended.stderr


def test_tokens_are_made_at_the_command_line(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tidemill.cli", "token", "tokens.toml", "ann"]
    made = subprocess.run(
        [*command, "--role", "clerk"], cwd=tmp_path, text=True, capture_output=True, check=True
    )
    assert made.stdout.startswith("tm_")
    text = (tmp_path / "tokens.toml").read_text()
    assert 'roles = ["clerk"]' in text
    again = subprocess.run(command, cwd=tmp_path, text=True, capture_output=True, check=True)
    assert again.stdout != made.stdout
    assert (tmp_path / "tokens.toml").read_text().count("sha256") == 1


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])


def certificate(folder: Path) -> tuple[Path, Path]:
    """A certificate for this machine, and its key."""
    cert, key = folder / "cert.pem", folder / "key.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]
        + ["-nodes", "-days", "1", "-subj", "/CN=localhost"]
        + ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(cert)],
        check=True,
        capture_output=True,
        env={**os.environ},
    )
    return cert, key


def test_a_thousand_strangers_keep_nobody_out(tmp_path: Path, hotel: Hotel) -> None:
    """Each has a connection and no token, and sends as slowly as he may."""
    resource = pytest.importorskip("resource")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 4096 if hard == resource.RLIM_INFINITY else min(hard, 4096)
    if wanted < 3000:
        pytest.skip("too few files may be open")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
    tokens = tmp_path / "tokens.toml"
    token = write(tokens, "ann", [])
    try:
        with (
            hotel.app.start(http_port=0, http_tokens=tokens) as mill,
            contextlib.ExitStack() as ends,
        ):
            assert mill.url is not None
            host, port = mill.url.removeprefix("http://").split(":")
            head = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n"
            for n in range(1024):
                stranger = ends.enter_context(socket.create_connection((host, int(port))))
                with contextlib.suppress(OSError):
                    stranger.sendall([b"", head, head + b"\r\n", b"G"][n % 4])
            with tm.Client(mill.url, token=token) as client:
                for _ in range(20):
                    client.call(hotel.echo)
                    assert httpx.get(f"{mill.url}/health").status_code == 200
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
