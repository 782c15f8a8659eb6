//! All of user space after the drain: update, encode, end of the scan.

use std::time::Duration;

use benches::{profile::PROFILES, user_space::UserSpace};
use criterion::{Criterion, Throughput, criterion_group, criterion_main};

fn bench(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("cycle");
    for profile in PROFILES {
        let pages = profile.pages();
        let mut user_space = UserSpace::default();
        user_space.update(&pages[0]);
        let mut by_turns = pages.iter().cycle();
        group.throughput(Throughput::Elements(u64::from(profile.flows)));
        group.bench_function(profile.name, |bencher| {
            bencher.iter(|| {
                let page = by_turns.next().expect("a cycle of two pages has no end");
                user_space
                    .cycle(page)
                    .expect("a slice drains without errors")
            });
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
