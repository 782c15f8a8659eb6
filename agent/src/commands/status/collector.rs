//! A collector's status as text.

use std::time::{Duration, SystemTime};

use formats::human;
use proto::{
    CollectedStream, CollectorStatus, ConversationsStatus, PairsStatus, PathStatus, StoreStatus,
};

const COLUMNS: [&str; 10] = [
    "AGENT", "FROM", "STATE", "SINCE", "STORED", "BEHIND", "BATCHES", "RECORDS", "PACKETS", "LOST",
];

const PATH_COLUMNS: [&str; 7] = ["FROM", "TO", "LOSS", "SENT", "LOST", "SURPLUS", "INEXACT"];

/// Lines of text, any of which may contain what others chose.
pub(super) fn lines(status: &CollectorStatus) -> Vec<String> {
    let mut lines = vec![format!(
        "flow-agent {} collects on {}, up {}",
        status.version,
        status.hostname,
        human::duration(Duration::from_nanos(status.uptime_ns))
    )];
    lines.extend(status.stores.iter().map(store));
    let connected = status.streams.iter().filter(|stream| stream.connected);
    let connected = connected.count();
    let away = status.streams.len() - connected;
    lines.push(match (connected, away) {
        (0, 0) => "no agent has called yet".to_owned(),
        (connected, 0) => format!("agents: {connected} connected"),
        (connected, away) => format!("agents: {connected} connected, {away} away"),
    });
    if !status.streams.is_empty() {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let now = now.unwrap_or_default();
        let mut rows = vec![COLUMNS.map(str::to_owned)];
        rows.extend(status.streams.iter().map(|stream| row(stream, now)));
        lines.extend(aligned(&rows));
    }
    if !status.tokens_reload_error.is_empty() {
        lines.push(format!(
            "the file of tokens HAS CHANGED but is not in force, the tokens read before still hold: {}",
            status.tokens_reload_error
        ));
    }
    lines.extend(turned_away(status));
    lines.extend(held_back(status));
    lines.extend(reports(status));
    lines.extend(samples(status));
    if let Some(pairs) = &status.pairs {
        lines.extend(paths(pairs));
    }
    if let Some(made) = &status.conversations {
        lines.push(conversations(made));
    }
    lines
}

/// Calls that were turned away.
fn turned_away(status: &CollectorStatus) -> Option<String> {
    let server = status.server.as_ref()?;
    let (tokens, agents) = (server.refused_tokens, server.refused_agents);
    let roles = server.refused_callers;
    (tokens > 0 || agents > 0 || roles > 0).then(|| {
        format!(
            "refused: {tokens} calls without a credential of this collector, {roles} beyond their role or in the name of another \
             agent, {agents} calls of agents for lack of a place"
        )
    })
}

/// Agents that wait because of a setting.
fn held_back(status: &CollectorStatus) -> Option<String> {
    let held = status
        .streams
        .iter()
        .filter(|stream| stream.held_back_ns > 0);
    let most = held.clone().max_by_key(|stream| stream.held_back_ns)?;
    let time = human::duration(Duration::from_nanos(most.held_back_ns));
    let agent = most.agent.clone().unwrap_or_default();
    Some(format!(
        "held back to --max-agent-records: {} of the streams, most of all {}'s, for {time} in total",
        held.count(),
        agent.hostname
    ))
}

/// The report interval that agents are asked for, and agents that report more often.
fn reports(status: &CollectorStatus) -> Option<String> {
    let asked = status.report_interval_ns;
    if asked == 0 {
        return None;
    }
    let more_often = |stream: &&CollectedStream| {
        stream.connected && stream.batches > 0 && stream.report_interval_ns < asked
    };
    let more_often = status.streams.iter().filter(more_often).count();
    let interval = human::duration(Duration::from_nanos(asked));
    Some(match more_often {
        0 => format!("asks for reports of continuing flows every {interval} at most"),
        count => format!(
            "asks for reports of continuing flows every {interval} at most; {count} of the connected streams have reported more \
             often so far"
        ),
    })
}

