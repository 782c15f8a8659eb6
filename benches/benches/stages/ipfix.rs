//! The IPFIX output: decodes batches and turns their flows into messages.

use std::sync::Arc;

use agent_common::HookAccount;
use benches::{
    profile::{PROFILES, Profile},
    user_space::UserSpace,
};
use criterion::{BatchSize, Criterion, Throughput};
use flows::encoder::{BatchEncoder, ScanHeader, ScanTrailer};
use formats::{
    encoder::Encoder,
    ipfix::{Domains, Ipfix, Settings},
};
use prost::Message as _;
use proto::{
    FlowBatch, Interface,
    batch::{self, Batch},
};

pub fn bench(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("ipfix");
    for profile in &PROFILES[..4] {
        let batches = batches(profile);
        group.throughput(Throughput::Elements(u64::from(profile.flows)));
        group.bench_function(format!("decode/{}", profile.name), |bencher| {
            bencher.iter(|| {
                batches
                    .iter()
                    .map(|batch| decode(batch).records.len())
                    .sum::<usize>()
            });
        });
        group.bench_function(format!("decode_by_prost/{}", profile.name), |bencher| {
            bencher.iter(|| {
                let decoded = batches.iter().map(|batch| {
                    FlowBatch::decode(batch.body.clone()).expect("we encoded it ourselves")
                });
                decoded.map(|batch| batch.records.len()).sum::<usize>()
            });
        });
        for (name, is_biflow) in [("biflow", true), ("uniflow", false)] {
            let settings = Settings {
                is_biflow,
                ..Settings::datagrams()
            };
            let mut ipfix = Ipfix::new(settings, |_| Domains {
                flows: 1,
                process: 2,
            });
            group.bench_function(format!("{name}/{}", profile.name), |bencher| {
                bencher.iter_batched_ref(
                    || batches.iter().map(decode).collect::<Vec<_>>(),
                    |batches| {
                        batches
                            .iter()
                            .map(|batch| send(&mut ipfix, batch))
                            .sum::<usize>()
                    },
                    BatchSize::PerIteration,
                );
            });
        }
    }
    group.finish();
}

/// The batches of one scan.
pub fn batches(profile: &Profile) -> Vec<Batch> {
    let records = UserSpace::default().records(&profile.page(0));
    let key = records[0].key;
    let interface = Interface {
        ifindex: key.ifindex,
        netns: key.netns,
        name: "eth0".to_owned(),
        ..Interface::default()
    };
    let mut batches = Vec::new();
    let mut encoder = BatchEncoder::new(Arc::default());
    encoder.begin(&ScanHeader {
        scan_id: 1,
        window_start_unix_ns: 1,
        window_end_unix_ns: 2,
        capacity: 500_000,
        refused_in_window: false,
        interfaces: [interface].into(),
    });
    for record in &records {
        encoder.push(record, &mut |batch| batches.push(batch));
    }
    let trailer = ScanTrailer {
        occupancy: 0,
        tracked: 0,
        account: &HookAccount::default(),
        is_final: false,
    };
    encoder.finish(&trailer, &mut |batch| batches.push(batch));
    batches
}

pub fn decode(batch: &Batch) -> FlowBatch {
    batch::read(&batch.body).expect("we encoded it ourselves")
}

/// Returns the number of bytes encoded.
pub fn send(encoder: &mut impl Encoder, batch: &FlowBatch) -> usize {
    let mut flows = &batch.records[..];
    let mut len_bytes = 0;
    while !flows.is_empty() {
        let message = encoder.message(batch, flows);
        encoder.sent();
        flows = &flows[message.flows..];
        len_bytes += message.bytes.len();
    }
    len_bytes
}
