//! Fills and flips the kernel's table, and drains it with the agent's own code. Only the drain is timed, not the
//! filling or the grace period.

use std::{
    hint::black_box,
    time::{Duration, Instant},
};

use agent_common::senders::Kinds;
use anyhow::Result;
use benches::{
    kernel_table::KernelTable,
    profile::{KERNEL_PROFILES, Profile},
    user_space::Source as _,
};
use criterion::{Criterion, Throughput};

pub fn bench(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("drain");
    for profile in KERNEL_PROFILES {
        let mut table = match KernelTable::load(profile.flows, Kinds::NONE) {
            Ok(table) => table,
            Err(error) => {
                eprintln!("skipped: drain: {error:#}");
                return;
            }
        };
        group.throughput(Throughput::Elements(u64::from(profile.flows)));
        group.bench_function(profile.name, |bencher| {
            bencher.iter_custom(|iterations| {
                (0..iterations)
                    .map(|_| drain(&mut table, profile).expect("a full page drains"))
                    .sum()
            });
        });
    }
    group.finish();
}

fn drain(table: &mut KernelTable, profile: Profile) -> Result<Duration> {
    table.fill(profile)?;
    let page = table.flip()?;
    let started = Instant::now();
    page.drain(|key, counters, _| {
        black_box((key, counters));
    })?;
    Ok(started.elapsed())
}
