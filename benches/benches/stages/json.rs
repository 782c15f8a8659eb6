//! JSON Lines: turns the flows of decoded batches into lines.

use std::io;

use benches::profile::PROFILES;
use criterion::{BatchSize, Criterion, Throughput};
use formats::JsonWriter;

use crate::ipfix::{batches, decode};

pub fn bench(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("json");
    for profile in &PROFILES[..4] {
        let batches = batches(profile);
        group.throughput(Throughput::Elements(u64::from(profile.flows)));
        group.bench_function(profile.name, |bencher| {
            bencher.iter_batched_ref(
                || batches.iter().map(decode).collect::<Vec<_>>(),
                |batches| {
                    let mut json = JsonWriter::new(io::sink());
                    for batch in batches {
                        json.batch(batch).expect("a sink takes everything");
                    }
                },
                BatchSize::PerIteration,
            );
        });
    }
    group.finish();
}
