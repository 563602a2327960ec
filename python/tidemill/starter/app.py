"""Reservations of seats: each request is a transaction, in the order of its time.

tidemill run app.py --fresh       # runs the requests of data/requests.csv
tidemill query seats              # shows the table
python -m unittest                # tests it
"""

from pathlib import Path
from typing import Any

import tidemill as tm

HERE = Path(__file__).parent

app = tm.App("NAME")

seats = app.table("seats", key="show", show=str, left=tm.column(int, default=3))

requests = app.stream("requests", time="at", at=tm.timestamp, show=str, guest=str, seats=int)


@app.transaction(requests)
def reserve(tx: Any, e: Any) -> dict[str, object]:
    show = seats[e.show]
    tx.require(e.seats > 0, "ask for at least one seat")
    tx.require(show.left >= e.seats, "sold out")
    show.left -= e.seats
    return dict(at=e.at, show=e.show, guest=e.guest, left=show.left)


requests.read(tm.files(HERE / "data/requests.csv"), out_of_orderness="1m")
reserve.write(tm.files("out/reservations.csv"))
reserve.aborted.write(tm.files("out/refused.csv"))
