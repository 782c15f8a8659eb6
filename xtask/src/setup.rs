//! Installs the tools that a task needs and the machine lacks. Silent if all are there.

use std::process::{Command, ExitCode};

use anyhow::{Context as _, Result, bail};

use crate::{
    apt::{self, Apt},
    clients,
    ebpf_toolchain::{self, Compiler},
    linker,
    workspace::{cargo, has_command, run},
};

/// The purpose of a tool. Each purpose includes all tools of the purposes before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Purpose {
    Run,
    Demo,
    Dist,
    Test,
    Kernels,
}

/// A program, its packages, and its use.
struct Tool {
    command: &'static str,
    packages: &'static [&'static str],
    why: &'static str,
    needed_from: Purpose,
}

const TOOLS: &[Tool] = &[
    Tool {
        command: "cc",
        packages: &["gcc", "libc6-dev"],
        why: "links the agent",
        needed_from: Purpose::Run,
    },
    Tool {
        command: "ip",
        packages: &["iproute2"],
        why: "makes network namespaces",
        needed_from: Purpose::Demo,
    },
    Tool {
        command: "ping",
        packages: &["iputils-ping"],
        why: "sends ICMP echo",
        needed_from: Purpose::Demo,
    },
    Tool {
        command: "ethtool",
        packages: &["ethtool"],
        why: "switches offloads",
        needed_from: Purpose::Demo,
    },
    Tool {
        command: "objdump",
        packages: &["binutils"],
        why: "says which C library the package needs",
        needed_from: Purpose::Dist,
    },
    Tool {
        command: "dpkg-shlibdeps",
        packages: &["dpkg-dev"],
        why: "says what the package depends on",
        needed_from: Purpose::Dist,
    },
    Tool {
        command: "tc",
        packages: &["iproute2"],
        why: "shows attached filters",
        needed_from: Purpose::Test,
    },
    Tool {
        command: "ps",
        packages: &["procps"],
        why: "looks after processes in tests",
        needed_from: Purpose::Test,
    },
    Tool {
        command: "strace",
        packages: &["strace"],
        why: "holds a system call of an agent",
        needed_from: Purpose::Test,
    },
    Tool {
        command: "mkfs.ext4",
        packages: &["e2fsprogs"],
        why: "makes a file system that loses its power",
        needed_from: Purpose::Test,
    },
    Tool {
        command: "mmdebstrap",
        packages: &["mmdebstrap"],
        why: "makes a root file system for the service",
        needed_from: Purpose::Test,
    },
    Tool {
        command: "tshark",
        packages: &["tshark"],
        why: "counts captures as the agent shall",
        needed_from: Purpose::Test,
    },
    Tool {
        // The command that the library's package python3-scapy installs.
        command: "scapy3",
        packages: &["python3-scapy"],
        why: "makes those captures",
        needed_from: Purpose::Test,
    },
    Tool {
        // The package without a service.
        command: "dnsmasq",
        packages: &["dnsmasq-base"],
        why: "answers queries of the DNS",
        needed_from: Purpose::Test,
    },
    Tool {
        command: "c++",
        packages: &["g++"],
        why: "compiles the fuzzing engine",
        needed_from: Purpose::Test,
    },
    Tool {
        command: "qemu-system-x86_64",
        packages: &["qemu-system-x86"],
        why: "runs other kernels in virtual machines",
        needed_from: Purpose::Test,
    },
    Tool {
        command: "busybox",
        packages: &["busybox-static"],
        why: "starts those virtual machines",
        needed_from: Purpose::Test,
    },
    Tool {
        command: "wg",
        packages: &["wireguard-tools"],
        why: "sets up WireGuard in those virtual machines",
        needed_from: Purpose::Kernels,
    },
    Tool {
        command: "nft",
        packages: &["nftables"],
        why: "sets up address translation for the tests",
        needed_from: Purpose::Test,
    },
    Tool {
        command: "xz",
        packages: &["xz-utils"],
        why: "unpacks those kernels' modules",
        needed_from: Purpose::Kernels,
    },
];

/// Installs all missing tools and prints which compiler builds the eBPF programs.
pub fn report() -> Result<ExitCode> {
    setup(Purpose::Test)?;
    clients::set_up();
    eprintln!(
        "setup: complete; the eBPF programs are built by: {}",
        ebpf_toolchain::find()?
    );
    Ok(ExitCode::SUCCESS)
}

/// Installs the missing tools for the purpose, except the tests' [`clients`].
pub fn setup(purpose: Purpose) -> Result<()> {
    let apt = Apt::find();
    for tool in TOOLS {
        if tool.needed_from <= purpose && !has_command(tool.command) {
            let Some(apt) = &apt else {
                bail!(
                    "install `{}` ({}): there is no apt, or no way to be root for it",
                    tool.command,
                    tool.why
                )
            };
            apt.install(tool.packages, tool.why)?;
        }
    }
    let compiler = compiler(apt.as_ref())?;
    if !linker::is_ready(&compiler)? {
        match &apt {
            Some(apt) => linker::install(apt, &compiler).or_else(|error| explain(&error))?,
            None => drop(ebpf_toolchain::find()?),
        }
    }
    if purpose >= Purpose::Test {
        rustup_components()?;
    }
    Ok(())
}

fn compiler(apt: Option<&Apt>) -> Result<Compiler> {
    if let Some(compiler) = ebpf_toolchain::find_compiler()? {
        return Ok(compiler);
    }
    if let Some(apt) = apt {
        apt::install_compiler(apt).or_else(|error| explain(&error))?;
        if let Some(compiler) = ebpf_toolchain::find_compiler()? {
            return Ok(compiler);
        }
    }
    // If there is no compiler, this fails and lists the packages to install.
    ebpf_toolchain::find().map(|toolchain| toolchain.compiler)
}

/// Prints why apt did not help. The error that follows tells the user what would.
fn explain(error: &anyhow::Error) -> Result<()> {
    eprintln!("setup: {error:#}");
    ebpf_toolchain::find().map(drop)
}

/// Installs clippy and rustfmt if they are missing. By default rustup installs them with the toolchain.
fn rustup_components() -> Result<()> {
    for (subcommand, component) in [("clippy", "clippy"), ("fmt", "rustfmt")] {
        let found = cargo(&[subcommand, "--version"])
            .output()
            .is_ok_and(|output| output.status.success());
        if !found {
            eprintln!("setup: adding {component} (checks the sources)");
            let mut rustup = Command::new("rustup");
            rustup
                .args(["component", "add", component])
                .current_dir(crate::workspace::root());
            run(&mut rustup).with_context(|| format!("cargo {subcommand} is missing"))?;
        }
    }
    Ok(())
}
