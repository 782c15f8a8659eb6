use std::{fs, os::unix::fs::MetadataExt as _, time::Duration};

use tempfile::TempDir;

use super::{
    super::{Compression, Rotation, whole},
    *,
};

fn shared(folder: &TempDir, rotation: Rotation) -> Shared {
    let path = folder.path().join("flows.jsonl");
    Shared::new(Rotated::new(path, rotation, whole::lines))
}

/// A file takes eighty lines.
fn rotation() -> Rotation {
    Rotation {
        bytes: 80 * line(0, 0).len() as u64,
        after: Duration::MAX,
        files: 4,
        total_bytes: u64::MAX,
        compression: Compression::None,
    }
}

fn line(sender: usize, number: usize) -> String {
    format!("{{\"type\":\"flow\", \"sender\": \"{sender:02}\", \"number\": \"{number:05}\"}}\n")
}

fn piece(sender: usize, number: usize) -> (Owner, Piece) {
    let piece = Piece {
        bytes: line(sender, number).into(),
        rows: 1,
    };
    (Owner::of(&format!("{sender}")), piece)
}

async fn write(files: &mut Shared, sender: usize, number: usize) {
    assert_eq!(files.write(vec![piece(sender, number)]).await, [Ok(())]);
}

/// The numbers that are there of this sender, by the files' beginnings.
fn numbers(folder: &TempDir, sender: usize, is_in: impl Fn(&str) -> bool) -> Vec<usize> {
    let mut numbers = Vec::new();
    for entry in fs::read_dir(folder.path()).unwrap() {
        let entry = entry.unwrap();
        if !entry.file_type().unwrap().is_file() || !is_in(entry.file_name().to_str().unwrap()) {
            continue;
        }
        let text = fs::read_to_string(entry.path()).unwrap();
        let lines = text.lines().map(|line| serde_json::from_str(line).unwrap());
        let lines: Vec<serde_json::Value> = lines.collect();
        let sender = format!("{sender:02}");
        let theirs = lines.iter().filter(|line| line["sender"] == sender);
        let theirs = theirs.map(|line| line["number"].as_str().unwrap());
        numbers.extend(theirs.map(|number| number.parse::<usize>().unwrap()));
    }
    numbers.sort_unstable();
    numbers
}

#[tokio::test]
async fn a_flood_removes_nothing_of_others_before_it_or_in_between() {
    let folder = tempfile::tempdir().unwrap();
    let mut files = shared(&folder, rotation());
    for number in 0..160 {
        write(&mut files, number % 20, number).await;
    }
    for number in 0..5000 {
        write(&mut files, 99, number).await;
        if number % 100 == 0 {
            write(&mut files, number / 100 % 20, 1000 + number).await;
        }
    }
    files.close_at_the_end().await;
    let all = |_: &str| true;
    let others: Vec<_> = (0..20)
        .flat_map(|sender| numbers(&folder, sender, all))
        .collect();
    assert_eq!(others.len(), 160 + 50);
    let of_flood = numbers(&folder, 99, all);
    assert!(of_flood.ends_with(&[4998, 4999]));
    // Its own four, and its part of the file of all.
    assert!(of_flood.len() <= 4 * 80 + 10, "{}", of_flood.len());
}

#[tokio::test]
async fn whoever_has_filled_its_part_gets_a_file_of_its_own_until_that_is_old() {
    let folder = tempfile::tempdir().unwrap();
    let mut files = shared(
        &folder,
        Rotation {
            after: Duration::from_secs(2),
            ..rotation()
        },
    );
    for number in 0..30 {
        write(&mut files, 1, number).await;
    }
    let in_own = |name: &str| name.contains("from-1.");
    let open = folder.path().join("flows-from-1.jsonl");
    assert_eq!(numbers(&folder, 1, in_own), (10..30).collect::<Vec<_>>());
    assert!(open.exists());
    while open.exists() {
        tokio::time::sleep(Duration::from_millis(100)).await;
        files.complete_if_due().await.unwrap();
    }
    write(&mut files, 1, 30).await;
    assert_eq!(numbers(&folder, 1, in_own), (10..30).collect::<Vec<_>>());
    assert_eq!(numbers(&folder, 1, |name| !in_own(name)).len(), 11);
}

#[tokio::test]
async fn what_a_killed_process_has_left_is_completed_at_the_next_start() {
    let folder = tempfile::tempdir().unwrap();
    let mut files = shared(&folder, rotation());
    for number in 0..30 {
        write(&mut files, 1, number).await;
    }
    drop(files);
    let mut files = shared(&folder, rotation());
    files.begin().await.unwrap();
    assert!(!folder.path().join("flows-from-1.jsonl").exists());
    let in_own = |name: &str| name.starts_with("flows-2") && name.ends_with("Z-from-1.jsonl");
    assert_eq!(numbers(&folder, 1, in_own).len(), 20);
    assert_eq!(numbers(&folder, 1, |_| true), (0..30).collect::<Vec<_>>());
}

#[tokio::test]
async fn only_what_is_not_there_is_said_to_have_failed() {
    let folder = tempfile::tempdir().unwrap();
    let mut files = shared(&folder, rotation());
    for number in 0..10 {
        write(&mut files, 1, number).await;
    }
    let own = folder.path().join("flows-from-1.jsonl");
    fs::create_dir(&own).unwrap();
    let pieces = vec![piece(1, 10), piece(2, 0), piece(1, 11), piece(2, 1)];
    let written = files.write(pieces).await;
    let has_failed: Vec<_> = written.iter().map(Result::is_err).collect();
    assert_eq!(has_failed, [true, false, true, false], "{written:?}");
    assert_eq!(numbers(&folder, 2, |_| true), [0, 1]);
    fs::remove_dir(own).unwrap();
    write(&mut files, 1, 10).await;
    assert_eq!(numbers(&folder, 1, |_| true), (0..11).collect::<Vec<_>>());
}

#[tokio::test]
async fn no_more_than_eight_have_files_of_their_own_at_a_time() {
    let folder = tempfile::tempdir().unwrap();
    let mut files = shared(&folder, rotation());
    for sender in 0..10 {
        for number in 0..40 {
            write(&mut files, sender, number).await;
        }
    }
    let own: Vec<_> = fs::read_dir(folder.path())
        .unwrap()
        .map(|entry| entry.unwrap())
        .filter(|entry| entry.file_name().to_str().unwrap().contains("-from-"))
        .map(|entry| entry.metadata().unwrap().ino())
        .collect();
    assert_eq!(own.len(), 8);
    for sender in 0..10 {
        let all = numbers(&folder, sender, |_| true);
        assert_eq!(all, (0..40).collect::<Vec<_>>(), "{sender}");
    }
}
