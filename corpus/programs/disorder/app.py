"""Rows out of order: which of them are late, and where those stand that are admitted, follows from
the files alone."""

import tidemill as tm

UNIX = {"at": "unix_us"}

app = tm.App("disorder")
sums = app.table("sums", key="k", k=int, n=tm.column(int, default=0))
orders = app.stream("orders", time="at", at=tm.timestamp, row=int, k=int, n=int)
orders.read(tm.files("in/orders.csv", formats=UNIX), out_of_orderness="20us")
prices = app.stream("prices", time="at", late="admit", at=tm.timestamp, row=int, k=int, n=int)
prices.read(tm.files("in/prices.csv", formats=UNIX), out_of_orderness="5us")
orders.late.write(tm.files("out/late.csv"))
large = orders.filter(tm.col("n") > 80, name="large")
large.late.write(tm.files("out/large.csv"))


@app.transaction(orders)
def order(tx, e):
    sums[e.k].n = (sums[e.k].n * 7 + e.n) % 1_000_003
    return {"row": e.row, "n": sums[e.k].n}


@app.transaction(prices)
def price(tx, e):
    sums[e.k].n = (sums[e.k].n * 3 + e.row) % 1_000_003
    return {"row": e.row, "n": sums[e.k].n}


few = orders.filter(tm.col("n") > 80, name="few").batches(7)
each = orders.filter(True, name="each").batches("300us")
batch = dict(first=int, rows=int)


@app.procedure(few, out=batch)
def seven(tx, few):
    sums[0].n = (sums[0].n * 5 + len(few)) % 1_000_003
    return {"first": few[0].row, "rows": len(few)}


@app.procedure(each, out=batch)
def interval(tx, each):
    return {"first": each[0].row, "rows": len(each)}


order.write(tm.files("out/orders.csv"))
price.write(tm.files("out/prices.csv"))
seven.write(tm.files("out/sevens.csv"))
interval.write(tm.files("out/intervals.csv"))
