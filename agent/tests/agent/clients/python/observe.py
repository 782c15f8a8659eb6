"""Observes an agent with grpcio, and prints each batch as a line of JSON. The arguments are the target, a name
for the consumer, and protoc's descriptors; for TLS also the files of a CA, of a certificate and of its key."""

import pathlib
import sys

import grpc
from google.protobuf import descriptor_pb2, json_format, message_factory

target, name, descriptors, *tls = sys.argv[1:]
with open(descriptors, "rb") as file:
    files = descriptor_pb2.FileDescriptorSet.FromString(file.read()).file
messages = message_factory.GetMessages(files)
request = messages["flow.v1.ObserveRequest"](consumer=name)
batch_type = messages["flow.v1.FlowBatch"]

# Its request and the batches are compressed, on a Unix socket, too.
if tls:
    ca, certificate, key = (pathlib.Path(file).read_bytes() for file in tls)
    credentials = grpc.ssl_channel_credentials(ca, key, certificate)
    opened = grpc.secure_channel(target, credentials, compression=grpc.Compression.Gzip)
else:
    opened = grpc.insecure_channel(target, compression=grpc.Compression.Gzip)
with opened as channel:
    observe = channel.unary_stream(
        "/flow.v1.FlowAgent/Observe",
        request_serializer=type(request).SerializeToString,
        response_deserializer=batch_type.FromString,
    )
    for batch in observe(request):
        print(json_format.MessageToJson(batch, indent=None), flush=True)
