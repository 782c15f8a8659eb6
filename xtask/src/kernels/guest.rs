//! A virtual machine that runs tests: a kernel and an archive come in, the lines that the tests printed
//! go out.
//!
//! QEMU by software emulation on one host thread, so that it runs anywhere and needs no privilege. The
//! guest's first serial port has the kernel's messages, its second the tests' output.

use std::{
    fs::{self, File},
    io::BufWriter,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use lab::Process;

use super::{archive::Archive, modules::Module, packages::KernelPackage};

/// Begins the lines that the guest's script prints, as against the tests' own.
pub const MARK: &str = "@@ ";
/// Stands alone on the last line of a guest that came to its end.
pub const END: &str = "@@ end";

const MEMORY: &str = "2G";
const CPUS: &str = "2";

/// A test program and how long it may run.
pub struct Test {
    pub name: String,
    pub program: PathBuf,
    pub timeout: Duration,
}

/// What a guest left behind.
pub struct Outcome {
    pub lines: Vec<String>,
    pub took: Duration,
    /// The folder with `console.log` and `tests.log`.
    pub logs: PathBuf,
}

/// Boots the kernel on the archive, with its modules added, and lets the tests run to their end.
pub fn run(
    kernel: &KernelPackage,
    modules: Vec<Module>,
    mut archive: Archive,
    tests: &[Test],
    arguments: &[String],
    logs: &Path,
) -> Result<Outcome> {
    fs::create_dir_all(logs).with_context(|| format!("make {}", logs.display()))?;
    let names: Vec<String> = (0..)
        .zip(modules)
        .map(|(number, module)| {
            let path = format!("/modules/{number:03}-{}.ko", module.name);
            archive.file(&path, module.bytes);
            path
        })
        .collect();
    archive.file("/init", init(&names, tests, arguments).into_bytes());
    let initramfs = logs.join("initramfs");
    let file = File::create(&initramfs).with_context(|| format!("make {}", initramfs.display()))?;
    archive
        .write(&mut BufWriter::new(file))
        .with_context(|| format!("write {}", initramfs.display()))?;

    let serial = |name: &str| {
        let path = logs.join(name);
        // What an earlier guest left is not this one's.
        drop(fs::remove_file(&path));
        (format!("file:{}", path.display()), path)
    };
    let (console, _) = serial("console.log");
    let (output, output_path) = serial("tests.log");
    let mut qemu = Command::new("qemu-system-x86_64");
    qemu.args(["-accel", "tcg,thread=single", "-cpu", "max", "-smp", CPUS])
        .args(["-m", MEMORY, "-nodefaults", "-nographic", "-no-reboot"])
        .args(["-nic", "none", "-serial", &console, "-serial", &output])
        .arg("-kernel")
        .arg(&kernel.image)
        .arg("-initrd")
        .arg(&initramfs)
        .args(["-append", "console=ttyS0 panic=-1"])
        .stdin(Stdio::null());
    let patience: Duration =
        tests.iter().map(|test| test.timeout).sum::<Duration>() + Duration::from_secs(60);
    let start = Instant::now();
    let ended = Process::spawn(&mut qemu)?.wait(patience);
    let took = start.elapsed();
    drop(fs::remove_file(&initramfs));
    let text = fs::read(&output_path).unwrap_or_default();
    let mut lines: Vec<String> = String::from_utf8_lossy(&text)
        .lines()
        .map(|line| line.trim_end_matches('\r').to_owned())
        .collect();
    if let Err(error) = ended {
        lines.push(format!("{error:#}"));
    }
    Ok(Outcome {
        lines,
        took,
        logs: logs.to_owned(),
    })
}

/// The guest's first process: it makes the machine ready, runs the tests and switches it off.
fn init(modules: &[String], tests: &[Test], arguments: &[String]) -> String {
    let ready = format!(
        "\
#!{BUSYBOX} sh
{BUSYBOX} mount -t devtmpfs dev /dev
exec </dev/null >/dev/ttyS1 2>&1
{BUSYBOX} mkdir -p /busybox /run /tmp /proc /sys
{BUSYBOX} --install -s /busybox
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/busybox
export HOME=/tmp LC_ALL=C {skip_log}=/tmp/skipped {emulated}=1
stty -F /dev/ttyS1 raw
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t bpf bpf /sys/fs/bpf
ip link set lo up
",
        skip_log = lab::privilege::SKIP_LOG,
        emulated = lab::kernel::EMULATED,
    );
    let loading = modules
        .iter()
        .map(|module| format!("insmod {module} || echo '{MARK}module {module}'\n"));
    let arguments: Vec<String> = arguments.iter().map(|argument| quoted(argument)).collect();
    let arguments = arguments.join(" ");
    let running = tests.iter().map(|test| {
        let name = &test.name;
        let seconds = test.timeout.as_secs();
        let program = quoted(&test.program.to_string_lossy());
        format!(
            "\
echo '{MARK}start {name}'
read -r start rest </proc/uptime
timeout -s KILL {seconds} {program} --color never {arguments}
status=$?
read -r stop rest </proc/uptime
echo \"{MARK}stop {name} $status $start $stop\"
"
        )
    });
    let off = format!(
        "\
[ -e /tmp/skipped ] && sed 's/^/{MARK}skipped /' /tmp/skipped
echo '{END}'
sync
poweroff -f
"
    );
    [ready]
        .into_iter()
        .chain(loading)
        .chain(running)
        .chain([off])
        .collect()
}

/// Where `busybox` lies in the guest, whatever its place here.
pub const BUSYBOX: &str = "/busybox/busybox";

fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}
