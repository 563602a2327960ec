"""Order routing beside OLTP over one set of tables (S-Store, figure 1).

Orders arrive on a stream. A procedure checks that the customer has the money and puts it on hold. A
second one chooses the exchange, by its recent confirmations of the security. Together they are one
nested transaction, so that no order is on hold without an exchange. Exchanges answer on another
stream: a confirmed order is paid, and a denied one returns the money. Meanwhile clients call
procedures on the same tables, to deposit money and to see their orders.

    python examples/routing.py

At any moment, all money of a customer is free, on hold or paid. The last lines of the output show
this.
"""

from __future__ import annotations

import random
from decimal import Decimal
from typing import Annotated, Any

import tidemill as tm

Money = Annotated[Decimal, tm.decimal(2)]
VENUES = ("north", "south", "west")

app = tm.App("routing", seed=1)

customers = app.table(
    "customers", key="id", id=int, deposited=Money, free=Money, held=Money, paid=Money
)
orders = app.table(
    "orders", key="id", id=int, customer=int, security=str, amount=Money, venue=str, state=str
)
of_customer = orders.index("customer")

# The recent answers of venues about each security: confirmed and denied orders.
tried = app.table(
    "tried",
    key=("security", "venue"),
    ordered=True,
    security=str,
    venue=str,
    confirmed=tm.column(int, default=0),
    denied=tm.column(int, default=0),
)

placed = app.stream("placed", id=int, customer=int, security=str, amount=Money)
covered = app.stream("covered", id=int, security=str)
routed = app.stream("routed", id=int, security=str, venue=str)
answers = app.stream("answers", id=int, confirmed=bool)


@app.procedure(placed)
def check_and_hold(tx: tm.Tx, placed: list[Any]) -> None:
    """Puts an order's money on hold, or refuses the order."""
    for order in placed:
        customer = customers[order.customer]
        tx.require(order.amount > 0, "the amount is not positive")
        tx.require(customer.exists(), "no such customer")
        tx.require(customer.free >= order.amount, "insufficient funds")
        customer.free -= order.amount
        customer.held += order.amount
        orders.insert(
            id=order.id, customer=order.customer, security=order.security,
            amount=order.amount, venue="", state="held",
        )  # fmt: skip
        tx.emit(covered, id=order.id, security=order.security)


@app.procedure(covered)
def choose_venue(tx: tm.Tx, covered: list[Any]) -> None:
    """Sends an order to the venue with the most confirmations; sometimes to another one, to
    explore.
    """
    for order in covered:
        score = dict.fromkeys(VENUES, 0.5)
        for row in tried.scan((order.security,), (order.security + "\0",)):
            score[row.venue] = (row.confirmed + 1) / (row.confirmed + row.denied + 2)
        best = max(VENUES, key=lambda venue: score[venue])
        if tx.random() < 0.1:
            best = VENUES[int(tx.random() * len(VENUES))]
        orders[order.id].venue, orders[order.id].state = best, "routed"
        tx.emit(routed, id=order.id, security=order.security, venue=best)


app.nested("route", check_and_hold, choose_venue)


@app.transaction(answers, opaque=True)
def update_order(tx: tm.Tx, answer: Any) -> None:
    """Processes the answer of an exchange: the order is paid, or its money is free again."""
    order = orders[answer.id]
    tx.require(order.exists() and order.state == "routed", "no such order is on its way")
    customer, row = customers[order.customer], tried[order.security, order.venue]
    customer.held -= order.amount
    if answer.confirmed:
        customer.paid += order.amount
        row.confirmed += 1
    else:
        customer.free += order.amount
        row.denied += 1
    order.state = "confirmed" if answer.confirmed else "denied"


@app.procedure
def deposit(tx: tm.Tx, customer: int, amount: Money) -> str:
    """Deposits a client's money."""
    tx.require(amount > 0, "the amount is not positive")
    row = customers[customer]
    if not row.exists():
        row = customers.insert(id=customer, deposited=0, free=0, held=0, paid=0)
    row.deposited += amount
    row.free += amount
    return str(row.free)


@app.procedure
def my_orders(tx: tm.Tx, customer: int) -> dict[str, Any]:
    """Returns a client's orders, consistent with the client's money."""
    row = customers[customer]
    tx.require(row.exists(), "no such customer")
    found = [{"id": o.id, "state": o.state, "venue": o.venue} for o in of_customer[customer]]
    return {"free": str(row.free), "held": str(row.held), "orders": found}


def exchange(rows: list[dict[str, Any]], dice: random.Random) -> list[dict[str, Any]]:
    """Simulates the exchanges: each is good at a different security."""
    good = dict(zip(("iron", "wheat", "wool"), VENUES, strict=True))
    chance = [0.9 if good[row["security"]] == row["venue"] else 0.3 for row in rows]
    return [
        {"id": row["id"], "confirmed": dice.random() < c}
        for row, c in zip(rows, chance, strict=True)
    ]


def main(rounds: int = 40, **settings: Any) -> dict[str, Any]:
    """Runs a mix of orders, answers and calls; returns a summary."""
    dice, seen, number = random.Random(5), 0, 0
    looked: dict[str, Any] = {"orders": []}
    with app.start(**settings) as mill:
        for customer in range(20):
            mill.call(deposit, customer=customer, amount=1000)
        for _ in range(rounds):
            some = []
            for _ in range(25):
                number += 1
                some.append(
                    {
                        "id": number,
                        "customer": dice.randrange(21),
                        "security": dice.choice(("iron", "wheat", "wool")),
                        "amount": dice.randrange(-5, 200),
                    }
                )
            mill.send(placed, some)
            mill.call(deposit, customer=dice.randrange(20), amount=dice.randrange(1, 300))
            mill.drain()
            sent = mill.output(routed).rows()[seen:]
            seen += len(sent)
            mill.send(answers, exchange(sent, dice))
            looked = mill.call(my_orders, customer=3)
        mill.drain()
        held = list(mill.table("customers").rows())
        states = [row["state"] for row in mill.table("orders").rows()]
        best = {
            row["security"]: row["venue"]
            for row in sorted(mill.table("tried").rows(), key=lambda row: row["confirmed"])
        }
        return {
            "orders": number,
            "refused": len(mill.output(check_and_hold.aborted).rows()),
            "confirmed": states.count("confirmed"),
            "denied": states.count("denied"),
            "best_venues": best,
            "orders_of_customer_3": len(looked["orders"]),
            "deposited": str(sum(row["deposited"] for row in held)),
            "free_held_paid": str(sum(row["free"] + row["held"] + row["paid"] for row in held)),
        }


if __name__ == "__main__":
    for name, value in main().items():
        print(f"{name:22} {value}")
