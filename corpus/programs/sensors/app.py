"""Two sensors in event time, each a row of a table with a day's history: sliding means, and alarms."""

import tidemill as tm

app = tm.App("sensors")
sensors = app.table("sensors", key="name", name=str, value=float, history="1d")
alarms = app.stream("alarms", name=str, at=tm.timestamp, value=float, mean=float)


def watch(name: str):
    def follow(tx, e):
        sensor = sensors[name]
        hour = sensor.over(tm.sliding("1h"))
        mean, seen = tm.coalesce(hour.value.avg(), e.value), hour.count()
        sensor.value = e.value
        with tx.when((seen >= 3) & (abs(e.value - mean) > 5.0)):
            tx.emit(alarms, name=name, at=e.at, value=e.value, mean=mean)
        return dict(at=e.at, n=seen, mean=mean)

    follow.__name__ = f"follow_{name}"
    return follow


for name in ("machine", "ambient"):
    stream = app.stream(name, time="at", at=tm.timestamp, value=float)
    stream.read(tm.files(f"in/{name}.csv"))
    app.transaction(stream)(watch(name)).write(tm.files(f"out/{name}.csv"))
alarms.write(tm.files("out/alarms.csv"))
