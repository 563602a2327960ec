"""Makes those files of this folder that no editor writes. Run it by hand, here, and commit what it makes."""

from __future__ import annotations

import gzip
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

HERE = Path(__file__).parent


def put(name: str, data: bytes) -> None:
    (HERE / name).write_bytes(data)


def parquet(name: str, columns: dict[str, list[object]], **options: object) -> None:
    pq.write_table(pa.table(columns), HERE / name, **options)


def csv() -> None:
    put("mixed_ends.csv", b"a,b\r\n1,x\n2,y\r\n\r\n3,\"z\r\nw\"\n4,last")
    put("mark.csv", b"\xef\xbb\xbfa,b\n1,x\n")
    put("nul.csv", b"a,b\n1,x\x00y\n\x00,z\n")
    put("utf16.csv", "a,b\n1,ä\n2,日\n".encode("utf-16"))
    put("latin1.csv", "a,b\n1,ä\n".encode("latin-1"))
    put("not_utf8.csv", b"a,b\n1,\xff\n2,x\n")
    put("header_only.csv", b"a,b\n")
    put("empty.csv", b"")
    put("long_line.csv", b"a,b\nno," + b"x" * 5000 + b"\n2,y\n")


def jsonl() -> None:
    put("endless.jsonl", b'{"a": 1, "b": "x"}\n{"a": 2, "b": "' + b"y" * 3000)
    put("mark.jsonl", b'\xef\xbb\xbf{"a": 1, "b": "x"}\n')
    put(
        "strange.jsonl",
        b'{"a": 1, "b": "x\\u0000y"}\n'
        b'{"a": 2, "b": "\\ud800"}\n'
        b'{"a": 3, "a": 3, "b": "z"}\n'
        + b'{"a": 4, "b": "v", "c": ' + b"[" * 300 + b"]" * 300 + b"}\n"
        b'\x00\n{"a": 5, "b": "w"} {}\n'
        b'{"a": 6, "b": "last"}',
    )


def packed() -> None:
    whole = gzip.compress(b"a,b\n" + b"".join(b"%d,x\n" % n for n in range(2000)), mtime=0)
    put("cut.csv.gz", whole[: len(whole) // 2])
    two = [gzip.compress(text, mtime=0) for text in (b"a,b\n1,x\n", b"2,y\n")]
    put("two_members.csv.gz", b"".join(two))
    put("more_behind.csv.gz", two[0] + b"no gzip")
    flipped = bytearray(two[0])
    flipped[-5] ^= 1
    put("checksum.csv.gz", bytes(flipped))


def columnar() -> None:
    rows = {"a": [1, 2], "b": ["x", "y"]}
    for codec in ("gzip", "brotli", "lz4", "zstd", "snappy"):
        parquet(f"{codec}.parquet", rows, compression=codec)
    whole = (HERE / "snappy.parquet").read_bytes()
    put("cut.parquet", whole[: len(whole) - 20])
    put("text.parquet", b"a,b\n1,x\n")
    # The codec of both columns is another one, which nobody unpacks: in the description snappy is 2, and LZO 6.
    lzo = whole.replace(b"\x18\x01a\x15\x02", b"\x18\x01a\x15\x06")
    assert lzo != whole
    put("lzo.parquet", lzo.replace(b"\x18\x01b\x15\x02", b"\x18\x01b\x15\x06"))
    parquet("long_text.parquet", {"a": [1, 2, 3], "b": ["x", "y" * 2_000_000, "z"]}, compression="zstd")
    # One page of 160 MB in a file of some kilobytes.
    huge = {"a": [1], "b": ["y" * 160_000_000]}
    parquet("huge_page.parquet", huge, compression="zstd", use_dictionary=False, write_statistics=False)
    # A text that stands once, and in all rows.
    same = {"a": list(range(800)), "b": ["y" * 1_000_000] * 800}
    parquet("same_text.parquet", same, compression="zstd", write_statistics=False)


if __name__ == "__main__":
    csv()
    jsonl()
    packed()
    columnar()
