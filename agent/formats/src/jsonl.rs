//! JSON Lines, in the same format as `--output json` on stdout.

use proto::{FlowBatch, FlowRecord};

use super::{
    LostSoFar,
    encoder::{Encoder, Message},
    json::JsonLines,
};

/// A flow takes some 700 bytes.
const FLOWS_IN_A_MESSAGE: usize = 512;

#[derive(Default)]
pub struct Jsonl {
    lines: JsonLines,
    /// The losses reported so far, and those after the last message.
    told: LostSoFar,
    tells: LostSoFar,
}

impl Encoder for Jsonl {
    fn message(&mut self, batch: &FlowBatch, flows: &[FlowRecord]) -> Message {
        let now = &flows[..flows.len().min(FLOWS_IN_A_MESSAGE)];
        let mut text = Vec::new();
        self.tells = self.told;
        let mut write = || {
            self.lines.begin(&mut text, batch, &mut self.tells)?;
            self.lines.flows(&mut text, batch, now)?;
            if now.len() == flows.len() {
                self.lines.exchanges(&mut text, batch)?;
                self.lines.end(&mut text, batch)?;
            }
            std::io::Result::Ok(())
        };
        write().expect("a text in memory takes every line");
        Message::new(text.into(), now.len())
    }

    fn sent(&mut self) {
        self.told = self.tells;
    }

    /// Lines do not depend on each other.
    fn restart(&mut self) {}

    /// Files accept lines of any length.
    fn limit(&mut self, _: usize) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use proto::Account;
    use serde_json::Value;

    use super::*;

    fn types(message: &Message) -> Vec<String> {
        let lines = message.bytes.split_inclusive(|&byte| byte == b'\n');
        let lines = lines.map(|line| serde_json::from_slice::<Value>(line).unwrap());
        lines
            .map(|line| line["type"].as_str().unwrap().to_owned())
            .collect()
    }

    #[test]
    fn losses_come_first_and_the_account_last_and_what_was_not_sent_is_told_again() {
        let batch = FlowBatch {
            lost_records: 3,
            lost_batches: 1,
            account: Some(Account::default()),
            ..FlowBatch::default()
        };
        let flows = vec![FlowRecord::default(); FLOWS_IN_A_MESSAGE + 1];
        let mut jsonl = Jsonl::default();
        for _ in 0..2 {
            let first = jsonl.message(&batch, &flows);
            assert_eq!(first.flows, FLOWS_IN_A_MESSAGE);
            let types = types(&first);
            assert_eq!((types.len(), &*types[0]), (FLOWS_IN_A_MESSAGE + 1, "lost"));
        }
        jsonl.sent();
        let last = jsonl.message(&batch, &flows[FLOWS_IN_A_MESSAGE..]);
        assert_eq!(
            (last.flows, types(&last)),
            (1, vec!["flow".into(), "account".into()])
        );
        jsonl.sent();
        assert_eq!(types(&jsonl.message(&batch, &[])), ["account"]);
    }
}
