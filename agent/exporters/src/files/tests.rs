use std::{
    io::Read as _,
    os::unix::fs::{PermissionsExt as _, symlink},
    sync::Barrier,
    thread,
};

use formats::{
    encoder::Encoder as _,
    ipfix::{Domains, Ipfix, Settings},
};
use futures_util::FutureExt as _;
use proto::{FlowBatch, FlowRecord};
use tempfile::TempDir;

use super::*;
use crate::transport::{Failure, Transport};

#[path = "../../../formats/src/ipfix/tests/collector.rs"]
#[expect(dead_code, reason = "the tests of the format do more with it")]
mod collector;
#[path = "../../../formats/src/ipfix/tests/flows.rs"]
#[expect(dead_code, reason = "the tests of the format do more with it")]
mod flows;

use collector::Collector;

const LINE: &[u8] = b"{\"type\":\"flow\",\"packets\":1}\n";

fn rotation(compression: Compression) -> Rotation {
    Rotation {
        bytes: 3 * LINE.len() as u64,
        after: Duration::MAX,
        files: 3,
        total_bytes: u64::MAX,
        compression,
    }
}

fn rotated(folder: &TempDir, rotation: Rotation) -> Rotated {
    Rotated::new(folder.path().join("flows.jsonl"), rotation, whole::lines)
}

async fn write(file: &mut Rotated, lines: usize) {
    for _ in 0..lines {
        while file.write(LINE).await.unwrap() == Written::Anew {}
    }
}

/// File names with their decompressed content.
fn files(folder: &TempDir) -> Vec<(String, Vec<u8>)> {
    let paths = fs::read_dir(folder.path()).unwrap();
    let paths = paths.map(|entry| entry.unwrap().path());
    let is_lock = |path: &PathBuf| path.extension().is_some_and(|name| name == "lock");
    let mut files: Vec<_> = paths
        .filter(|path| !is_lock(path))
        .map(|path| {
            let mut content = Vec::new();
            let mut file = File::open(&path).unwrap();
            match path.extension().and_then(|extension| extension.to_str()) {
                Some("gz") => flate2::read::GzDecoder::new(file).read_to_end(&mut content),
                Some("zst") => zstd::Decoder::new(file).unwrap().read_to_end(&mut content),
                _ => file.read_to_end(&mut content),
            }
            .unwrap();
            (
                path.file_name().unwrap().to_str().unwrap().to_owned(),
                content,
            )
        })
        .collect();
    files.sort();
    files
}

#[tokio::test]
async fn a_file_that_is_large_enough_is_complete_and_another_begins() {
    for (compression, suffix) in [
        (Compression::None, ".jsonl"),
        (Compression::Gzip, ".jsonl.gz"),
        (Compression::Zstd, ".jsonl.zst"),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let mut file = rotated(&folder, rotation(compression));
        write(&mut file, 7).await;
        let open: Vec<_> = files(&folder)
            .into_iter()
            .filter(|(name, _)| name == "flows.jsonl")
            .collect();
        assert_eq!(open, [("flows.jsonl".to_owned(), LINE.to_vec())]);
        file.close().await.unwrap();
        let files = files(&folder);
        let mut lines: Vec<usize> = files
            .iter()
            .map(|(_, content)| content.len() / LINE.len())
            .collect();
        lines.sort_unstable();
        assert_eq!(lines, [1, 3, 3], "{compression:?}");
        let all = files
            .iter()
            .all(|(name, _)| name.starts_with("flows-2") && name.ends_with(suffix));
        assert!(all, "{files:?}");
    }
}

#[tokio::test]
async fn a_file_that_is_old_enough_is_complete() {
    let folder = tempfile::tempdir().unwrap();
    let after = Duration::from_nanos(1);
    let mut file = rotated(
        &folder,
        Rotation {
            after,
            ..rotation(Compression::None)
        },
    );
    write(&mut file, 1).await;
    // Every further write finds the file too old.
    assert_eq!(file.write(LINE).await.unwrap(), Written::Anew);
    assert_eq!(files(&folder).len(), 2);
}

