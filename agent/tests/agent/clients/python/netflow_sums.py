"""Reads messages of IPFIX, one after another in a file, with the package netflow, and prints how many flows they have and what these sum to."""

import json
import sys

import netflow

with open(sys.argv[1], "rb") as file:
    rest = file.read()
templates = {"netflow": {}, "ipfix": {}}
sums = {"flows": 0, "packets": 0, "octets": 0, "layer2": 0, "interfaces": 0, "rates": []}
while rest:
    length = int.from_bytes(rest[2:4], "big")
    packet = netflow.parse_packet(rest[:length], templates)
    rest = rest[length:]
    for record in packet.flows:
        data = record.data
        if "packetDeltaCount" in data:
            sums["flows"] += 1
            sums["packets"] += data["packetDeltaCount"]
            sums["octets"] += data["octetDeltaCount"]
            sums["layer2"] += data["layer2OctetDeltaCount"]
        if "interfaceName" in data:
            sums["interfaces"] += 1
        if "samplingInterval" in data:
            sums["rates"].append(data["samplingInterval"])
print(json.dumps(sums))
