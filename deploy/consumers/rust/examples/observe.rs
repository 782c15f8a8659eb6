//! Observes an agent: adds up the counts of its flows, and reports what this stream lost.
//!
//!     cargo run --example observe unix:/run/flow-agent/flow-agent.sock

use anyhow::{Result, ensure};
use flow_consumer::flow::{ObserveRequest, flow_agent_client::FlowAgentClient};
use serde_json::json;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let target = std::env::args().nth(1);
    let target = target.unwrap_or_else(|| "unix:/run/flow-agent/flow-agent.sock".to_owned());
    let mut agent = FlowAgentClient::connect(target).await?;
    let request = ObserveRequest {
        consumer: "example in Rust".to_owned(),
        ..ObserveRequest::default()
    };
    let mut stream = agent.observe(request).await?.into_inner();
    let (mut records, mut packets, mut bytes, mut seq) = (0, 0, 0, 0);
    let mut lost = [0; 3];
    let tell = |[records, packets, bytes]: [u64; 3], lost: [u64; 3]| {
        let line = json!({
            "records": records, "packets": packets, "bytes": bytes,
            "lost_records": lost[0], "lost_packets": lost[1], "lost_bytes": lost[2],
        });
        println!("{line}");
    };
    // The stream ends when the agent stops.
    while let Some(batch) = stream.message().await? {
        // Batches that the agent dropped because this consumer was slow count in `lost_...` and leave no gap here.
        ensure!(
            batch.stream_seq == seq + 1,
            "batch {} came after {seq}: some are missing",
            batch.stream_seq
        );
        seq = batch.stream_seq;
        // Totals since the stream began.
        lost = [batch.lost_records, batch.lost_packets, batch.lost_bytes];
        for record in &batch.records {
            records += 1;
            for end in [&record.src, &record.dst].into_iter().flatten() {
                packets += end.delta_packets;
                bytes += end.delta_bytes;
            }
        }
        if batch.last_of_scan {
            tell([records, packets, bytes], lost);
        }
    }
    tell([records, packets, bytes], lost);
    Ok(())
}
