"""Validates lines of JSON by a JSON Schema in which no member may be unknown, and prints, as one line of JSON, how many
lines there are of each type. Fails at a line that the schema refuses, and if it accepts one with a fault in it."""

import collections
import json
import sys

import jsonschema

schema_file, *line_files = sys.argv[1:]
with open(schema_file) as file:
    schema = json.load(file)
for kind in schema["oneOf"]:
    kind["additionalProperties"] = False
jsonschema.Draft202012Validator.check_schema(schema)
validator = jsonschema.Draft202012Validator(schema)
# The errors of the one kind that a line is say more than that it is none of all.
kinds = {
    kind["properties"]["type"]["const"]: validator.evolve(schema={"$defs": schema["$defs"], **kind})
    for kind in schema["oneOf"]
}
counts = collections.Counter()
for line_file in line_files:
    for text in open(line_file):
        line = json.loads(text)
        kinds[line["type"]].validate(line)
        validator.validate(line)
        if not counts[line["type"]]:
            time = {"flow": "last_seen", "account": "window_end", "dns": "asked"}[line["type"]]
            faults = [{**line, "no_such_member": 1}, {**line, time: 1_700_000_000}]
            for name in "scan_id", "hostname":
                faults.append({key: value for key, value in line.items() if key != name})
            for fault in faults:
                assert not validator.is_valid(fault), fault
        counts[line["type"]] += 1
print(json.dumps(counts))
