// Observes an agent: adds up the counts of its flows, and reports what this stream lost.
//
//	go install google.golang.org/protobuf/cmd/protoc-gen-go@v1.36.11
//	go install google.golang.org/grpc/cmd/protoc-gen-go-grpc@v1.5.1
//	protoc -I ../proto --go_out=. --go-grpc_out=. --go_opt=module=observe --go-grpc_opt=module=observe \
//	  --go_opt=Mflow/v1/flow.proto=observe/flowv1 --go-grpc_opt=Mflow/v1/flow.proto=observe/flowv1 flow/v1/flow.proto
//	go run . unix:/run/flow-agent/flow-agent.sock
package main

import (
	"context"
	"encoding/json"
	"io"
	"log"
	"os"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"observe/flowv1"
)

func main() {
	target := append(os.Args, "unix:/run/flow-agent/flow-agent.sock")[1]
	connection, err := grpc.NewClient(target, grpc.WithTransportCredentials(insecure.NewCredentials()))
	must(err)
	agent := flowv1.NewFlowAgentClient(connection)
	stream, err := agent.Observe(context.Background(), &flowv1.ObserveRequest{Consumer: "example in Go"})
	must(err)
	var records, packets, bytes uint64
	last := &flowv1.FlowBatch{}
	tell := func() {
		must(json.NewEncoder(os.Stdout).Encode(map[string]uint64{"records": records, "packets": packets, "bytes": bytes,
			"lost_records": last.LostRecords, "lost_packets": last.LostPackets, "lost_bytes": last.LostBytes}))
	}
	// The stream ends when the agent stops.
	for batch, err := stream.Recv(); err != io.EOF; batch, err = stream.Recv() {
		must(err)
		// Batches that the agent dropped because this consumer was slow count in `lost_...` and leave no gap here.
		if batch.StreamSeq != last.StreamSeq+1 {
			log.Fatalf("batch %d came after %d: some are missing", batch.StreamSeq, last.StreamSeq)
		}
		last = batch
		for _, record := range batch.Records {
			records++
			packets += record.GetSrc().GetDeltaPackets() + record.GetDst().GetDeltaPackets()
			bytes += record.GetSrc().GetDeltaBytes() + record.GetDst().GetDeltaBytes()
		}
		if batch.LastOfScan {
			tell()
		}
	}
	tell()
}

func must(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