#[test]
fn the_oldest_files_are_removed_by_number_and_by_bytes() {
    let folder = tempfile::tempdir().unwrap();
    let oldest_first = [
        "flows-20260102T030405Z.jsonl.gz",
        "flows-20260102T030405Z-2.jsonl",
        "flows-20260102T030405Z-10.jsonl.zst",
        "flows-20260102T030406Z.jsonl",
        "flows-20250102T030405Z-r1.jsonl",
        "flows-20250102T030405Z-r1-2.jsonl.gz",
        "flows-20260102T030405Z-r1.jsonl",
        "flows-20240102T030405Z-r10.jsonl",
    ];
    let foreign = [
        "flows-of-somebody.jsonl",
        "flows-20260102T030405Z.json",
        "flows-20260102T030405Z-r.jsonl",
        "flows-20260102T030405Z-2-r1.jsonl",
        "flows-20260102T030405Z-r4294967295.jsonl",
        "flows.jsonl",
    ];
    for name in oldest_first.iter().chain(&foreign) {
        fs::write(folder.path().join(name), "123").unwrap();
    }
    let left = |files, total_bytes| {
        let rotation = Rotation {
            files,
            total_bytes,
            ..rotation(Compression::None)
        };
        let names = Names::at(&folder.path().join("flows.jsonl"));
        names.remove_the_oldest(&rotation).unwrap();
        let is_there = |name: &&str| folder.path().join(name).exists();
        assert!(foreign.iter().all(is_there));
        oldest_first.iter().filter(|name| is_there(name)).count()
    };
    assert_eq!(left(8, 24), 8);
    for (files, total_bytes, expected) in [
        (7, u64::MAX, 7),
        (6, u64::MAX, 6),
        (u32::MAX, 15, 5),
        (4, u64::MAX, 4),
        (3, u64::MAX, 3),
        (u32::MAX, 6, 2),
        (1, 3, 1),
    ] {
        assert_eq!(left(files, total_bytes), expected);
        let newest = &oldest_first[oldest_first.len() - expected..];
        assert!(
            newest.iter().all(|name| folder.path().join(name).exists()),
            "{newest:?}"
        );
    }
}

#[test]
fn a_name_that_became_free_is_not_given_to_a_later_file_of_the_same_second() {
    let folder = tempfile::tempdir().unwrap();
    let names = Names::at(&folder.path().join("flows.jsonl"));
    let began = std::time::UNIX_EPOCH + Duration::from_hours(1);
    let bounds = Rotation {
        files: 2,
        ..rotation(Compression::None)
    };
    for line in 0..12 {
        let name = names.complete(began, None).unwrap();
        fs::write(names.whole(&name, ""), line.to_string()).unwrap();
        names.remove_the_oldest(&bounds).unwrap();
    }
    let mut contents: Vec<_> = files(&folder).into_iter().collect();
    contents.sort_by_key(|(_, content)| content.clone());
    assert_eq!(
        contents,
        [
            ("flows-19700101T010000Z-11.jsonl".to_owned(), b"10".to_vec()),
            ("flows-19700101T010000Z-12.jsonl".to_owned(), b"11".to_vec()),
        ]
    );
}

#[test]
fn a_file_of_one_sender_says_whose_it_is_and_when_it_ended() {
    let folder = tempfile::tempdir().unwrap();
    let names = Names::at(&folder.path().join("flows.jsonl"));
    let owners = ["web01", "-r1-2", "a.jsonl.gz", "ip:2001:db8::1", "from-b"].map(Owner::of);
    let at = |hour| std::time::UNIX_EPOCH + Duration::from_hours(hour);
    for (is_recovered, hour, owner, expected) in [
        (false, 2, None, "Z"),
        (false, 4, Some(&owners[0]), "Z-from-web01"),
        // This one began before the other one was complete.
        (true, 3, None, "Z"),
        // The clock was set back.
        (false, 2, Some(&owners[1]), "Z-r1-from--r1-2"),
        (false, 2, Some(&owners[2]), "Z-r1-2-from-a+jsonl+gz"),
        (false, 3, Some(&owners[3]), "Z-r1-from-ip+2001+db8++1"),
        (false, 4, Some(&owners[4]), "Z-r1-from-from-b"),
        (true, 3, None, "Z-r1"),
    ] {
        let name = if is_recovered {
            names.recovered(at(hour))
        } else {
            names.complete(at(hour), owner)
        };
        let name = name.unwrap();
        let path = names.whole(&name, "");
        fs::write(&path, "").unwrap();
        let file = path.file_name().unwrap().to_str().unwrap();
        let expected = format!("flows-19700101T{hour:02}0000{expected}.jsonl");
        assert_eq!(file, expected);
        let (read, ending, is_part) = names.read(file).unwrap();
        assert_eq!((read.owner.as_ref(), ending, is_part), (owner, "", false));
    }
    for owner in &owners[1..] {
        fs::write(names.open(Some(owner)), "").unwrap();
    }
    let part = names.complete(at(5), Some(&owners[0])).unwrap();
    fs::write(names.part(&part), "").unwrap();
    fs::write(folder.path().join("flows-from-eu.jsonl"), "").unwrap();
    let mut found = names.owners().unwrap();
    found.sort();
    let mut owners = owners.to_vec();
    owners.sort();
    assert_eq!(found, owners);
}

