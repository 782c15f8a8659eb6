"""What tests do with a broker of Kafka by librdkafka. The arguments are the broker, what to do, and what that needs:

    create TOPIC PARTITIONS [SETTING=VALUE ...]
    set TOPIC SETTING=VALUE
    topics                             their names, one a line
    partitions TOPIC KEY ...           where a producer that hashes as Kafka's own puts the keys, one a line
    read TOPIC DESCRIPTORS             each message as a line of JSON, in the order of partitions and offsets
"""

import json
import sys

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
)
from google.protobuf import descriptor_pb2, json_format, message_factory

broker, action, *rest = sys.argv[1:]
servers = {"bootstrap.servers": broker}


# It has to live until its answers are there.
admin = AdminClient(servers)


def done(futures):
    for future in futures.values():
        future.result(60)


def create(topic, partitions, *settings):
    config = dict(setting.split("=") for setting in settings)
    new = NewTopic(topic, int(partitions), 1, config=config)
    done(admin.create_topics([new]))


def alter(topic, setting):
    name, value = setting.split("=")
    entry = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=[entry])
    done(admin.incremental_alter_configs([resource]))


def topics():
    for name in sorted(admin.list_topics(timeout=60).topics):
        print(name)


def partitions(topic, *keys):
    producer = Producer(servers | {"partitioner": "murmur2"})
    placed = {}

    def delivered(error, message):
        assert error is None, error
        placed[message.key().decode()] = message.partition()

    for key in keys:
        producer.produce(topic, key=key, value=b"", on_delivery=delivered)
    assert producer.flush(60) == 0
    for key in keys:
        print(placed[key])


def read(topic, descriptors):
    with open(descriptors, "rb") as file:
        files = descriptor_pb2.FileDescriptorSet.FromString(file.read()).file
    batch_type = message_factory.GetMessages(files)["flow.v1.FlowBatch"]
    consumer = Consumer(servers | {"group.id": "a test", "enable.auto.commit": False})
    known = consumer.list_topics(topic, 60).topics[topic]
    for number in sorted(known.partitions):
        _, end = consumer.get_watermark_offsets(TopicPartition(topic, number), 60)
        consumer.assign([TopicPartition(topic, number, 0)])
        offset = -1
        while offset + 1 < end:
            message = consumer.poll(60)
            assert message is not None, "nothing comes"
            assert message.error() is None, message.error()
            offset = message.offset()
            batch = batch_type.FromString(message.value())
            line = {
                "partition": number,
                "offset": offset,
                "key": message.key().decode(),
                "headers": {name: value.decode() for name, value in message.headers()},
                "timestamp": message.timestamp(),
                "bytes": len(message.value()),
                "batch": json_format.MessageToDict(batch, preserving_proto_field_name=True),
            }
            print(json.dumps(line))
    consumer.close()


actions = {
    "create": create,
    "set": alter,
    "topics": topics,
    "partitions": partitions,
    "read": read,
}
actions[action](*rest)
