"""Adds up what flows report, of batches that `flow-agent collect` stores in Kafka, each batch once.

    python -m venv venv && venv/bin/pip install -r requirements.txt confluent-kafka
    venv/bin/python -m grpc_tools.protoc -I ../proto --python_out=. flow/v1/flow.proto
    venv/bin/python kafka.py BROKER:9092 TOPIC
"""

import json
import sys
from collections import OrderedDict

from confluent_kafka import Consumer
from flow.v1 import flow_pb2

# If a batch is repeated, then soon after the first time. Remember this many.
MOST_REMEMBERED = 1_000_000

broker, topic = sys.argv[1:3]
sums = {"batches": 0, "repeated": 0, "records": 0, "packets": 0, "bytes": 0}
seen = OrderedDict()


def add(message):
    batch = flow_pb2.FlowBatch.FromString(message.value())
    # Identifies the batch permanently: the sender's identity at the collector, and the sender's own numbers. The stream
    # alone is not enough, since machines that were cloned with a spool share it.
    name = batch.agent.identity, batch.agent.instance_id, batch.stream_id, batch.stream_seq
    if name in seen:
        sums["repeated"] += 1
        return
    seen[name] = None
    if len(seen) > MOST_REMEMBERED:
        seen.popitem(last=False)
    sums["batches"] += 1
    for record in batch.records:
        sums["records"] += 1
        sums["packets"] += record.src.delta_packets + record.dst.delta_packets
        sums["bytes"] += record.src.delta_bytes + record.dst.delta_bytes


settings = {
    "bootstrap.servers": broker,
    "group.id": "example",
    "auto.offset.reset": "earliest",
    # Start from the beginning each time, as the sums do.
    "enable.auto.commit": False,
}
consumer = Consumer(settings)
consumer.subscribe([topic])
try:
    while True:
        messages = consumer.consume(500, timeout=1)
        for message in messages:
            if message.error():
                sys.exit(f"{message.error()}")
            add(message)
        if messages:
            print(json.dumps(sums), flush=True)
except KeyboardInterrupt:
    consumer.close()
