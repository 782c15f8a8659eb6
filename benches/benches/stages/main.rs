//! Measures the stages of the flow path with criterion, one benchmark group per stage.

mod cycle;
mod drain;
mod encode;
mod ipfix;
mod json;
mod otlp;
mod parquet;
mod parse;
mod pbflow;
mod replica;

use std::time::Duration;

use criterion::{Criterion, criterion_group, criterion_main};

criterion_group! {
    name = stages;
    config = Criterion::default()
        .sample_size(10)
        .warm_up_time(Duration::from_millis(500))
        .measurement_time(Duration::from_secs(2))
        .without_plots();
    targets = parse::bench, drain::bench, replica::bench, encode::bench, ipfix::bench, json::bench,
        pbflow::bench, otlp::bench, parquet::bench, cycle::bench
}
criterion_main!(stages);
