//! A constant workload, whose duration tells how fast the machine currently is.

use std::{hint::black_box, time::Instant};

const STEPS: u32 = 20_000_000;

/// Nanoseconds per step of a chain of dependent multiplications, which needs neither memory nor the kernel.
pub fn step_ns() -> f64 {
    let started = Instant::now();
    let mut state = black_box(1_u64);
    for _ in 0..STEPS {
        // Opaque at every step; otherwise the compiler would fold several into one.
        state = black_box(state)
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
    }
    black_box(state);
    started.elapsed().as_nanos() as f64 / f64::from(STEPS)
}
