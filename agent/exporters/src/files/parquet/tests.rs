//! Files are rotated, bounded, and completed after a kill.

use std::{fs, io::Write as _, path::Path, time::Duration};

use formats::{encoder::Encoder as _, parquet::Parquet};
use parquet::file::reader::{FileReader as _, SerializedFileReader};
use proto::{Endpoint, FlowBatch, FlowRecord};
use tempfile::TempDir;

use super::*;
use crate::files::{Rotated, Rotation, Written};

const OPEN: &str = ".flows.parquet.open";

fn rotation() -> Rotation {
    Rotation {
        bytes: u64::MAX,
        after: Duration::MAX,
        files: 100,
        total_bytes: u64::MAX,
        compression: Compression::Zstd,
    }
}

fn rotated(folder: &TempDir, rotation: Rotation) -> Rotated {
    Rotated::made(folder.path().to_owned(), rotation, MADE)
}

/// A piece with one flow of this many packets.
fn piece(packets: u64) -> Vec<u8> {
    let batch = FlowBatch {
        stream_seq: packets,
        scan_id: 7,
        ..FlowBatch::default()
    };
    let flow = FlowRecord {
        src: Some(Endpoint {
            addr: vec![10, 0, 0, 1].into(),
            delta_packets: packets,
            ..Endpoint::default()
        }),
        dst: Some(Endpoint {
            addr: vec![10, 0, 0, 2].into(),
            ..Endpoint::default()
        }),
        ..FlowRecord::default()
    };
    Parquet::default().message(&batch, &[flow]).bytes.into()
}

async fn write(file: &mut Rotated, packets: impl IntoIterator<Item = u64>) {
    for packets in packets {
        let piece = piece(packets);
        while file.write(piece.clone()).await.unwrap() == Written::Anew {}
    }
}

/// The names in the folder, except the lock file.
fn names(folder: &TempDir) -> Vec<String> {
    let entries = fs::read_dir(folder.path()).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<_> = names.filter(|name| name != ".flows.parquet.lock").collect();
    names.sort();
    names
}

/// Names and packets of the files named as complete. Fails if one of them is not complete.
fn complete(folder: &TempDir) -> Vec<(String, Vec<String>)> {
    let names = names(folder).into_iter();
    names
        .filter(|name| !name.starts_with('.'))
        .map(|name| {
            let packets = packets(&folder.path().join(&name));
            (name, packets)
        })
        .collect()
}

fn packets(path: &Path) -> Vec<String> {
    let file = SerializedFileReader::new(File::open(path).unwrap()).unwrap();
    let rows = file.get_row_iter(None).unwrap();
    let columns = rows.flat_map(|row| row.unwrap().into_columns());
    let packets = columns.filter(|(name, _)| name == "packets");
    packets.map(|(_, packets)| packets.to_string()).collect()
}

/// The packets of all complete files.
fn all_packets(folder: &TempDir) -> Vec<u64> {
    let all = complete(folder)
        .into_iter()
        .flat_map(|(_, packets)| packets);
    let mut all: Vec<u64> = all.map(|packets| packets.parse().unwrap()).collect();
    all.sort_unstable();
    all
}

#[tokio::test]
async fn rows_wait_in_a_hidden_file_until_theirs_is_complete() {
    let folder = tempfile::tempdir().unwrap();
    let bytes = [piece(1), piece(2)].concat().len() as u64;
    let mut file = rotated(
        &folder,
        Rotation {
            bytes,
            ..rotation()
        },
    );
    write(&mut file, [1, 2]).await;
    assert_eq!(names(&folder), [OPEN]);
    write(&mut file, [3]).await;
    let after_the_first = complete(&folder);
    let [(name, packets)] = &after_the_first[..] else {
        panic!("{after_the_first:?}")
    };
    assert!(
        name.starts_with("flows-2") && name.ends_with("Z.parquet"),
        "{name}"
    );
    assert_eq!(packets, &["1", "2"]);
    assert_eq!(names(&folder).len(), 2);
    file.close().await.unwrap();
    assert_eq!(names(&folder).len(), 2);
    assert_eq!(all_packets(&folder), [1, 2, 3]);
}

#[tokio::test]
async fn a_file_that_is_old_enough_is_complete() {
    let folder = tempfile::tempdir().unwrap();
    let after = Duration::from_hours(1);
    let mut young = rotated(
        &folder,
        Rotation {
            after,
            ..rotation()
        },
    );
    write(&mut young, [1, 2]).await;
    assert_eq!(names(&folder), [OPEN]);
    drop(young);
    let after = Duration::from_nanos(1);
    let mut old = rotated(
        &folder,
        Rotation {
            after,
            ..rotation()
        },
    );
    // The file of the first output is completed, and its own file is too old at the next write.
    assert_eq!(old.write(piece(3)).await.unwrap(), Written::Anew);
    assert_eq!(old.write(piece(3)).await.unwrap(), Written::Yes);
    assert_eq!(old.write(piece(4)).await.unwrap(), Written::Anew);
    assert_eq!(all_packets(&folder), [1, 2, 3]);
    assert_eq!(complete(&folder).len(), 2);
}

