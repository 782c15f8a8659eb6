//! Everything user space does after the drain: update, encode, end of the scan.

use benches::{profile::PROFILES, user_space::UserSpace};
use criterion::{Criterion, Throughput};

pub fn bench(criterion: &mut Criterion) {
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
