"""A network of namespaces, joined by a switch that drops and delays packets on request.

Each host is a network namespace of Linux with one card, and this process holds the other end of it.
So the packets are real, and the kernel reacts to lost ones as usual. This needs root, ``ip`` and
``/dev/net/tun``, but no modules for queueing disciplines or filters.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import heapq
import multiprocessing
import os
import random
import select
import shutil
import struct
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import IO

#: Of /usr/include/linux/if_tun.h and sched.h.
TUNSETIFF = 0x400454CA
IFF_TAP, IFF_NO_PI = 0x0002, 0x1000
CLONE_NEWNET = 0x40000000

#: Addresses for measurements, which no machine has in the world.
NETWORK = "198.18.77"
FRAME = 65536
#: So many packets wait for their time; further ones are dropped, as a queue of a router drops them.
WAITING_MAX = 20_000


@dataclass(frozen=True)
class Way:
    """The treatment of packets from one host to another."""

    loss: float = 0.0
    delay_s: float = 0.0


CUT = Way(loss=1.0)


def why_not() -> str | None:
    """Why there can be no namespaces here; nothing when there can."""
    if os.geteuid() != 0:
        return "only root may make network namespaces"
    if shutil.which("ip") is None:
        return "the command ip is not installed"
    if not Path("/dev/net/tun").exists():
        return "there is no /dev/net/tun"
    name = f"tm{os.getpid()}"
    try:
        _ip("netns", "add", name)
        _ip("netns", "del", name)
    except subprocess.CalledProcessError as error:
        return f"no namespace can be made: {error.stderr.strip()}"
    return None


def _ip(*args: str) -> None:
    subprocess.run(["ip", *args], check=True, text=True, capture_output=True)


class Network:
    """Namespaces with addresses, and the switch between them."""

    def __init__(self, hosts: int) -> None:
        self.names = [f"tm{os.getpid()}-{n}" for n in range(hosts)]
        self.addresses = [f"{NETWORK}.{n + 1}" for n in range(hosts)]
        cards: list[int] = []
        try:
            for n, name in enumerate(self.names):
                cards.append(self._host(n, name))
            self.pipe, other = multiprocessing.Pipe()
            # A process of its own: packets do not wait for the interpreter of whoever drives it.
            fork = multiprocessing.get_context("fork")
            self.switch = fork.Process(target=_switch, args=(cards, other, self.pipe), daemon=True)
            self.switch.start()
        except BaseException:
            self._remove()
            raise
        finally:
            for card in cards:
                os.close(card)

    def _host(self, n: int, name: str) -> int:
        _ip("netns", "add", name)
        card = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
        device = f"tm{os.getpid() % 100_000}p{n}"
        fcntl.ioctl(card, TUNSETIFF, struct.pack("16sH22x", device.encode(), IFF_TAP | IFF_NO_PI))
        _ip("link", "set", device, "netns", name)
        for words in (
            f"link set {device} address 02:00:00:00:00:{n + 1:02x}",
            f"addr add {self.addresses[n]}/24 dev {device}",
            f"link set {device} up",
            "link set lo up",
        ):
            _ip("-n", name, *words.split())
        return card

    def within(self, host: int) -> list[str]:
        """Returns the prefix of a command that runs on a host."""
        return ["ip", "netns", "exec", self.names[host]]

    @contextlib.contextmanager
    def inside(self, host: int) -> Iterator[None]:
        """Meanwhile this thread, and those that it starts, are on a host."""
        libc = ctypes.CDLL(None, use_errno=True)

        def enter(namespace: IO[bytes]) -> None:
            if libc.setns(namespace.fileno(), CLONE_NEWNET) != 0:
                raise OSError(ctypes.get_errno(), "entering a namespace")

        with (
            Path("/proc/thread-self/ns/net").open("rb") as before,
            Path("/run/netns", self.names[host]).open("rb") as there,
        ):
            enter(there)
            try:
                yield
            finally:
                enter(before)

    def set(self, ways: dict[tuple[int, int], Way]) -> None:
        """Sets the treatment of packets on these ways; on all others they pass."""
        self.pipe.send(ways)
        self.pipe.recv()

    def close(self) -> None:
        """Ends the switch and removes the namespaces."""
        self.pipe.close()
        self.switch.join(5)
        self._remove()

    def _remove(self) -> None:
        for name in self.names:
            subprocess.run(["ip", "netns", "del", name], capture_output=True)


def _switch(cards: list[int], pipe: Connection, other: Connection) -> None:
    """Hands frames on, until nobody drives it any more."""
    other.close()
    ways: dict[tuple[int, int], Way] = {}
    nothing = Way()
    ports = {card: n for n, card in enumerate(cards)}
    waiting: list[tuple[float, int, int, bytes]] = []
    count = 0

    def put(to: int, frame: bytes) -> None:
        # A card whose queue is full loses it.
        with contextlib.suppress(OSError):
            os.write(cards[to], frame)

    poll = select.poll()
    for card in cards:
        poll.register(card, select.POLLIN)
    poll.register(pipe.fileno(), select.POLLIN)
    while True:
        now = time.monotonic()
        while waiting and waiting[0][0] <= now:
            _, _, to, frame = heapq.heappop(waiting)
            put(to, frame)
        wait_ms = max(0.0, (waiting[0][0] - now) * 1e3) if waiting else None
        for fd, _ in poll.poll(wait_ms):
            if fd == pipe.fileno():
                try:
                    ways = pipe.recv()
                    pipe.send(None)
                except (EOFError, OSError):
                    return
                continue
            try:
                frame = os.read(fd, FRAME)
            except OSError:
                continue
            by, last = ports[fd], frame[5]
            is_for_all = frame[0] & 1
            for to in range(len(cards)) if is_for_all else [last - 1]:
                if to == by or not 0 <= to < len(cards):
                    continue
                way = ways.get((by, to), nothing)
                if way.loss and random.random() < way.loss:
                    continue
                if way.delay_s == 0.0:
                    put(to, frame)
                elif len(waiting) < WAITING_MAX:
                    count += 1
                    heapq.heappush(waiting, (time.monotonic() + way.delay_s, count, to, frame))
