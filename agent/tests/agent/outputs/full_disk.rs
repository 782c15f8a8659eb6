//! A disk that is full for a while.

use super::*;
use crate::support::disk::SmallDisk;

#[test]
fn flows_wait_while_the_disk_is_full_and_are_in_whole_files_when_it_is_not() {
    const TEST: &str =
        "agent::flows_wait_while_the_disk_is_full_and_are_in_whole_files_when_it_is_not";
    if !is_root_or_skip(TEST) {
        return;
    }
    let disk = SmallDisk::mount("size=1m");
    let lab = Lab::quiet().unwrap();
    let lines_in = make_folder(&disk, "lines");
    let jsonl = format!(
        r#"{{"kind": "jsonl", "address": "{}/flows.jsonl", "compression": "none"}}"#,
        lines_in.display()
    );
    let rows_in = make_folder(&disk, "rows");
    let parquet = format!(
        r#"{{"kind": "parquet", "address": "{}"}}"#,
        rows_in.display()
    );
    let settings = ["--output", "json", "--output", &jsonl, "--output", &parquet];
    let mut agent = Agent::start(&lab, &settings);
    let mut sent = send(&lab, 20, 2);
    wait_until_counted(&agent, &lab, sent.packets);
    for name in ["jsonl", "parquet"] {
        wait_until("it is written", || {
            fates(&output(&agent, &lab, name), sent)["sent"] == sent
        });
    }

    let rest = disk.fill();
    let later = send(&lab, 300, 2);
    sent += later;
    wait_until_counted(&agent, &lab, sent.packets);
    for name in ["jsonl", "parquet"] {
        wait_until("the disk is full", || {
            let output = output(&agent, &lab, name);
            let fates = fates(&output, sent);
            // The pieces before the one that does not fit are written.
            let error = output["last_error"].as_str().unwrap_or_default();
            output["failing"] == true && fates["queued"].packets > 0 && {
                assert_eq!(fates["lost"], Pair::default(), "{output}");
                error.contains("No space left on device")
            }
        });
    }
    agent.wait_until_logged("free space there, or let the output keep less (keep_bytes)");

    fs::remove_file(rest).unwrap();
    for name in ["jsonl", "parquet"] {
        wait_until("it is written", || {
            let output = output(&agent, &lab, name);
            output["failing"] == false && fates(&output, sent)["sent"] == sent
        });
    }
    assert_eq!(agent.stop().seen(), sent);
    assert_eq!(sum(&lines(&lines_in)), sent);
    assert_eq!(parquet::sum(&parquet::complete(&rows_in)), sent);
}

fn make_folder(disk: &SmallDisk, name: &str) -> PathBuf {
    let path = disk.path().join(name);
    fs::create_dir(&path).unwrap();
    path
}
