"""Reads a folder of compressed JSON Lines with DuckDB and prints, as one line of JSON, the packets and bytes of all flows, how
many accounts are the last one, and how many files there are. Fails if a file cannot be read."""

import json
import sys

import duckdb

files = f"{sys.argv[1]}/*.jsonl.*"
lines = "read_json(?, format = 'newline_delimited', union_by_name = true)"
packets, octets = duckdb.execute(
    "SELECT sum(packets + reverse_packets)::UBIGINT, sum(bytes + reverse_bytes)::UBIGINT "
    f"FROM {lines} WHERE type = 'flow'",
    [files],
).fetchone()
(finals,) = duckdb.execute(f'SELECT count(*) FROM {lines} WHERE "final"', [files]).fetchone()
(count,) = duckdb.execute("SELECT count(*) FROM glob(?)", [files]).fetchone()
print(json.dumps({"packets": packets, "bytes": octets, "finals": finals, "files": count}))
