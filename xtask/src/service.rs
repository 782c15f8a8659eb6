//! Installs the Debian package on a Debian whose PID 1 is systemd, and checks the service from installation to purge.
//! Prints a line for each check, with its findings, and the count as the last line.

mod checks;
mod machine;
mod root_fs;

use std::{
    fmt::Write as _,
    os::unix::process::CommandExt as _,
    path::{Path, PathBuf},
    process::{Command, ExitCode, Stdio},
    time::Instant,
};

use anyhow::{Context as _, Result};
use lab::Lab;

use crate::{
    count::Count,
    dist::{self, Profile},
    ebpf_toolchain,
    setup::{Purpose, setup},
    workspace::{as_root, has_command, target_dir},
};
use checks::{CHECKS, Service};
use machine::Machine;

#[derive(clap::Args)]
pub struct Arguments {
    /// A folder with what is already built: a package in `current`, its files in `declared`, a later package in `next`, the
    /// tarball and SHA256SUMS
    #[arg(long, requires = "cache")]
    packages: Option<PathBuf>,
    /// How the binary is built
    #[arg(long, value_enum, default_value = "dev")]
    profile: Profile,
    /// The folder of the user for whom root runs this
    #[arg(long, hide = true)]
    cache: Option<PathBuf>,
}

pub fn test(arguments: &Arguments) -> Result<ExitCode> {
    let mut count = Count::default();
    if let (Some(packages), Some(cache)) = (&arguments.packages, &arguments.cache) {
        check(packages, cache, &mut count);
        return Ok(count.report());
    }
    setup(Purpose::Test)?;
    let error = as_root_on_packages(arguments.profile)?.exec();
    Err(error).context("start this program as root, since namespaces need root")
}

/// The same for `cargo xtask test`. Takes a minute, and three more to create the root file system the first time.
pub fn in_the_suite(count: &mut Count) {
    if !lab::privilege::is_root() && !has_command("sudo") {
        return count.skipped.push("service: needs root".to_owned());
    }
    let outcome = as_root_on_packages(Profile::Dev).and_then(|mut command| {
        let output = command.stderr(Stdio::inherit()).output();
        let output = output.context("start this program as root")?;
        let text = String::from_utf8_lossy(&output.stdout);
        Count::from_report(&text).with_context(|| format!("no count in {text:?}"))
    });
    match outcome {
        Ok(counted) => count.add(counted),
        Err(error) => {
            count.fail(error);
        }
    }
}

/// This program as root, on packages that it first builds as this user.
fn as_root_on_packages(profile: Profile) -> Result<Command> {
    let packages = packages(profile)?;
    let cache = ebpf_toolchain::cache_root().context("neither HOME nor XDG_CACHE_HOME is set")?;
    let ourselves = std::env::current_exe().context("find this program")?;
    let mut command = as_root(&ourselves);
    command.args(["test-service", "--packages"]).arg(&packages);
    command.arg("--cache").arg(&cache);
    Ok(command)
}

/// Builds the package, the same package under a later version, and the tarball with its checksum. `declared` lists the
/// files that must be in the package.
fn packages(profile: Profile) -> Result<PathBuf> {
    let folder = target_dir()?.join("test-service");
    if folder.exists() {
        std::fs::remove_dir_all(&folder).with_context(|| format!("remove {}", folder.display()))?;
    }
    let built = dist::build(profile)?;
    built.debian_package(&folder.join("current"), None)?;
    let mut declared = String::new();
    for file in built.declared()?.into_keys() {
        writeln!(declared, "{}", file.display())?;
    }
    std::fs::write(folder.join("declared"), declared).context("list the package's files")?;
    let next = concat!(env!("CARGO_PKG_VERSION"), "+next");
    built.debian_package(&folder.join("next"), Some(next))?;
    let tarball = built.tarball(&folder)?;
    dist::checksums(&folder, &[tarball])?;
    Ok(folder)
}

/// Runs the checks in order. Each continues where the previous one ended, so the first failure ends the run.
fn check(packages: &Path, cache: &Path, count: &mut Count) {
    if !lab::kernel::is_at_least(6, 6) {
        let reason =
            "service: the checks need TCX to list attached programs, which the kernel has from 6.6";
        return count.skipped.push(reason.to_owned());
    }
    let root = match root_fs::root_fs(cache) {
        Ok(root) => root,
        Err(error) => return count.skipped.push(format!("service: {error:#}")),
    };
    let mut service = match prepare(packages, &root) {
        Ok(service) => service,
        Err(error) => {
            count.fail(error);
            return;
        }
    };
    for (name, check) in CHECKS {
        let started = Instant::now();
        match check(&mut service) {
            Ok(seen) => {
                eprintln!(
                    "service: {name}: {seen} ({:.1} s)",
                    started.elapsed().as_secs_f64()
                );
                count.passed += 1;
            }
            Err(error) => {
                count.fail(format_args!("service: {name}: {error:#}"));
                eprintln!("{}", service.journal());
                break;
            }
        }
    }
}

fn prepare(packages: &Path, root: &Path) -> Result<Service> {
    let lab = Lab::quiet()?;
    // By default the service watches the interface with the default route.
    let interface = &lab.agent.interface;
    lab.agent
        .namespace
        .ip(&["route", "add", "default", "dev", interface])?;
    let machine = Machine::boot(root, &lab.agent.namespace)?;
    Service::new(machine, lab, packages)
}
