"""Reads a folder of Parquet files with DuckDB and prints, as one line of JSON, the types of the columns, all rows as they
are in the columns, and what each file tells beside its rows. Fails if a file cannot be read."""

import json
import sys

import duckdb

files = f"{sys.argv[1]}/*.parquet"
described = duckdb.execute("DESCRIBE SELECT * FROM read_parquet(?)", [files]).fetchall()
types = {name: type for name, type, *_ in described}
# Times as Unix time in microseconds.
columns = [
    f"epoch_us({name})" if type == "TIMESTAMP WITH TIME ZONE" else name
    for name, type in types.items()
]
rows = duckdb.execute(f"SELECT {', '.join(columns)} FROM read_parquet(?)", [files]).fetchall()
told = duckdb.execute(
    "SELECT file_name, decode(key), decode(value) FROM parquet_kv_metadata(?) ORDER BY ALL", [files]
).fetchall()
print(json.dumps({"types": types, "rows": [dict(zip(types, row)) for row in rows], "told": told}))