#[tokio::test]
async fn a_file_that_is_made_of_pieces_is_complete_at_its_most_rows() {
    fn copy(from: &mut File, to: File, _: Compression) -> Result<File> {
        compress(from, to, Compression::None)
    }
    let folder = tempfile::tempdir().unwrap();
    let made = Made {
        stem: "flows",
        ending: &[".copy"],
        whole_len: whole::lines,
        make: copy,
    };
    let rotation = Rotation {
        bytes: 1 << 30,
        ..rotation(Compression::None)
    };
    let mut file = Rotated::made(folder.path().to_owned(), rotation, made);
    // Four pieces fit, and the fifth begins another file.
    for _ in 0..5 {
        let piece = Piece {
            bytes: Bytes::from_static(LINE),
            rows: MOST_ROWS / 4,
        };
        while file.write_all(vec![piece.clone()]).await.unwrap() == Written::Anew {}
    }
    let complete = files(&folder);
    let complete = complete
        .iter()
        .find(|(name, _)| Path::new(name).extension() == Some("copy".as_ref()));
    assert_eq!(complete.unwrap().1, LINE.repeat(4));
}

/// Each start finds files dated in the future, as if a clock that was years ahead had been corrected.
#[tokio::test]
async fn the_newest_files_stay_however_far_the_clock_was_set_back() {
    for compression in [Compression::None, Compression::Zstd] {
        let folder = tempfile::tempdir().unwrap();
        for name in [
            "flows-29990102T030405Z.jsonl",
            "flows-29990102T030405Z-2.jsonl",
        ] {
            fs::write(folder.path().join(name), LINE).unwrap();
        }
        // A file that the start completes is newer, too.
        fs::write(folder.path().join("flows.jsonl"), LINE.repeat(2)).unwrap();
        let lens = || -> Vec<_> {
            let complete = files(&folder).into_iter();
            let complete = complete.filter(|(name, _)| name != "flows.jsonl");
            let mut lens: Vec<_> = complete
                .map(|(_, content)| content.len() / LINE.len())
                .collect();
            lens.sort_unstable();
            lens
        };
        let mut file = rotated(&folder, rotation(compression));
        write(&mut file, 3).await;
        assert_eq!(lens(), [1, 1, 2]);
        file.close().await.unwrap();
        assert_eq!(lens(), [1, 2, 3]);
        // The same in another process.
        drop(file);
        let ahead = folder.path().join("flows-30000102T030405Z-r1.jsonl");
        fs::write(&ahead, LINE).unwrap();
        let mut file = rotated(&folder, rotation(Compression::None));
        write(&mut file, 1).await;
        file.close().await.unwrap();
        let names: Vec<_> = files(&folder).into_iter().map(|(name, _)| name).collect();
        assert_eq!(names.len(), 3);
        assert!(
            names.iter().any(|name| name.ends_with("Z-r2.jsonl")),
            "{names:?}"
        );
        assert!(
            !names.iter().any(|name| name.starts_with("flows-2999")),
            "{names:?}"
        );
        assert!(ahead.exists());
    }
}

