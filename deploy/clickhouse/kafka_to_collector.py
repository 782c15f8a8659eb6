"""Brings the batches that `flow-agent collect` stored in Kafka to another collector, such as one that stores in ClickHouse.

    python -m venv venv && venv/bin/pip install confluent-kafka grpcio grpcio-tools
    venv/bin/python -m grpc_tools.protoc -I PROTO --python_out=. flow/v1/flow.proto
    venv/bin/python kafka_to_collector.py BROKER:9092 TOPIC COLLECTOR:4500

PROTO is the folder with flow/v1/flow.proto. An offset is committed when the collector has acknowledged everything before it. So
nothing is left out, however this ends, and what comes again has the same stream and number. A batch that the collector refuses is
named on stderr and passed over, so that no agent is in the way of the others.
"""

import argparse
import json
import sys
import time
from pathlib import Path

import grpc
from confluent_kafka import Consumer, KafkaError, KafkaException
from flow.v1 import flow_pb2

# Messages to relay at a time, each of at most some 256 KiB.
TOGETHER = 500
# A collector accepts 32 calls on a connection.
CALLS_ON_A_CONNECTION = 30
# The advice for a message that cannot be relayed.
PASS_OVER = "to pass over it, set the offset of the group behind it (kafka-consumer-groups.sh --reset-offsets)"
# An answer takes as long as the collector's stores, at most half a minute.
PATIENCE_SECONDS = 60
LONGEST_PAUSE_SECONDS = 15


def named(message):
    """The stream, which is that of its sender, and the number of the batch in a message."""
    headers = dict(message.headers() or [])
    try:
        if message.value():
            return (headers["identity"], int(headers["stream_id"], 16)), int(headers["stream_seq"])
    except (KeyError, TypeError, ValueError):
        pass
    sys.exit(f"{place(message)}: no flow-agent wrote this message; {PASS_OVER}")


def place(message):
    return f"partition {message.partition()}, offset {message.offset()}"


def rounds(messages):
    """Calls that can be made at the same time, and those that have to wait for them.

    A call has batches of one stream whose numbers rise. A number that does not is of a batch that came again, and begins a call.
    """
    all_rounds, last = [], {}
    for message in messages:
        stream, number = named(message)
        call, before = last.get(stream, (0, 0))
        if number <= before:
            call += 1
        last[stream] = call, number
        if call == len(all_rounds):
            all_rounds.append({})
        all_rounds[call].setdefault(stream, []).append(message)
    return all_rounds


class Refused(Exception):
    """The collector does not take this message, whenever it comes."""

    def __init__(self, message, why):
        super().__init__(f"{place(message)}: the collector refuses this batch, which is passed over: {why}")
        self.message = message


class Collector:
    """As many connections as there are calls for."""

    def __init__(self, arguments):
        self.arguments = arguments
        self.connections = []

    def export(self, number, values):
        """The call with this number among those at the same time."""
        place = number // CALLS_ON_A_CONNECTION
        while place >= len(self.connections):
            self.connections.append(
                channel(self.arguments).stream_stream(
                    "/flow.v1.FlowCollector/Export",
                    # The values in the topic are serialized batches.
                    request_serializer=bytes,
                    response_deserializer=flow_pb2.ExportAck.FromString,
                )
            )
        return self.connections[place](values, timeout=PATIENCE_SECONDS, metadata=self.token())

    def token(self):
        """As the file has it now, since tokens are replaced."""
        if not self.arguments.token_file:
            return None
        return [("authorization", "Bearer " + Path(self.arguments.token_file).read_text().strip())]


def bring(collector, calls):
    """Returns when the collector has acknowledged all batches of these calls."""
    started = []
    for number, messages in enumerate(calls.values()):
        values = iter([message.value() for message in messages])
        started.append((collector.export(number, values), messages))
    for answers, messages in started:
        acknowledged, last_number = 0, named(messages[-1])[1]
        try:
            for answer in answers:
                acknowledged = answer.last_seq
        except grpc.RpcError as error:
            if error.code() == grpc.StatusCode.INVALID_ARGUMENT:
                refused = next(one for one in messages if named(one)[1] > acknowledged)
                raise Refused(refused, error.details()) from error
            raise
        if acknowledged < last_number:
            raise RuntimeError(f"the collector has acknowledged {acknowledged} of {last_number} batches")


def bring_all(collector, messages):
    """Tries until everything is acknowledged."""
    pause = 0.1
    while True:
        try:
            for calls in rounds(messages):
                bring(collector, calls)
            return
        except Refused as refused:
            tell(refused)
            messages = [message for message in messages if message is not refused.message]
        except (grpc.RpcError, RuntimeError, OSError) as error:
            why = error.details() if isinstance(error, grpc.RpcError) else error
            tell(f"the collector does not take what is here, which is tried again: {why}")
            time.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE_SECONDS)


def tell(what):
    print(what, file=sys.stderr, flush=True)


def channel(arguments):
    # By default channels to the same address share a connection.
    options = [("grpc.use_local_subchannel_pool", 1)]
    if not arguments.tls_ca:
        return grpc.insecure_channel(arguments.collector, options)
    paths = [arguments.tls_ca, arguments.tls_key, arguments.tls_certificate]
    files = [path and Path(path).read_bytes() for path in paths]
    return grpc.secure_channel(arguments.collector, grpc.ssl_channel_credentials(*files), options)


def read(consumer, topic):
    """The next messages, perhaps none."""
    messages = []
    for message in consumer.consume(TOGETHER, timeout=1):
        error = message.error()
        if error is None:
            messages.append(message)
        elif error.code() == KafkaError._MAX_POLL_EXCEEDED:
            tell("the collector was away for long, so what is not committed is read again")
        else:
            sys.exit(f"read {topic}: {error}")
    return messages


def run(consumer, topic, collector):
    consumer.subscribe([topic])
    while True:
        messages = read(consumer, topic)
        if not messages:
            continue
        bring_all(collector, messages)
        try:
            consumer.commit(asynchronous=False)
        except KafkaException as error:
            # Another member of the group has taken over the partition, and relays these messages again.
            tell(f"the offsets are not committed: {error}")


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
    parser.add_argument("--token-file", metavar="FILE", help="a file with a token of the collector that has the role relay, read for each call")
    arguments = parser.parse_args()
    settings = json.loads(Path(arguments.kafka_settings).read_text()) if arguments.kafka_settings else {}
    consumer = Consumer(
        {
            **settings,
            "bootstrap.servers": arguments.broker,
            "group.id": arguments.group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            # How long the collector may be unavailable before another member of the group takes over the partitions.
            "max.poll.interval.ms": 3_600_000,
        }
    )
    try:
        run(consumer, arguments.topic, Collector(arguments))
    finally:
        consumer.close()


if __name__ == "__main__":
    main()
