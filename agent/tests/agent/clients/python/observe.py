"""Observes an agent with grpcio, and prints each batch as a line of JSON. The arguments are the target, a name
for the consumer, and protoc's descriptors."""

import sys

import grpc
from google.protobuf import descriptor_pb2, json_format, message_factory

target, name, descriptors = sys.argv[1:]
with open(descriptors, "rb") as file:
    files = descriptor_pb2.FileDescriptorSet.FromString(file.read()).file
messages = message_factory.GetMessages(files)
request = messages["flow.v1.ObserveRequest"](consumer=name)
batch_type = messages["flow.v1.FlowBatch"]

# Its request and the batches are compressed, on a Unix socket, too.
with grpc.insecure_channel(target, compression=grpc.Compression.Gzip) as channel:
    observe = channel.unary_stream(
        "/flow.v1.FlowAgent/Observe",
        request_serializer=type(request).SerializeToString,
        response_deserializer=batch_type.FromString,
    )
    for batch in observe(request):
        print(json_format.MessageToJson(batch, indent=None), flush=True)
