//! The OTLP output: turns the flows of decoded batches into requests, packed and unpacked.

use std::sync::Arc;

use benches::profile::PROFILES;
use criterion::{BatchSize, Criterion, Throughput};
use formats::otlp::{Otlp, Settings};

use crate::ipfix::{batches, decode, send};

pub fn bench(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("otlp");
    for profile in &PROFILES[..4] {
        let batches = batches(profile);
        group.throughput(Throughput::Elements(u64::from(profile.flows)));
        for (name, gzip) in [("plain", false), ("gzip", true)] {
            let settings = Settings {
                gzip,
                metrics: false,
                ..Settings::default()
            };
            let mut otlp = Otlp::new(settings, Arc::default);
            let decoded = || batches.iter().map(decode).collect::<Vec<_>>();
            let len_bytes: usize = decoded().iter().map(|batch| send(&mut otlp, batch)).sum();
            eprintln!(
                "otlp/{name}/{}: {:.1} bytes a flow",
                profile.name,
                len_bytes as f64 / f64::from(profile.flows)
            );
            group.bench_function(format!("{name}/{}", profile.name), |bencher| {
                bencher.iter_batched_ref(
                    decoded,
                    |batches| {
                        batches
                            .iter()
                            .map(|batch| send(&mut otlp, batch))
                            .sum::<usize>()
                    },
                    BatchSize::PerIteration,
                );
            });
        }
    }
    group.finish();
}
