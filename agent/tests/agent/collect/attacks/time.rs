//! Attacks on the time of a collector.

use ::parquet::file::reader::{FileReader as _, SerializedFileReader};

use super::*;

#[test]
fn no_parquet_file_has_so_many_rows_that_making_it_holds_up_others_for_long() {
    const TEST: &str =
        "agent::no_parquet_file_has_so_many_rows_that_making_it_holds_up_others_for_long";
    /// The most that a batch may have.
    const RECORDS: u64 = 1 << 14;
    const BATCHES: u64 = 80;
    const MOST_ROWS: u64 = 1 << 20;
    let folder = tempfile::tempdir().unwrap();
    let Some(mut confined) = Confined::start(TEST, &["--output", &parquet(folder.path())]) else {
        return;
    };
    confined.run(async {
        let channel = confined.channel(address(1)).await;
        let batches = (1..=BATCHES).map(|seq| batch(seq, RECORDS as usize));
        let batches = batches.collect();
        let attack = confined.send(&channel, ATTACKER, batches);
        tokio::join!(attack, confined.others_are_served(1, 20));
    });
    let rows = outputs::parquet::complete(folder.path())
        .into_iter()
        .map(|path| {
            let file = SerializedFileReader::new(File::open(path).unwrap()).unwrap();
            file.metadata().file_metadata().num_rows().cast_unsigned()
        });
    let rows: Vec<_> = rows.collect();
    let [first] = rows[..] else {
        panic!("{rows:?}");
    };
    assert!(first > MOST_ROWS / 2 && first <= MOST_ROWS, "{first}");
    confined.peak();
}
