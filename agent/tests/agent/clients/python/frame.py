"""Reads a folder of Parquet files with pandas and prints, as one line of JSON, the types of the columns, all rows, and the
bytes by port as docs/parquet.md sums them up. Fails if a file cannot be read."""

import json
import sys

import pandas

flows = pandas.read_parquet(sys.argv[1], dtype_backend="pyarrow")
types = {name: str(type) for name, type in flows.dtypes.items()}
by_port = flows.groupby("dst_port")["bytes"].sum().nlargest(20)
# Times as Unix time in microseconds.
for name, type in types.items():
    if type.startswith("timestamp"):
        flows[name] = flows[name].astype("int64[pyarrow]")
columns = [column.array.__arrow_array__().to_pylist() for _, column in flows.items()]
rows = [dict(zip(types, values)) for values in zip(*columns)]
by_port = {str(port): int(sum) for port, sum in by_port.items()}
print(json.dumps({"types": types, "rows": rows, "by_port": by_port}))
