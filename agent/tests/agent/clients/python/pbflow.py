"""Serves pbflow.Collector with grpcio, and prints each record as a line of JSON. The arguments are the address to listen
on, and protoc's descriptors; for TLS also the files of a key, of its certificate, and of the CA that clients need."""

import sys
from concurrent import futures

import grpc
from google.protobuf import descriptor_pb2, json_format, message_factory, unknown_fields

address, descriptors, *secrets = sys.argv[1:]
with open(descriptors, "rb") as file:
    files = descriptor_pb2.FileDescriptorSet.FromString(file.read()).file
messages = message_factory.GetMessages(files)
reply = messages["pbflow.CollectorReply"]()


def send(records, _):
    lines = []
    for record in records.entries:
        if len(unknown_fields.UnknownFieldSet(record)):
            sys.exit("a field that netobserv has not")
        line = json_format.MessageToDict(
            record, preserving_proto_field_name=True, use_integers_for_enums=True
        )
        lines.append(line)
    print("\n".join(map(json_format.json.dumps, lines)), flush=True)
    return reply


handler = grpc.unary_unary_rpc_method_handler(
    send,
    request_deserializer=messages["pbflow.Records"].FromString,
    response_serializer=type(reply).SerializeToString,
)
server = grpc.server(futures.ThreadPoolExecutor(max_workers=1))
server.add_generic_rpc_handlers(
    [grpc.method_handlers_generic_handler("pbflow.Collector", {"Send": handler})]
)
if secrets:
    key, certificate, ca = (open(path, "rb").read() for path in secrets)
    credentials = grpc.ssl_server_credentials([(key, certificate)], ca, require_client_auth=True)
    server.add_secure_port(address, credentials)
else:
    server.add_insecure_port(address)
server.start()
print("listening", file=sys.stderr, flush=True)
server.wait_for_termination()