#[tokio::test]
async fn what_a_killed_process_left_is_cut_to_whole_lines_and_completed() {
    let folder = tempfile::tempdir().unwrap();
    let half = [LINE, LINE, b"{\"type\":\"fl"].concat();
    fs::write(folder.path().join("flows.jsonl"), half).unwrap();
    // One process was killed while it compressed a file, another before it removed the uncompressed file.
    let left = |name: &str, content: &[u8]| fs::write(folder.path().join(name), content).unwrap();
    left("flows-20260102T030405Z.jsonl.part", LINE);
    left("flows-20260102T030405Z.jsonl.gz.part", b"half");
    left("flows-20260102T030406Z.jsonl.part", LINE);
    left("flows-20260102T030406Z.jsonl.gz", b"");
    let mut file = rotated(&folder, rotation(Compression::Gzip));
    assert_eq!(file.write(LINE).await.unwrap(), Written::Anew);
    fs::write(folder.path().join("flows-20260102T030406Z.jsonl.gz"), {
        let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        gzip.write_all(LINE).unwrap();
        gzip.finish().unwrap()
    })
    .unwrap();
    let contents: Vec<_> = files(&folder)
        .into_iter()
        .map(|(_, content)| content)
        .collect();
    assert_eq!(
        contents,
        [LINE.to_vec(), LINE.to_vec(), LINE.repeat(2), Vec::new()]
    );
}

#[tokio::test]
async fn what_is_no_file_of_the_format_stays_as_it_is() {
    for (content, whole_len) in [
        ("root:x:0:0", whole::lines as WholeLen),
        ("{\"debug\": true}", whole::lines),
        ("{\n  \"type\": 1\n}", whole::lines),
        ("{\"ty", whole::lines),
        ("\0\n\0\u{14}", whole::ipfix),
        ("root:x:0:0", whole::ipfix),
        ("r", whole::ipfix),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("passwd");
        fs::write(&path, content).unwrap();
        let mut file = Rotated::new(path.clone(), rotation(Compression::None), whole_len);
        let error = format!("{:#}", file.write(LINE).await.unwrap_err());
        assert!(
            error.contains("would not have written: name another path"),
            "{error}"
        );
        assert_eq!(fs::read_to_string(&path).unwrap(), content);
    }
}

#[test]
fn whole_messages_of_ipfix_end_where_their_lengths_say() {
    let message = |len: usize| {
        let mut message = vec![0; len];
        message[..4].copy_from_slice(&[0, 10, 0, len as u8]);
        message
    };
    for (content, whole) in [
        (Vec::new(), 0),
        (message(20), 20),
        ([message(20), message(16)].concat(), 36),
        ([message(20), message(40)[..39].to_vec()].concat(), 20),
        (message(20)[..17].to_vec(), 0),
    ] {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&content).unwrap();
        assert_eq!(whole::ipfix(&mut file).unwrap(), whole, "{content:?}");
    }
}

#[tokio::test]
async fn two_never_write_at_one_path() {
    let folder = tempfile::tempdir().unwrap();
    let mut first = rotated(&folder, rotation(Compression::None));
    write(&mut first, 1).await;
    let mut second = rotated(&folder, rotation(Compression::None));
    let error = format!("{:#}", second.write(LINE).await.unwrap_err());
    assert!(
        error.contains("another output or another agent writes there"),
        "{error}"
    );
    write(&mut first, 1).await;
    first.close().await.unwrap();
    drop(first);
    write(&mut second, 1).await;
    second.close().await.unwrap();
    let mut lines: Vec<_> = files(&folder)
        .iter()
        .map(|(_, content)| content.len() / LINE.len())
        .collect();
    lines.sort_unstable();
    assert_eq!(lines, [1, 2]);
}

#[tokio::test]
async fn where_files_cannot_be_written_is_known_before_the_first_is() {
    let folder = TempDir::new().unwrap();
    let at = |path: &str| {
        let path = folder.path().join(path);
        Rotated::new(path, rotation(Compression::None), whole::lines)
    };
    fs::write(folder.path().join("notes"), "not ours").unwrap();
    fs::create_dir(folder.path().join("folder")).unwrap();
    for refused in ["missing/flows", "notes/flows", "notes", "folder"] {
        assert!(at(refused).refuse_unwritable().await.is_err(), "{refused}");
    }
    assert!(!folder.path().join("missing").exists());
    let mut file = at("flows");
    file.refuse_unwritable().await.unwrap();
    assert!(!folder.path().join("flows").exists());
    // A file of an earlier process stays unchanged, too.
    fs::write(folder.path().join("left"), [LINE, b"half"].concat()).unwrap();
    at("left").refuse_unwritable().await.unwrap();
    let left = fs::read(folder.path().join("left")).unwrap();
    assert_eq!(left, [LINE, b"half"].concat());
    write(&mut file, 1).await;
    assert!(at("flows").refuse_unwritable().await.is_err());
}

