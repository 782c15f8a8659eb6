//! The encoder: turns a scan's records into batches.

use benches::{profile::PROFILES, user_space::UserSpace};
use criterion::{Criterion, Throughput};

pub fn bench(criterion: &mut Criterion) {
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
