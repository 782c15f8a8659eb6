// Observes an agent with gRPC for C++, and prints each batch as a line of JSON. The arguments are the target
// and a name for the consumer.

#include <iostream>

#include <google/protobuf/util/json_util.h>
#include <grpcpp/grpcpp.h>

#include "flow/v1/flow.grpc.pb.h"

int main(int count, char** arguments) {
  if (count != 3) {
    std::cerr << "usage: observe TARGET NAME\n";
    return 2;
  }
  auto channel = grpc::CreateChannel(arguments[1], grpc::InsecureChannelCredentials());
  auto agent = flow::v1::FlowAgent::NewStub(channel);
  grpc::ClientContext context;
  flow::v1::ObserveRequest request;
  request.set_consumer(arguments[2]);
  auto batches = agent->Observe(&context, request);
  flow::v1::FlowBatch batch;
  while (batches->Read(&batch)) {
    std::string line;
    auto converted = google::protobuf::util::MessageToJsonString(batch, &line);
    if (!converted.ok()) {
      std::cerr << converted.ToString() << '\n';
      return 1;
    }
    std::cout << line << std::endl;
  }
  auto status = batches->Finish();
  if (!status.ok()) {
    std::cerr << status.error_code() << ": " << status.error_message() << '\n';
    return 1;
  }
}
