"""TPC-C's NewOrder and Payment: functions of districts and warehouses that call others."""

from __future__ import annotations

from typing import Any

from tidemill.app import App
from tidemill.entity import Context
from tidemill.errors import Abort

#: The longest note of a customer with bad credit.
NOTE_MAX = 500


def app() -> App:
    """Returns the app. Amounts are cents, and rates hundredths of a percent.

    >>> len(app().handlers)
    7
    """
    made = App("tpcc")
    warehouse = made.entity("warehouse", key="w", w=int, tax=int, paid=int)
    district = made.entity(
        "district",
        key=("w", "d"),
        partition_prefix=1,
        w=int,
        d=int,
        tax=int,
        paid=int,
        next_order=int,
    )
    customer = made.entity(
        "customer",
        key=("w", "d", "c"),
        partition_prefix=1,
        w=int,
        d=int,
        c=int,
        last=str,
        first=int,
        good=bool,
        discount=int,
        balance=int,
        paid=int,
        payments=int,
        note=str,
    )
    stock = made.entity(
        "stock",
        key=("w", "i"),
        partition_prefix=1,
        w=int,
        i=int,
        quantity=int,
        sold=int,
        orders=int,
        remote=int,
    )
    item = made.table("item", key="i", i=int, price=int)
    orders = made.table(
        "orders",
        key=("w", "d", "o"),
        partition_prefix=1,
        w=int,
        d=int,
        o=int,
        c=int,
        lines=int,
        local=int,
    )
    open_orders = made.table(
        "open_orders", key=("w", "d", "o"), partition_prefix=1, w=int, d=int, o=int
    )
    order_line = made.table(
        "order_line",
        key=("w", "d", "o", "n"),
        partition_prefix=1,
        w=int,
        d=int,
        o=int,
        n=int,
        i=int,
        supplier=int,
        quantity=int,
        amount=int,
    )
    history = made.table(
        "history",
        key=("w", "id"),
        partition_prefix=1,
        w=int,
        id=int,
        d=int,
        cw=int,
        cd=int,
        c=int,
        amount=int,
    )
    by_name = customer.table.index("w", "d", "last", "first")

    @stock.function
    async def take(self: Any, ctx: Context, quantity: int, warehouse: int) -> None:
        left = self.quantity - quantity
        self.quantity = left if left >= 10 else left + 91
        self.sold += quantity
        self.orders += 1
        if self.w != warehouse:
            self.remote += 1

    @customer.function
    async def discount_of(self: Any, ctx: Context) -> int:
        return int(self.discount)

    @warehouse.function
    async def tax_of(self: Any, ctx: Context) -> int:
        return int(self.tax)

    @district.function
    async def new_order(
        self: Any,
        ctx: Context,
        c: int,
        items: list[int],
        suppliers: list[int],
        quantities: list[int],
    ) -> int:
        w, d, number = self.w, self.d, self.next_order
        prices = []
        for i in items:
            row = item[i]
            if not row.exists():
                raise Abort("item number is not valid")
            prices.append(row.price)
        tax, discount = await ctx.gather(warehouse[w].tax_of(), customer[w, d, c].discount_of())
        self.next_order = number + 1
        local = int(all(supplier == w for supplier in suppliers))
        orders.insert(w=w, d=d, o=number, c=c, lines=len(items), local=local)
        open_orders.insert(w=w, d=d, o=number)
        total = 0
        lines = zip(items, suppliers, quantities, prices, strict=True)
        for n, (i, supplier, quantity, price) in enumerate(lines, 1):
            stock[supplier, i].take(quantity, w)
            amount = quantity * price
            total += amount
            order_line.insert(
                w=w, d=d, o=number, n=n, i=i, supplier=supplier, quantity=quantity, amount=amount
            )
        return int(total * (10_000 - discount) // 10_000 * (10_000 + tax + self.tax) // 10_000)

    @district.function
    async def earn(self: Any, ctx: Context, amount: int) -> None:
        self.paid += amount

    @warehouse.function
    async def pay(
        self: Any,
        ctx: Context,
        d: int,
        cw: int,
        cd: int,
        c: int,
        last: str,
        amount: int,
        id: int,
    ) -> int:
        w = self.w
        self.paid += amount
        district[w, d].earn(amount)
        if c == 0:
            named = by_name[cw, cd, last]
            if not named:
                raise Abort("there is no such customer")
            c = named[(len(named) - 1) // 2].c
        balance = await customer[cw, cd, c].owe(w, d, amount)
        history.insert(w=w, id=id, d=d, cw=cw, cd=cd, c=c, amount=amount)
        return int(balance)

    @customer.function
    async def owe(self: Any, ctx: Context, at_w: int, at_d: int, amount: int) -> int:
        self.balance -= amount
        self.paid += amount
        self.payments += 1
        if not self.good:
            note = f"{self.c} {self.d} {self.w} {at_d} {at_w} {amount}|{self.note}"
            self.note = note[:NOTE_MAX]
        return int(self.balance)

    return made
