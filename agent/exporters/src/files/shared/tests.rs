use std::{fs, time::Duration};

use tempfile::TempDir;

use super::{
    super::{Compression, Rotation, whole},
    *,
};

fn shared(folder: &TempDir, rotation: Rotation) -> Shared {
    let path = folder.path().join("flows.jsonl");
    Shared::new(Rotated::new(path, rotation, whole::lines))
}

/// A file has room for eighty lines.
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
    write_all(files, [piece(sender, number)]).await;
}

async fn write_all(files: &mut Shared, pieces: impl IntoIterator<Item = (Owner, Piece)>) {
    let written = files.write(pieces.into_iter().collect()).await;
    assert!(written.iter().all(Result::is_ok), "{written:?}");
}

/// The numbers of this sender's lines, from all files whose names match.
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
    for round in 0..250 {
        let flood = (0..20).map(|number| piece(99, 20 * round + number));
        write_all(&mut files, flood).await;
        if round % 5 == 0 {
            write(&mut files, round / 5 % 20, 1000 + round).await;
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
    // Its four complete files, its last one, and its part of the shared file.
    assert!(of_flood.len() <= 5 * 80 + 5, "{}", of_flood.len());
}

#[tokio::test]
async fn many_who_flood_at_the_same_rate_remove_nothing_of_others() {
    let folder = tempfile::tempdir().unwrap();
    let mut files = shared(&folder, rotation());
    for number in 0..160 {
        write(&mut files, number % 20, number).await;
    }
    for number in 0..1000 {
        write_all(&mut files, (80..88).map(|sender| piece(sender, number))).await;
    }
    files.close_at_the_end().await;
    let others = (0..20).map(|sender| numbers(&folder, sender, |_| true).len());
    assert_eq!(others.sum::<usize>(), 160);
}

#[tokio::test]
async fn whoever_writes_more_than_twice_as_much_takes_the_place_of_another() {
    let folder = tempfile::tempdir().unwrap();
    let mut files = shared(&folder, rotation());
    for sender in 0..MOST_OWN {
        for number in 0..10 + sender {
            write(&mut files, sender, number).await;
        }
    }
    let has_own = |files: &Shared, sender: usize| {
        let owner = Owner::of(&sender.to_string());
        files.own.contains_key(&owner)
    };
    assert_eq!(files.own.len(), MOST_OWN);
    for number in 0..21 {
        assert!(!has_own(&files, 99));
        write(&mut files, 99, number).await;
    }
    write(&mut files, 99, 21).await;
    assert!(has_own(&files, 99) && !has_own(&files, 0));
    assert_eq!(files.own.len(), MOST_OWN);
    for sender in (0..MOST_OWN).chain([99]) {
        let all = numbers(&folder, sender, |_| true);
        let written = if sender == 99 { 22 } else { 10 + sender };
        assert_eq!(all, (0..written).collect::<Vec<_>>(), "{sender}");
    }
}

#[tokio::test]
async fn files_of_single_senders_are_completed_one_at_a_time() {
    let folder = tempfile::tempdir().unwrap();
    let after = Duration::from_millis(1);
    let mut files = shared(
        &folder,
        Rotation {
            after,
            ..rotation()
        },
    );
    // Each sender fills part of a file at once.
    for sender in 0..4 {
        write_all(&mut files, (0..10).map(|number| piece(sender, number))).await;
    }
    tokio::time::sleep(after).await;
    // A write does not complete them either.
    write_all(&mut files, (0..4).map(|sender| piece(sender, 10))).await;
    let complete = |name: &str| name.starts_with("flows-") && name.contains("-from-");
    for sender in 0..4 {
        assert!(numbers(&folder, sender, complete).is_empty());
    }
    for left in (0..4).rev() {
        files.complete_if_due().await.unwrap();
        assert_eq!(files.own.len(), left);
    }
}

#[tokio::test]
async fn a_sender_whose_first_file_begins_after_the_clock_was_set_back_keeps_it() {
    let folder = tempfile::tempdir().unwrap();
    for day in 1..=5 {
        let name = format!("flows-2999010{day}T000000Z.jsonl");
        fs::write(folder.path().join(name), line(2, day)).unwrap();
    }
    // One too many, of which the sender has less than half.
    let total_bytes = 7 * line(0, 0).len() as u64;
    let mut files = shared(
        &folder,
        Rotation {
            files: 99,
            total_bytes,
            ..rotation()
        },
    );
    for number in 0..8 {
        write(&mut files, 1, number).await;
    }
    files.end(&Owner::of("1")).await;
    let in_own = |name: &str| name.contains("from-1");
    assert_eq!(numbers(&folder, 1, in_own), [5, 6, 7]);
    assert_eq!(numbers(&folder, 2, |_| true), [2, 3, 4, 5]);
}

#[tokio::test]
async fn whoever_has_filled_its_part_gets_a_file_of_its_own_until_that_is_old() {
    let folder = tempfile::tempdir().unwrap();
    let after = Duration::from_hours(1);
    let mut files = shared(
        &folder,
        Rotation {
            after,
            ..rotation()
        },
    );
    for number in 0..30 {
        write(&mut files, 1, number).await;
    }
    let in_own = |name: &str| name.contains("from-1");
    let open = folder.path().join("flows.jsonl.from-1");
    assert_eq!(numbers(&folder, 1, in_own), (5..30).collect::<Vec<_>>());
    files.complete_if_due().await.unwrap();
    assert!(open.exists());
    let own = files.own.values_mut().next().unwrap();
    own.open.as_mut().unwrap().since -= after;
    files.complete_if_due().await.unwrap();
    assert!(!open.exists());
    // Its share is halved each time.
    for number in 0..3 {
        files.halved -= after;
        write(&mut files, 2, number).await;
    }
    write(&mut files, 1, 30).await;
    assert!(files.own.is_empty());
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
    files.complete_if_due().await.unwrap();
    assert!(!folder.path().join("flows.jsonl.from-1").exists());
    let in_own = |name: &str| name.starts_with("flows-2") && name.ends_with("-from-1.jsonl");
    assert_eq!(numbers(&folder, 1, in_own).len(), 25);
    assert_eq!(numbers(&folder, 1, |_| true), (0..30).collect::<Vec<_>>());
}

#[tokio::test]
async fn only_what_is_not_there_is_said_to_have_failed() {
    let folder = tempfile::tempdir().unwrap();
    let mut files = shared(&folder, rotation());
    for number in 0..5 {
        write(&mut files, 1, number).await;
    }
    let own = folder.path().join("flows.jsonl.from-1");
    fs::create_dir(&own).unwrap();
    let pieces = vec![piece(1, 5), piece(2, 0), piece(1, 6), piece(2, 1)];
    let written = files.write(pieces).await;
    let has_failed: Vec<_> = written.iter().map(Result::is_err).collect();
    assert_eq!(has_failed, [true, false, true, false], "{written:?}");
    assert_eq!(numbers(&folder, 2, |_| true), [0, 1]);
    fs::remove_dir(own).unwrap();
    write(&mut files, 1, 5).await;
    assert_eq!(numbers(&folder, 1, |_| true), (0..6).collect::<Vec<_>>());
}

#[tokio::test]
async fn what_a_sender_has_written_for_long_is_not_the_oldest() {
    let folder = tempfile::tempdir().unwrap();
    let total_bytes = 250 * line(0, 0).len() as u64;
    let mut files = shared(
        &folder,
        Rotation {
            files: 99,
            total_bytes,
            ..rotation()
        },
    );
    write_all(&mut files, (0..10).map(|number| piece(99, number))).await;
    // Names have a resolution of a second.
    tokio::time::sleep(Duration::from_millis(1100)).await;
    for number in 0..32 {
        write_all(&mut files, (0..10).map(|sender| piece(sender, number))).await;
        files.written.clear();
    }
    files.close_at_the_end().await;
    assert!(numbers(&folder, 99, |_| true).ends_with(&[5, 6, 7, 8, 9]));
    assert!(numbers(&folder, 1, |_| true).len() < 32);
}

#[tokio::test]
async fn whoever_has_filled_its_file_keeps_its_place() {
    let folder = tempfile::tempdir().unwrap();
    let mut files = shared(&folder, rotation());
    write_all(&mut files, (0..78).map(|number| piece(1, number))).await;
    for has_place in [true, false] {
        files.complete_if_due().await.unwrap();
        assert_eq!(files.own.contains_key(&Owner::of("1")), has_place);
    }
    assert_eq!(numbers(&folder, 1, |_| true).len(), 78);
}
