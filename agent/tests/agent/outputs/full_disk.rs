//! A disk that is full for a while.

use std::{fs, fs::File, io::Write as _, process::Command};

use super::*;

#[test]
fn flows_wait_while_the_disk_is_full_and_are_in_whole_files_when_it_is_not() {
    const TEST: &str =
        "agent::flows_wait_while_the_disk_is_full_and_are_in_whole_files_when_it_is_not";
    if !is_root_or_skip(TEST) {
        return;
    }
    let disk = SmallDisk::mount();
    let lab = Lab::quiet().unwrap();
    let lines_in = disk.folder("lines");
    let jsonl = format!(
        r#"{{"kind": "jsonl", "address": "{}/flows.jsonl", "compression": "none"}}"#,
        lines_in.display()
    );
    let rows_in = disk.folder("rows");
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

    disk.fill();
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

    disk.free();
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

/// A file system of a megabyte.
struct SmallDisk(TempDir);

impl SmallDisk {
    fn mount() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mount = ["-t", "tmpfs", "-o", "size=1m", "tmpfs"];
        run(Command::new("mount").args(mount).arg(folder.path()));
        Self(folder)
    }

    fn folder(&self, name: &str) -> PathBuf {
        let path = self.0.path().join(name);
        fs::create_dir(&path).unwrap();
        path
    }

    fn rest(&self) -> PathBuf {
        self.0.path().join("rest")
    }

    /// Takes all the room that is left.
    fn fill(&self) {
        let mut rest = File::create(self.rest()).unwrap();
        while rest.write_all(&[0; 4096]).is_ok() {}
    }

    fn free(&self) {
        fs::remove_file(self.rest()).unwrap();
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        run(Command::new("umount").arg("--lazy").arg(self.0.path()));
    }
}

fn run(command: &mut Command) {
    let status = command.status().unwrap();
    assert!(status.success(), "{command:?}");
}
