//! Runs tests in a virtual machine and returns the lines that they print.
//!
//! QEMU emulates the machine in software on one host thread, so it runs anywhere and needs no privileges. The kernel's
//! messages go to the guest's first serial port, the tests' output to the second.

use std::{
    collections::HashSet,
    fs::{self, File},
    io::BufWriter,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};
use lab::Process;

use super::{archive::Archive, modules::Module, packages::KernelPackage};

/// The prefix of lines that the guest's script prints, to distinguish them from the tests' output.
pub const MARK: &str = "@@ ";
/// The last line of a guest that finished.
pub const END: &str = "@@ end";

const MEMORY: &str = "2G";
/// Includes QEMU's own memory.
pub const MEMORY_KIB: u64 = (5 << 20) / 2;
const CPUS: &str = "2";

/// Tests of one module, and their time limit on an idle machine.
#[derive(Clone)]
pub struct Test {
    pub module: &'static str,
    pub program: PathBuf,
    /// The names of the tests in the program.
    pub names: Vec<String>,
    pub timeout: Duration,
}

/// The work of one guest.
pub struct Work<'a> {
    pub tests: &'a [Test],
    /// Arguments of the test program.
    pub arguments: &'a [String],
    /// Parameters of the kernel.
    pub parameters: &'a [String],
}

/// The output of a guest.
pub struct Outcome {
    pub lines: Vec<String>,
    pub took: Duration,
    /// The folder with `console.log` and `tests.log`.
    pub logs: PathBuf,
}

