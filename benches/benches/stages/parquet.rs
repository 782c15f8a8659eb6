//! The Parquet output: buffers flows and writes the buffer to a file.

use std::{
    fs::File,
    io::{Seek as _, SeekFrom, Write as _},
};

use benches::profile::PROFILES;
use criterion::{BatchSize, Criterion, Throughput};
use exporters::files::{Compression, parquet::MADE};
use formats::{encoder::Encoder as _, parquet::Parquet};
use proto::FlowBatch;

use crate::ipfix::{batches, decode};

pub fn bench(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("parquet");
    for profile in &PROFILES[..4] {
        let decoded: Vec<FlowBatch> = batches(profile).iter().map(decode).collect();
        let mut encoder = Parquet::default();
        group.throughput(Throughput::Elements(u64::from(profile.flows)));
        group.bench_function(format!("append/{}", profile.name), |bencher| {
            bencher.iter_batched_ref(
                temporary,
                |waiting| append(&mut encoder, &decoded, waiting),
                BatchSize::PerIteration,
            );
        });
        let mut waiting = temporary();
        append(&mut encoder, &decoded, &mut waiting);
        group.bench_function(format!("complete/{}", profile.name), |bencher| {
            bencher.iter_batched(
                temporary,
                |whole| complete(&mut waiting, whole),
                BatchSize::PerIteration,
            );
        });
        let bytes = |file: &mut File| {
            let len = file.seek(SeekFrom::End(0)).expect("it is a file");
            len / u64::from(profile.flows)
        };
        let mut whole = complete(&mut waiting, temporary());
        eprintln!(
            "parquet/{}: {} bytes a flow wait, {} in the complete file",
            profile.name,
            bytes(&mut waiting),
            bytes(&mut whole),
        );
    }
    group.finish();
}

fn temporary() -> File {
    tempfile::tempfile().expect("there is room for a file")
}

fn append(encoder: &mut Parquet, batches: &[FlowBatch], waiting: &mut File) {
    for batch in batches {
        let message = encoder.message(batch, &batch.records);
        encoder.sent();
        waiting.write_all(&message.bytes).expect("there is room");
    }
}

fn complete(waiting: &mut File, whole: File) -> File {
    (MADE.make)(waiting, whole, Compression::Zstd).expect("we wrote it ourselves")
}