/// The sample rate that agents are asked for, and agents that count more.
fn samples(status: &CollectorStatus) -> Option<String> {
    let asked = status.sample_rate;
    if asked == 0 {
        return None;
    }
    let counts_more = |stream: &&CollectedStream| {
        stream.connected && stream.batches > 0 && stream.sample_rate < asked
    };
    let count = status.streams.iter().filter(counts_more).count();
    Some(match count {
        0 => format!("asks to count one flow in {asked}"),
        count => format!(
            "asks to count one flow in {asked}; connected streams that have counted more so far: {count} (max_sample_rate of the \
             agent's output)"
        ),
    })
}

/// The number of conversations of each grade.
fn conversations(made: &ConversationsStatus) -> String {
    let mut line = format!(
        "conversations: {} proven, {} with both ends seen, {} with one end, {} with none",
        made.proven, made.both_seen, made.one_end, made.no_end
    );
    if made.not_written > 0 {
        let more = format!(", {} NOT WRITTEN: {}", made.not_written, made.last_error);
        line.push_str(&more);
    }
    line
}

/// Losses on the way between agents.
fn paths(pairs: &PairsStatus) -> Vec<String> {
    let mut line = format!(
        "pairs: {} of at most {} flows followed, {} seen by only one agent",
        pairs.flows, pairs.capacity, pairs.unpaired
    );
    if pairs.not_followed > 0 {
        let more = format!(
            ", {} records NOT FOLLOWED for lack of room",
            pairs.not_followed
        );
        line.push_str(&more);
    }
    if pairs.not_written > 0 {
        let more = format!(
            ", {} reports NOT WRITTEN: {}",
            pairs.not_written, pairs.last_error
        );
        line.push_str(&more);
    }
    let mut lines = vec![line];
    if !pairs.paths.is_empty() {
        let mut rows = vec![PATH_COLUMNS.map(str::to_owned)];
        rows.extend(pairs.paths.iter().map(path));
        lines.extend(aligned(&rows));
    }
    lines
}

fn path(path: &PathStatus) -> [String; 7] {
    let name = |hostname: &str| match hostname {
        "" => "others".to_owned(),
        name => name.to_owned(),
    };
    let share = match path.sent_packets {
        0 => "-".to_owned(),
        sent => format!("{:.3} %", 100.0 * path.lost_packets as f64 / sent as f64),
    };
    [
        name(&path.from_hostname),
        name(&path.to_hostname),
        share,
        path.sent_packets.to_string(),
        path.lost_packets.to_string(),
        path.surplus_packets.to_string(),
        path.inexact.to_string(),
    ]
}

fn store(store: &StoreStatus) -> String {
    let stored = store.stored.unwrap_or_default();
    let fault = if store.failing {
        format!(", FAILING: {}", store.last_error)
    } else {
        String::new()
    };
    format!(
        "stores in {}={}: {} records, {} packets, {}{fault}",
        store.kind,
        store.address,
        stored.records,
        stored.packets,
        human::bytes(stored.bytes)
    )
}

fn row(stream: &CollectedStream, now: Duration) -> [String; 10] {
    let agent = stream.agent.clone().unwrap_or_default();
    let since = |unix_ns| human::duration(now.saturating_sub(Duration::from_nanos(unix_ns)));
    let ago = |unix_ns| format!("{} ago", since(unix_ns));
    let stored = stream.stored.unwrap_or_default();
    [
        agent.hostname,
        stream.peer.clone(),
        (if stream.connected {
            "connected"
        } else {
            "away"
        })
        .to_owned(),
        ago(stream.since_unix_ns),
        match stream.stored_unix_ns {
            0 => "never".to_owned(),
            stored => ago(stored),
        },
        // By the agent's clock.
        match stream.window_end_unix_ns {
            0 => "-".to_owned(),
            end => since(end),
        },
        stream.batches.to_string(),
        stored.records.to_string(),
        stored.packets.to_string(),
        stream.lost.unwrap_or_default().packets.to_string(),
    ]
}

