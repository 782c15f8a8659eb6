"""Observes an agent: adds up what its flows report, and says what this stream lost.

    python -m venv venv && venv/bin/pip install -r requirements.txt
    venv/bin/python -m grpc_tools.protoc -I ../proto --python_out=. --grpc_python_out=. flow/v1/flow.proto
    venv/bin/python observe.py unix:/run/flow-agent/flow-agent.sock
"""

import json
import signal
import sys

import grpc
from flow.v1 import flow_pb2, flow_pb2_grpc

target = sys.argv[1] if len(sys.argv) > 1 else "unix:/run/flow-agent/flow-agent.sock"
records = packets = octets = lost_records = lost_packets = lost_bytes = seq = 0


def tell():
    sums = {"records": records, "packets": packets, "bytes": octets}
    lost = {"lost_records": lost_records, "lost_packets": lost_packets, "lost_bytes": lost_bytes}
    print(json.dumps(sums | lost), flush=True)


try:
    with grpc.insecure_channel(target) as channel:
        agent = flow_pb2_grpc.FlowAgentStub(channel)
        # The stream ends when the agent stops.
        stream = agent.Observe(flow_pb2.ObserveRequest(consumer="example in Python"))
        # So does Ctrl-C end it: the exception that Python raises otherwise may be lost inside gRPC.
        signal.signal(signal.SIGINT, lambda *_: stream.cancel())
        for batch in stream:
            # Batches that the agent dropped because this consumer was slow count in `lost_...` and leave no gap here.
            if batch.stream_seq != seq + 1:
                sys.exit(f"batch {batch.stream_seq} came after {seq}: some are missing")
            seq = batch.stream_seq
            # Totals since the stream began.
            lost_records = batch.lost_records
            lost_packets, lost_bytes = batch.lost_packets, batch.lost_bytes
            for record in batch.records:
                records += 1
                packets += record.src.delta_packets + record.dst.delta_packets
                octets += record.src.delta_bytes + record.dst.delta_bytes
            if batch.last_of_scan:
                tell()
except KeyboardInterrupt:
    pass
except grpc.RpcError as error:
    if error.code() != grpc.StatusCode.CANCELLED:
        sys.exit(f"{target}: {error.details()}")
tell()
