//! The parser on the host: one frame of each kind, and a mix of frames from many flows.

use std::hint::black_box;

use agent_common::Packet;
use benches::{frames, profile};
use criterion::{Criterion, Throughput};

/// Inspects the packet in place: copying it out would cost as much as parsing it.
fn parse_frame(frame: &[u8]) {
    let mut packet = Packet::default();
    let parsed = frames::read(frame, &mut packet);
    let _ = black_box((&parsed, &packet));
}

pub fn bench(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("parse");
    group.sample_size(30);
    group.throughput(Throughput::Elements(1));
    for (name, frame) in frames::kinds().expect("every kind of frame can be built") {
        group.bench_function(name, |bencher| {
            bencher.iter(|| parse_frame(black_box(&frame)));
        });
    }
    for profile in [profile::PROBECTL, profile::PROFILES[1]] {
        let frames = frames::of_profile(profile).expect("every flow has a frame");
        group.throughput(Throughput::Elements(frames.len() as u64));
        group.bench_function(format!("mixed_{}", profile.name), |bencher| {
            bencher.iter(|| {
                for frame in &frames {
                    parse_frame(black_box(frame));
                }
            });
        });
    }
    group.finish();
}