#[tokio::test]
async fn a_link_to_another_file_is_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let target = folder.path().join("target");
    fs::write(&target, LINE).unwrap();
    symlink(&target, folder.path().join("flows.jsonl")).unwrap();
    let mut file = rotated(&folder, rotation(Compression::None));
    file.write(LINE).await.unwrap_err();
    assert_eq!(fs::read(&target).unwrap(), LINE);
}

#[tokio::test]
async fn a_link_in_the_place_of_what_becomes_complete_is_not_followed() {
    let folder = tempfile::tempdir().unwrap();
    let target = folder.path().join("target");
    fs::write(&target, LINE).unwrap();
    let mut file = rotated(&folder, rotation(Compression::Gzip));
    write(&mut file, 2).await;
    let names = &file.place.names;
    let half = names.half(&file.open.as_ref().unwrap().complete, ".gz");
    symlink(&target, half).unwrap();
    file.close().await.unwrap();
    assert_eq!(fs::read(&target).unwrap(), LINE);
    let (name, content) = files(&folder).swap_remove(0);
    assert!(name.ends_with(".jsonl.gz"), "{name}");
    assert_eq!(content, LINE.repeat(2));
}

#[tokio::test]
async fn a_link_that_seems_to_wait_to_be_completed_is_not_followed() {
    let folder = tempfile::tempdir().unwrap();
    let target = folder.path().join("target");
    fs::write(&target, LINE).unwrap();
    let waits = folder.path().join("flows-20260102T030405Z.jsonl.part");
    symlink(&target, waits).unwrap();
    let mut file = rotated(&folder, rotation(Compression::Gzip));
    let error = format!("{:#}", file.write(LINE).await.unwrap_err());
    assert!(error.contains("20260102T030405Z.jsonl.part"), "{error}");
    assert_eq!(fs::read(&target).unwrap(), LINE);
}

#[tokio::test]
async fn the_group_may_read_files_and_others_may_not() {
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    let elsewhere = tempfile::tempdir().unwrap();
    let usual = elsewhere.path().join("usual");
    fs::write(&usual, "").unwrap();
    let expected = mode(&usual) & 0o640;
    for compression in [Compression::None, Compression::Gzip, Compression::Zstd] {
        let folder = tempfile::tempdir().unwrap();
        let mut file = rotated(&folder, rotation(compression));
        write(&mut file, 4).await;
        let paths = fs::read_dir(folder.path()).unwrap();
        let paths: Vec<_> = paths.map(|entry| entry.unwrap().path()).collect();
        assert_eq!(
            paths.len(),
            3,
            "one that is written, one that is complete, the lock"
        );
        for path in paths {
            assert_eq!(mode(&path), expected, "{}", path.display());
        }
    }
}

/// Sends everything, as a worker does.
async fn send(ipfix: &mut Ipfix, file: &mut Transport, batch: &FlowBatch, flows: &[FlowRecord]) {
    let mut rest = flows;
    for _ in 0..1_000 {
        let message = ipfix.message(batch, rest);
        if message.bytes.is_empty() {
            assert!(rest.is_empty());
            return;
        }
        match file.send(&message).await {
            Ok(_) => {
                ipfix.sent();
                rest = &rest[message.flows..];
            }
            Err(Failure::Anew) => ipfix.restart(),
            Err(error) => panic!("{error}"),
        }
    }
    panic!("{} flows do not go out", rest.len());
}

#[tokio::test]
async fn flows_go_out_however_soon_a_file_is_complete() {
    let smallest = Rotation {
        bytes: 1,
        files: u32::MAX,
        ..rotation(Compression::None)
    };
    let youngest = Rotation {
        bytes: u64::MAX,
        after: Duration::from_nanos(1),
        ..smallest.clone()
    };
    for rotation in [smallest, youngest] {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("flows.ipfix");
        let mut file = Transport::File(Rotated::new(path, rotation, whole::ipfix));
        // So short that a file begins with several messages of options.
        let settings = Settings {
            message_len_bytes: 512,
            ..Settings::stream()
        };
        let mut ipfix = Ipfix::new(settings, |_| Domains {
            flows: 1,
            process: 2,
        });
        let batch = FlowBatch {
            interfaces: (1..=50)
                .map(|index| flows::interface(index, "eth"))
                .collect(),
            ..flows::last_batch(1)
        };
        let some = vec![flows::tcp(); 8];
        send(&mut ipfix, &mut file, &batch, &some).await;
        file.close().await.unwrap();
        let mut read = 0;
        for (name, content) in files(&folder) {
            let mut collector = Collector::default();
            let mut rest = &content[..];
            let mut records = Vec::new();
            while !rest.is_empty() {
                let len = usize::from(u16::from_be_bytes([rest[2], rest[3]]));
                records.extend(collector.read(&rest[..len]));
                rest = &rest[len..];
            }
            assert!(!records.is_empty(), "{name}");
            read += records.iter().filter(|record| record.scopes == 0).count();
        }
        assert_eq!(read, some.len());
    }
}