/// Boots the kernel on the archive and the modules, and runs the tests to the end.
pub fn run(
    kernel: &KernelPackage,
    modules: Vec<Module>,
    mut archive: Archive,
    work: &Work<'_>,
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
    archive.file(
        "/init",
        init(&names, work.tests, work.arguments).into_bytes(),
    );
    let initramfs = logs.join("initramfs");
    let file = File::create(&initramfs).with_context(|| format!("make {}", initramfs.display()))?;
    archive
        .write(&mut BufWriter::new(file))
        .with_context(|| format!("write {}", initramfs.display()))?;

    let serial = |name: &str| {
        let path = logs.join(name);
        // An earlier guest may have left this file.
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
        .arg("-append")
        .arg(format!(
            // The kernel may find no timer ticks at boot if the emulator gets no CPU at that moment, so skip that
            // check.
            "console=ttyS0 panic=-1 no_timer_check {}",
            work.parameters.join(" ")
        ))
        .stdin(Stdio::null());
    let start = Instant::now();
    let ended = wait(Process::spawn(&mut qemu)?, &output_path);
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

/// Waits for the guest to finish, while it keeps within its own time limits. The guest sets them itself, because it
/// measures the speed of the machine.
fn wait(mut qemu: Process, output: &Path) -> Result<()> {
    /// The time to boot, or to prepare the next program and measure the machine's speed.
    const BETWEEN: Duration = Duration::from_mins(10);
    let mut limits = 0;
    let mut deadline = Instant::now() + BETWEEN;
    while qemu.exited()?.is_none() {
        let text = fs::read(output).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let set: Vec<u64> = text.lines().filter_map(limit).collect();
        if set.len() > limits {
            limits = set.len();
            deadline = Instant::now() + Duration::from_secs(set[limits - 1]) + BETWEEN;
        }
        if Instant::now() > deadline {
            bail!("the guest did not keep to its own limits, and was stopped");
        }
        thread::sleep(Duration::from_millis(200));
    }
    Ok(())
}

/// The seconds in a complete line `@@ limit NAME SECONDS`.
fn limit(line: &str) -> Option<u64> {
    let (_, seconds) = line.strip_prefix("@@ limit ")?.trim_end().split_once(' ')?;
    seconds.strip_suffix(" s")?.parse().ok()
}

/// The script for the guest's first process. It prepares the machine, runs the tests and powers it off.
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
mount -t cgroup2 cgroup /sys/fs/cgroup
ip link set lo up
{MEASURE}
",
        skip_log = lab::privilege::SKIP_LOG,
        emulated = lab::kernel::EMULATED,
    );
    let loading = modules
        .iter()
        .map(|module| format!("insmod {module} || echo '{MARK}module {module}'\n"));
    let names: HashSet<&String> = tests.iter().flat_map(|test| &test.names).collect();
    let running = tests.iter().map(|test| {
        let name = test.module;
        // `test.names` lists the full names of the tests to run. They need `--exact`, with which a partial name among
        // the arguments would match nothing.
        let given = arguments
            .iter()
            .filter(|argument| *argument != "--exact" && !names.contains(argument));
        let arguments: Vec<String> = given.chain(&test.names).map(|word| quoted(word)).collect();
        let arguments = format!("--exact {}", arguments.join(" "));
        let seconds = test.timeout.as_secs();
        let program = quoted(&test.program.to_string_lossy());
        let listed: Vec<String> = test
            .names
            .iter()
            .map(|name| format!("echo {}", quoted(&format!("{MARK}test {name}"))))
            .collect();
        let listed = listed.join("\n");
        format!(
            "\
echo '{MARK}start {name}'
{listed}
measure
limit=$(({seconds} * slowness / 100))
echo \"{MARK}limit {name} $limit s\"
read -r start rest </proc/uptime
timeout -s KILL $limit {program} --color never {arguments}
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

/// Sets `slowness`: the duration of a loop in percent of its duration on an idle machine, between 100 and 1,000. It
/// varies with the machine's other work, so it is measured before every program.
const MEASURE: &str = "\
centiseconds() { read -r now rest </proc/uptime; now=${now%.*}${now#*.}; }
measure() {
  centiseconds; begin=$now
  i=0; while [ $i -lt 10000 ]; do i=$((i + 1)); done
  centiseconds
  slowness=$(((now - begin) * 100 / 55))
  if [ $slowness -lt 100 ]; then slowness=100; fi
  if [ $slowness -gt 1000 ]; then slowness=1000; fi
}";

/// The path of `busybox` in the guest, wherever it is on this machine.
pub const BUSYBOX: &str = "/busybox/busybox";

fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_is_a_whole_line_of_the_guests_script() {
        for (line, expected) in [
            ("@@ limit exact 2700 s", Some(2700)),
            ("@@ limit exact 2700 s\r", Some(2700)),
            // A line that is only half written.
            ("@@ limit exact 27", None),
            ("@@ limit exact 2700 ", None),
            ("@@ limit exact", None),
            ("@@ stop exact 0 1.00 2.00", None),
            ("limit exact 2700 s", None),
        ] {
            assert_eq!(limit(line), expected, "{line}");
        }
    }

    #[test]
    fn a_guest_measures_its_speed_before_each_program_and_says_its_limit_first() {
        let test = |module, seconds| Test {
            module,
            program: "/a program".into(),
            names: vec![format!("{module}::it's")],
            timeout: Duration::from_secs(seconds),
        };
        let tests = [test("exact", 2700), test("lockdown", 900)];
        let arguments = ["--exact", "--nocapture", "exact::it's"].map(str::to_owned);
        let script = init(&["/modules/000-veth.ko".to_owned()], &tests, &arguments);
        let mut rest = script.as_str();
        for line in [
            "\ninsmod /modules/000-veth.ko ||",
            "\necho '@@ start exact'\n",
            r"echo '@@ test exact::it'\''s'",
            "\nmeasure\n",
            "\nlimit=$((2700 * slowness / 100))\n",
            "\necho \"@@ limit exact $limit s\"\n",
            r"timeout -s KILL $limit '/a program' --color never --exact '--nocapture' 'exact::it'\''s'",
            "\necho \"@@ stop exact $status $start $stop\"\n",
            "\necho '@@ start lockdown'\n",
            "\nmeasure\n",
            "\nlimit=$((900 * slowness / 100))\n",
            "timeout -s KILL $limit ",
            "\necho '@@ end'\n",
            "\npoweroff -f\n",
        ] {
            let at = rest.find(line);
            let at =
                at.unwrap_or_else(|| panic!("{line} is not behind the one before in:\n{script}"));
            // The newline at the end of a match also begins the next one.
            rest = &rest[at + line.trim_end().len()..];
        }
    }

    #[test]
    fn the_measure_of_speed_runs_in_a_shell() {
        let script = format!("set -eu\n{MEASURE}\nmeasure\necho \"$slowness\"");
        let output = Command::new("sh").args(["-c", &script]).output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && stderr.is_empty(), "{stderr}");
        let slowness = String::from_utf8(output.stdout).unwrap();
        let slowness: u64 = slowness.trim().parse().unwrap();
        assert!((100..=1000).contains(&slowness), "{slowness}");
    }
}
