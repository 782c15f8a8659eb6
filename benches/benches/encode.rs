//! The encoder: the records of a scan become batches.

use std::time::Duration;

use benches::{profile::PROFILES, user_space::UserSpace};
use criterion::{Criterion, Throughput, criterion_group, criterion_main};

fn bench(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("encode");
    for profile in PROFILES {
        let mut user_space = UserSpace::default();
        let records = user_space.records(&profile.page(0));
        group.throughput(Throughput::Elements(u64::from(profile.flows)));
        group.bench_function(profile.name, |bencher| {
            bencher.iter(|| user_space.encode(&records));
        });
    }
    group.finish();
}

criterion_group! {
    name = benches;
    config = Criterion::default()
        .sample_size(10)
        .warm_up_time(Duration::from_millis(500))
        .measurement_time(Duration::from_secs(2))
        .without_plots();
    targets = bench
}
criterion_main!(benches);