/// Columns as wide as their widest cell. The last four are numbers, the others names.
fn aligned<const N: usize>(rows: &[[String; N]]) -> Vec<String> {
    let width = |column: usize| {
        let widths = rows.iter().map(|row| row[column].chars().count());
        widths.max().unwrap_or_default()
    };
    let widths: Vec<_> = (0..N).map(width).collect();
    let line = |row: &[String; N]| {
        let cells = row.iter().zip(&widths).enumerate();
        let cells = cells.map(|(column, (cell, &width))| {
            if column + 4 < N {
                format!("{cell:<width$}")
            } else {
                format!("{cell:>width$}")
            }
        });
        format!("  {}", cells.collect::<Vec<_>>().join("  "))
    };
    rows.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use proto::{AgentIdentity, RecordSum, ServerStatus};

    use super::*;

    #[test]
    fn each_stream_has_a_line_and_a_store_that_fails_says_why() {
        let stream = |hostname: &str, connected, packets| CollectedStream {
            agent: Some(AgentIdentity {
                hostname: hostname.into(),
                ..AgentIdentity::default()
            }),
            peer: "10.0.0.1:5".into(),
            connected,
            stored_unix_ns: packets,
            stored: Some(RecordSum {
                packets,
                ..RecordSum::default()
            }),
            lost: Some(RecordSum {
                packets: 7,
                ..RecordSum::default()
            }),
            ..CollectedStream::default()
        };
        let status = CollectorStatus {
            hostname: "here".into(),
            version: "1.2.3".into(),
            streams: vec![stream("a", true, 12), stream("longer", false, 0)],
            stores: vec![StoreStatus {
                kind: "jsonl".into(),
                address: "/a".into(),
                failing: true,
                last_error: "no space".into(),
                ..StoreStatus::default()
            }],
            ..CollectorStatus::default()
        };
        let lines = lines(&status);
        assert!(lines[0].starts_with("flow-agent 1.2.3 collects on here, up"));
        assert!(lines[1].ends_with("FAILING: no space"), "{}", lines[1]);
        assert_eq!(lines[2], "agents: 1 connected, 1 away");
        assert!(lines[4].starts_with("  a       10.0.0.1:5  connected  "));
        assert!(lines[4].ends_with("       12     7"), "{}", lines[4]);
        assert!(lines[5].contains("away       ") && lines[5].contains("never"));
        assert_eq!(lines.len(), 6);
        let mut behind = status.clone();
        let then = SystemTime::now()
            .checked_sub(Duration::from_hours(50))
            .unwrap();
        let then = then.duration_since(SystemTime::UNIX_EPOCH).unwrap();
        behind.streams[0].window_end_unix_ns = then.as_nanos() as u64;
        let lines = super::lines(&behind);
        assert!(lines[4].contains(" ago  2d02h  "), "{}", lines[4]);
        assert!(lines[5].contains("  never  "), "{}", lines[5]);
        let with_pairs = CollectorStatus {
            pairs: Some(PairsStatus {
                paths: vec![PathStatus {
                    from_hostname: "a".into(),
                    to_hostname: "b".into(),
                    sent_packets: 1000,
                    lost_packets: 7,
                    inexact: 3,
                    ..PathStatus::default()
                }],
                flows: 4,
                capacity: 10,
                unpaired: 2,
                not_followed: 9,
                ..PairsStatus::default()
            }),
            ..status
        };
        let lines = super::lines(&with_pairs);
        let expected = "pairs: 4 of at most 10 flows followed, 2 seen by only one agent, 9 records NOT FOLLOWED for lack of room";
        assert_eq!(lines[6], expected);
        assert_eq!(
            lines[8],
            "  a     b   0.700 %  1000     7        0        3"
        );
        let refusing = CollectorStatus {
            server: Some(ServerStatus {
                refused_tokens: 3,
                refused_callers: 5,
                refused_agents: 4,
                ..ServerStatus::default()
            }),
            streams: vec![
                stream("fast", true, 1),
                CollectedStream {
                    held_back_ns: 2_000_000_000,
                    ..stream("faster", true, 1)
                },
            ],
            ..CollectorStatus::default()
        };
        let lines = super::lines(&refusing);
        assert_eq!(
            lines[5..],
            [
                "refused: 3 calls without a credential of this collector, 5 beyond their role or in the name of another agent, \
                 4 calls of agents for lack of a place",
                "held back to --max-agent-records: 1 of the streams, most of all faster's, for 2s in total",
            ]
        );
        let nobody = CollectorStatus::default();
        assert_eq!(super::lines(&nobody)[1], "no agent has called yet");
    }
}