#[tokio::test]
async fn the_oldest_files_are_removed_by_number_and_by_bytes() {
    let scratch = tempfile::tempdir().unwrap();
    let mut one = rotated(&scratch, rotation());
    write(&mut one, [1]).await;
    one.close().await.unwrap();
    // All files have the same length within a few bytes.
    let one = scratch.path().join(&names(&scratch)[0]);
    let one = one.metadata().unwrap().len();
    for (files, total_bytes, expected) in [
        (3, u64::MAX, vec![5, 6, 7]),
        (100, 2 * one + one / 2, vec![6, 7]),
        (1, 9 * one, vec![7]),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let foreign = [
            "flows-of-mine.parquet",
            "mine.parquet",
            "flows-20260102T030405Z.jsonl",
        ];
        for name in foreign {
            fs::write(folder.path().join(name), vec![0; 100_000]).unwrap();
        }
        let one_each = Rotation {
            bytes: 1,
            files,
            total_bytes,
            ..rotation()
        };
        let mut file = rotated(&folder, one_each);
        write(&mut file, 1..=7).await;
        file.close().await.unwrap();
        for name in foreign {
            fs::remove_file(folder.path().join(name)).unwrap();
        }
        assert_eq!(all_packets(&folder), expected);
    }
}

#[tokio::test]
async fn what_a_killed_process_left_is_completed() {
    let part = ".flows-20260102T030405Z.part";
    let half = ".flows-20260102T030405Z.parquet.part";
    let whole = "flows-20260102T030405Z.parquet";
    let pieces = [piece(1), piece(2)].concat();
    let torn = [&pieces[..], &piece(3)[..20]].concat();
    let mut damaged = [&pieces[..], &piece(3)].concat();
    *damaged.last_mut().unwrap() ^= 1;
    let parquet = {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join(part), &pieces).unwrap();
        let mut file = rotated(&folder, rotation());
        assert_eq!(file.write(piece(9)).await.unwrap(), Written::Anew);
        fs::read(folder.path().join(whole)).unwrap()
    };
    for left in [
        // Killed before or while it wrote a piece.
        vec![(OPEN, &torn)],
        vec![(OPEN, &damaged)],
        vec![(OPEN, &pieces)],
        // Killed while it built the Parquet file.
        vec![(part, &pieces)],
        vec![(part, &damaged)],
        vec![(part, &pieces), (half, &parquet[..100].to_vec())],
        vec![(part, &pieces), (half, &parquet)],
        // Killed before it removed the pieces.
        vec![(part, &pieces), (whole, &parquet)],
    ] {
        let folder = tempfile::tempdir().unwrap();
        for (name, content) in &left {
            fs::write(folder.path().join(name), content).unwrap();
        }
        let before = names(&folder);
        let mut file = rotated(&folder, rotation());
        write(&mut file, [9]).await;
        assert_eq!(all_packets(&folder), [1, 2], "{before:?}");
        let hidden = names(&folder).into_iter();
        let hidden = hidden.filter(|name| name.starts_with('.'));
        assert_eq!(hidden.collect::<Vec<_>>(), [OPEN], "{before:?}");
    }
}

#[tokio::test]
async fn what_is_no_file_of_rows_stays_as_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(OPEN);
    fs::write(&path, "root:x:0:0").unwrap();
    let mut file = rotated(&folder, rotation());
    let error = format!("{:#}", file.write(piece(1)).await.unwrap_err());
    assert!(error.contains("would not have written"), "{error}");
    assert_eq!(fs::read_to_string(&path).unwrap(), "root:x:0:0");
}

#[tokio::test]
async fn what_cannot_be_made_whole_has_no_final_name_and_is_made_later() {
    let folder = tempfile::tempdir().unwrap();
    let no_room = Made {
        make: |_, mut to, _| {
            to.write_all(b"PAR1")?;
            anyhow::bail!("no room")
        },
        ..MADE
    };
    let one_each = || Rotation {
        bytes: 1,
        ..rotation()
    };
    let mut full = Rotated::made(folder.path().to_owned(), one_each(), no_room);
    write(&mut full, [1]).await;
    for _ in 0..2 {
        let error = format!("{:#}", full.write(piece(2)).await.unwrap_err());
        assert!(error.contains("no room"), "{error}");
        assert!(names(&folder).iter().all(|name| name.starts_with('.')));
    }
    drop(full);
    let mut file = rotated(&folder, one_each());
    write(&mut file, [2]).await;
    file.close().await.unwrap();
    assert_eq!(all_packets(&folder), [1, 2]);
}
