// Observes an agent: adds up what its flows report, and says what this stream lost.
//
//	go install google.golang.org/protobuf/cmd/protoc-gen-go@v1.36.11
//	go install google.golang.org/grpc/cmd/protoc-gen-go-grpc@v1.5.1
//	protoc -I ../proto --go_out=. --go-grpc_out=. --go_opt=module=observe --go-grpc_opt=module=observe \
//	  --go_opt=Mflow/v1/flow.proto=observe/flowv1 --go-grpc_opt=Mflow/v1/flow.proto=observe/flowv1 \
//	  flow/v1/flow.proto
//	go run . unix:/run/flow-agent/flow-agent.sock
package main

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log"
	"os"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"observe/flowv1"
)

type sums struct {
	Records     uint64 `json:"records"`
	Packets     uint64 `json:"packets"`
	Bytes       uint64 `json:"bytes"`
	LostRecords uint64 `json:"lost_records"`
	LostPackets uint64 `json:"lost_packets"`
	LostBytes   uint64 `json:"lost_bytes"`
}

func main() {
	target := "unix:/run/flow-agent/flow-agent.sock"
	if len(os.Args) > 1 {
		target = os.Args[1]
	}
	connection, err := grpc.NewClient(target, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		log.Fatal(err)
	}
	request := &flowv1.ObserveRequest{Consumer: "example in Go"}
	stream, err := flowv1.NewFlowAgentClient(connection).Observe(context.Background(), request)
	if err != nil {
		log.Fatal(err)
	}
	var sum sums
	var seq uint64
	lines := json.NewEncoder(os.Stdout)
	for {
		batch, err := stream.Recv()
		// The stream ends when the agent stops.
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			log.Fatal(err)
		}
		// Batches that the agent dropped because this consumer was slow are in `lost_...`, and leave no gap here.
		if batch.StreamSeq != seq+1 {
			log.Fatalf("batch %d came after %d: some are missing", batch.StreamSeq, seq)
		}
		seq = batch.StreamSeq
		// They count since the stream began.
		sum.LostRecords, sum.LostPackets, sum.LostBytes = batch.LostRecords, batch.LostPackets, batch.LostBytes
		for _, record := range batch.Records {
			sum.Records++
			sum.Packets += record.DeltaPackets + record.DeltaReversePackets
			sum.Bytes += record.DeltaBytes + record.DeltaReverseBytes
		}
		if batch.LastOfScan {
			lines.Encode(sum)
		}
	}
	lines.Encode(sum)
}
