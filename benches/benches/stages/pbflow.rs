//! The netobserv output: turns the flows of batches into messages. [`super::ipfix`] measures the decoding.

use benches::profile::PROFILES;
use criterion::{BatchSize, Criterion, Throughput};
use formats::pbflow::Pbflow;

use super::ipfix::{batches, decode, send};

pub fn bench(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("pbflow");
    for profile in &PROFILES[..4] {
        let batches = batches(profile);
        let mut pbflow = Pbflow::new(|| Some([192, 0, 2, 1].into()));
        let sent: usize = batches
            .iter()
            .map(|batch| send(&mut pbflow, &decode(batch)))
            .sum();
        let per_flow = sent as f64 / f64::from(profile.flows);
        eprintln!("{}: {per_flow:.1} bytes a flow", profile.name);
        group.throughput(Throughput::Elements(u64::from(profile.flows)));
        group.bench_function(profile.name, |bencher| {
            bencher.iter_batched_ref(
                || batches.iter().map(decode).collect::<Vec<_>>(),
                |batches| {
                    batches
                        .iter()
                        .map(|batch| send(&mut pbflow, batch))
                        .sum::<usize>()
                },
                BatchSize::PerIteration,
            );
        });
    }
    group.finish();
}
