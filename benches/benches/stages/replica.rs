//! The replica: inserts drained entries of known flows, inserts entries of new flows, and ends a scan.

use benches::{
    profile::{PROFILES, Profile},
    user_space::UserSpace,
};
use criterion::{BatchSize, Criterion, Throughput};

pub fn bench(criterion: &mut Criterion) {
    for profile in PROFILES {
        bench_profile(criterion, profile);
    }
}

fn bench_profile(criterion: &mut Criterion, profile: Profile) {
    let pages = profile.pages();
    let mut group = criterion.benchmark_group("replica");
    group.throughput(Throughput::Elements(u64::from(profile.flows)));
    group.bench_function(format!("insert/{}", profile.name), |bencher| {
        bencher.iter_batched_ref(
            UserSpace::default,
            |user_space| user_space.update(&pages[0]),
            BatchSize::PerIteration,
        );
    });

    let mut user_space = UserSpace::default();
    user_space.update(&pages[0]);
    let mut by_turns = pages.iter().cycle();
    group.bench_function(format!("update/{}", profile.name), |bencher| {
        bencher.iter(|| {
            user_space.update(by_turns.next().expect("a cycle of two pages has no end"));
        });
    });
    group.bench_function(format!("end_scan/{}", profile.name), |bencher| {
        bencher.iter(|| user_space.end_scan());
    });
    group.finish();
}