#[tokio::test]
async fn nobody_writes_there_while_a_thread_completes_the_file_of_an_output_that_is_gone() {
    static BEGUN: Barrier = Barrier::new(2);
    static MAY_END: Barrier = Barrier::new(2);
    fn copy(from: &mut File, to: File, _: Compression) -> Result<File> {
        compress(from, to, Compression::None)
    }
    fn wait(from: &mut File, to: File, compression: Compression) -> Result<File> {
        BEGUN.wait();
        MAY_END.wait();
        copy(from, to, compression)
    }
    let folder = tempfile::tempdir().unwrap();
    let made = |make| {
        let made = Made {
            stem: "flows",
            ending: &[".copy"],
            whole_len: whole::lines,
            make,
        };
        Rotated::made(folder.path().to_owned(), rotation(Compression::None), made)
    };
    let mut first = made(wait);
    write(&mut first, 2).await;
    // The deadline of `first` passes.
    assert!(first.close().now_or_never().is_none());
    drop(first);
    BEGUN.wait();
    let mut second = made(copy);
    let refused = second.write(LINE).await;
    MAY_END.wait();
    let error = format!("{:#}", refused.unwrap_err());
    let busy = "another output or another agent writes there";
    assert!(error.contains(busy), "{error}");
    while let Err(error) = second.write(LINE).await {
        let error = format!("{error:#}");
        assert!(error.contains(busy), "{error}");
    }
    write(&mut second, 1).await;
    second.close().await.unwrap();
    let files = files(&folder);
    let mut lines: Vec<_> = files
        .iter()
        .map(|(name, content)| (name.starts_with("flows-"), content.len() / LINE.len()))
        .collect();
    lines.sort_unstable();
    assert_eq!(lines, [(true, 1), (true, 2)], "{files:?}");
}

/// The caller stops waiting for a piece before a thread starts to write it, and while the thread writes.
#[test]
fn a_piece_that_nobody_waits_for_is_written_or_not_and_that_is_told() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .max_blocking_threads(1)
        .build()
        .unwrap();
    runtime.block_on(async {
        let folder = tempfile::tempdir().unwrap();
        let rotation = Rotation {
            bytes: u64::MAX,
            ..rotation(Compression::None)
        };
        let mut file = rotated(&folder, rotation.clone());
        write(&mut file, 1).await;
        let path = folder.path().join("flows.jsonl");
        let (free, is_free) = std::sync::mpsc::channel::<()>();
        // This task occupies the only thread.
        let other = spawn_blocking(move || is_free.recv());
        assert!(file.write(LINE).now_or_never().is_none());
        assert!(!file.has_written().await.unwrap());
        free.send(()).unwrap();
        other.await.unwrap().unwrap();
        // This runs after the write.
        spawn_blocking(|| ()).await.unwrap();
        assert_eq!(fs::read(&path).unwrap(), LINE);

        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("flows.jsonl");
        let mut file = rotated(&folder, rotation);
        write(&mut file, 1).await;
        let long = LINE.repeat(1 << 20);
        assert!(file.write(long.clone()).now_or_never().is_none());
        // Wait until the thread is writing.
        let until = Instant::now() + Duration::from_mins(2);
        while fs::metadata(&path).unwrap().len() == LINE.len() as u64 {
            assert!(Instant::now() < until, "nothing is written");
            thread::yield_now();
        }
        assert!(file.has_written().await.unwrap());
        assert_eq!(fs::read(&path).unwrap().len(), LINE.len() + long.len());
        file.close().await.unwrap();
    });
}
