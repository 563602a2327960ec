"""Controls the servers that tests run beside.

The servers are killed and started. Topics of the broker are created and extended by its protocol,
because its own tools start a Java each time.
"""

from __future__ import annotations

import os
import socket
import struct
import time
from pathlib import Path

CREATE_TOPICS, ALTER_CONFIGS, CREATE_PARTITIONS = 19, 33, 37
#: What is said while a broker that was started again is not yet taken back.
NOBODY = 38
#: How long an answer may take, in seconds.
WAIT = 60


def brokers() -> str:
    """Where the broker is that servers/run.py has started."""
    return os.environ["SERVERS_KAFKA"]


def control(server: str, deed: str) -> None:
    """Has a server killed, suspended, resumed or started again; waits until it is done."""
    # Tests beside this one would find it away.
    assert "PYTEST_XDIST_WORKER" not in os.environ, "mark the test that controls servers `alone`"
    path = Path(os.environ[f"SERVERS_{server}_CONTROL"]) / deed
    path.write_text("")
    while path.exists():
        time.sleep(0.01)


def _text(text: str) -> bytes:
    return struct.pack(">h", len(text)) + text.encode()


def _receive(peer: socket.socket, count: int) -> bytes:
    found = b""
    while len(found) < count:
        part = peer.recv(count - len(found))
        if not part:
            raise ConnectionError("the broker has closed the connection")
        found += part
    return found


def _ask(api: int, version: int, name: str, body: bytes) -> None:
    """Asks for one change of one topic; an error where it is not made."""
    until = time.monotonic() + WAIT
    while (error := _try(api, version, name, body)) == NOBODY and time.monotonic() < until:
        time.sleep(0.1)
    assert error == 0, f"topic {name}: the broker says error {error}"


def _try(api: int, version: int, name: str, body: bytes) -> int:
    # One topic; at the end the time it may take, and that it is not only tried.
    request = struct.pack(">i", 1) + _text(name) + body + struct.pack(">i?", WAIT * 1000, False)
    answer = _answer(api, version, request)
    # Behind the topic's name.
    (length,) = struct.unpack_from(">h", answer)
    return int(struct.unpack_from(">h", answer, 2 + length)[0])


def _answer(api: int, version: int, body: bytes) -> bytes:
    """Returns the broker's reply without its header: the request's number, the throttle time, and
    the number of answers, which is one.
    """
    host, port = brokers().rsplit(":", 1)
    request = struct.pack(">hhi", api, version, 1) + _text("tests") + body
    with socket.create_connection((host, int(port)), timeout=WAIT) as peer:
        peer.sendall(struct.pack(">i", len(request)) + request)
        return _receive(peer, struct.unpack(">i", _receive(peer, 4))[0])[12:]


def configure(name: str, key: str, value: str) -> None:
    """Has a topic have this property, and no other one."""
    topic = struct.pack(">ib", 1, 2) + _text(name) + struct.pack(">i", 1)
    body = topic + _text(key) + _text(value) + struct.pack(">?", False)
    (error,) = struct.unpack_from(">h", _answer(ALTER_CONFIGS, 1, body))
    assert error == 0, f"topic {name}: the broker says error {error}"


def create(name: str, partitions: int) -> None:
    """Makes a topic; nobody says where replicas are or how it is configured."""
    _ask(CREATE_TOPICS, 2, name, struct.pack(">ihii", partitions, 1, 0, 0))


def grow(name: str, partitions: int) -> None:
    """Has a topic have so many partitions."""
    _ask(CREATE_PARTITIONS, 0, name, struct.pack(">ii", partitions, -1))
