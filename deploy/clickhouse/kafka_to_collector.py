"""Brings the batches that `flow-agent collect` stored in Kafka to another collector, such as one that stores in ClickHouse.

    python -m venv venv && venv/bin/pip install confluent-kafka grpcio grpcio-tools
    venv/bin/python -m grpc_tools.protoc -I PROTO --python_out=. flow/v1/flow.proto
    venv/bin/python kafka_to_collector.py BROKER:9092 TOPIC COLLECTOR:4500

PROTO is the folder with flow/v1/flow.proto. An offset is committed when the collector has acknowledged everything before it. So
nothing is left out, however this ends, and what comes again has the same stream and number.
"""

import argparse
import json
import sys
import time
from pathlib import Path

import grpc
from confluent_kafka import Consumer, KafkaException
from flow.v1 import flow_pb2

# Messages that are brought there together, each of some 256 KiB at most.
TOGETHER = 500
# An answer takes as long as the collector's stores do, which is half a minute at most.
PATIENCE_SECONDS = 60
LONGEST_PAUSE_SECONDS = 15


def named(message):
    """The stream and the number of the batch in a message."""
    headers = dict(message.headers() or [])
    try:
        return int(headers["stream_id"], 16), int(headers["stream_seq"])
    except (KeyError, ValueError):
        place = f"partition {message.partition()}, offset {message.offset()}"
        sys.exit(f"{place}: no flow-agent wrote this message; nothing behind it is read")


def rounds(messages):
    """Calls that can be made at the same time, and those that have to wait for them.

    A call has batches of one stream whose numbers rise. A number that does not is of a batch that came again, and begins a call.
    """
    all_rounds, last = [], {}
    for message in messages:
        stream, number = named(message)
        place, before = last.get(stream, (0, 0))
        if number <= before:
            place += 1
        last[stream] = place, number
        if place == len(all_rounds):
            all_rounds.append({})
        all_rounds[place].setdefault(stream, []).append((number, message.value()))
    return all_rounds


def bring(export, calls):
    """Returns when the collector has acknowledged all batches of these calls."""
    started = []
    for batches in calls.values():
        values = iter([value for _, value in batches])
        started.append((export(values, timeout=PATIENCE_SECONDS), batches[-1][0]))
    for answers, last_number in started:
        acknowledged = 0
        for answer in answers:
            acknowledged = answer.last_seq
        if acknowledged < last_number:
            raise RuntimeError(f"the collector has acknowledged {acknowledged} of {last_number} batches")


def bring_all(export, messages):
    """Tries until everything is acknowledged."""
    pause = 0.1
    while True:
        try:
            for calls in rounds(messages):
                bring(export, calls)
            return
        except (grpc.RpcError, RuntimeError) as error:
            why = error.details() if isinstance(error, grpc.RpcError) else error
            tell(f"the collector does not take what is here, which is tried again: {why}")
            time.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE_SECONDS)


def tell(what):
    print(what, file=sys.stderr, flush=True)


def channel(arguments):
    if not arguments.tls_ca:
        return grpc.insecure_channel(arguments.collector)
    paths = [arguments.tls_ca, arguments.tls_key, arguments.tls_certificate]
    files = [path and Path(path).read_bytes() for path in paths]
    return grpc.secure_channel(arguments.collector, grpc.ssl_channel_credentials(*files))


def main():
    description, _, rest = __doc__.partition("\n\n")
    parser = argparse.ArgumentParser(
        description=description, epilog=rest, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("broker", help="HOST:PORT of a broker")
    parser.add_argument("topic", help="what the collector before Kafka stores in")
    parser.add_argument("collector", help="HOST:PORT of the collector behind Kafka")
    parser.add_argument("--group", default="flow-agent-clickhouse", help="the group of consumers that share the topic")
    parser.add_argument(
        "--kafka-settings", metavar="FILE", help="settings of librdkafka as JSON, such as those of TLS and SASL"
    )
    parser.add_argument("--tls-ca", metavar="FILE", help="CAs in PEM, of which the collector's certificate is")
    parser.add_argument("--tls-certificate", metavar="FILE", help="what to show to the collector, in PEM")
    parser.add_argument("--tls-key", metavar="FILE", help="its key in PEM")
    arguments = parser.parse_args()
    export = channel(arguments).stream_stream(
        "/flow.v1.FlowCollector/Export",
        # As they are in the topic.
        request_serializer=bytes,
        response_deserializer=flow_pb2.ExportAck.FromString,
    )
    settings = json.loads(Path(arguments.kafka_settings).read_text()) if arguments.kafka_settings else {}
    consumer = Consumer(
        {
            **settings,
            "bootstrap.servers": arguments.broker,
            "group.id": arguments.group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    consumer.subscribe([arguments.topic])
    while True:
        messages = consumer.consume(TOGETHER, timeout=1)
        for message in messages:
            if message.error():
                sys.exit(f"read {arguments.topic}: {message.error()}")
        if not messages:
            continue
        bring_all(export, messages)
        try:
            consumer.commit(asynchronous=False)
        except KafkaException as error:
            # Another one of the group reads the partition from here on, and brings this once more.
            tell(f"the offsets are not committed: {error}")


if __name__ == "__main__":
    main()
