//! Work that never changes: its time tells how fast the machine is at the moment.

use std::{hint::black_box, time::Instant};

const STEPS: u32 = 20_000_000;

/// Nanoseconds for one step of a chain of multiplications, each waiting for the one before. Memory
/// and the kernel have no part in it.
pub fn step_ns() -> f64 {
    let started = Instant::now();
    let mut state = black_box(1_u64);
    for _ in 0..STEPS {
        // Opaque at every step, else the compiler folds several into one.
        state = black_box(state)
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
    }
    black_box(state);
    started.elapsed().as_nanos() as f64 / f64::from(STEPS)
}
