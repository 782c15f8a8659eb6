//! Attacks on `--max-agent-records`.

use std::time::{Duration, Instant};

use proto::AgentIdentity;

use super::*;

#[test]
fn streams_agents_and_addresses_that_follow_each_other_are_no_way_round_the_limit() {
    const TEST: &str =
        "agent::streams_agents_and_addresses_that_follow_each_other_are_no_way_round_the_limit";
    const LIMIT: u64 = 1000;
    const RECORDS: usize = 2000;
    const CALLS: u64 = 8;
    let folder = tempfile::tempdir().unwrap();
    let limit = LIMIT.to_string();
    let output = jsonl(folder.path());
    let settings = ["--output", &output, "--max-agent-records", &limit];
    let Some(mut confined) = Confined::start(TEST, &settings) else {
        return;
    };
    let begin = Instant::now();
    confined.run(async {
        for number in 1..=CALLS {
            let name = format!("agent {number}");
            let forged = FlowBatch {
                stream_id: number,
                agent: Some(AgentIdentity {
                    agent_id: name.clone(),
                    instance_id: name,
                    ..AgentIdentity::default()
                }),
                ..batch(1, RECORDS)
            };
            let channel = confined.channel(address(number as usize)).await;
            confined.send(&channel, ATTACKER, vec![forged]).await;
        }
    });
    // One saved second, and the last batch, which is not waited for.
    let records = CALLS * RECORDS as u64;
    let least = Duration::from_secs((records - RECORDS as u64) / LIMIT - 1);
    let elapsed = begin.elapsed();
    assert!(elapsed >= least, "{records} records in {elapsed:?}");
    confined.peak();
}
