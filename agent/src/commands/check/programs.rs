//! Checks whether this kernel's verifier accepts the agent's own programs. Attaches nothing, and unloads them at the
//! end.

use agent_common::{drops::DropLayout, senders::Kinds};
use anyhow::Result;
use enrich::unit::cgroups;
use kernel::{
    attach, connections, drops,
    layout::{self, Layout},
    links::netns_inode,
    load::{Kernel, LoadSettings, OBJECT},
    processes,
};

use super::Check;

pub(super) fn programs(layout: &Layout) -> [Check; 8] {
    let plain = match load(layout, PLAIN) {
        Ok(()) => Check::ok("programs", "the kernel takes all of the agent's programs"),
        Err(error) => Check::missing(
            "programs",
            format!("{error:#}"),
            "see `bpf` and the capabilities above; else report it with the kernel's version",
        ),
    };
    let decapsulating = match load(
        layout,
        Wanted {
            decapsulate: true,
            ..PLAIN
        },
    ) {
        Ok(()) => Check::ok("decapsulation", "and with --decapsulate too"),
        Err(error) => Check::warn(
            "decapsulation",
            format!("{error:#}"),
            "run without --decapsulate, and report it with the kernel's version",
        ),
    };
    [
        plain,
        decapsulating,
        units(layout),
        processes(layout),
        tcp(layout),
        rtt(layout),
        dns(layout),
        drops(layout),
    ]
}

/// The requirements of `--enrich unit`.
fn units(layout: &Layout) -> Check {
    let taken = load(
        layout,
        Wanted {
            senders: Kinds::CGROUPS,
            ..PLAIN
        },
    );
    match taken.and_then(|()| cgroups::find()) {
        Ok(folder) => Check::ok(
            "enrichment",
            format!(
                "and with --enrich unit; cgroups are at {}",
                folder.display()
            ),
        ),
        Err(error) => Check::warn(
            "enrichment",
            format!("{error:#}"),
            "run without --enrich unit: flows then have no unit and no container",
        ),
    }
}

/// The requirements of `--enrich process`.
fn processes(layout: &Layout) -> Check {
    let taken = || {
        let settings = LoadSettings {
            tasks: layout::tasks_of_this_kernel()?,
            ..settings(Wanted {
                senders: Kinds::PROCESSES,
                ..PLAIN
            })?
        };
        let mut kernel = Kernel::load_with(OBJECT, &settings, layout)?;
        attach::load_all(&mut kernel.sets[0].programs)?;
        processes::load(&mut kernel.sets[0].programs)?;
        cgroups::find()
    };
    match taken() {
        Ok(_) => Check::ok("processes", "and with --enrich process"),
        Err(error) => Check::warn(
            "processes",
            format!("{error:#}"),
            "run without --enrich process: flows then have no process",
        ),
    }
}

/// The requirements of `--enrich tcp`, also for the end of a connection.
fn tcp(layout: &Layout) -> Check {
    let wanted = Wanted {
        senders: Kinds::TCP,
        ..PLAIN
    };
    if let Err(error) = load(layout, wanted) {
        return Check::warn(
            "tcp",
            format!("{error:#}"),
            "run without --enrich tcp: records then say nothing of round trips",
        );
    }
    let at_the_end = || {
        let settings = LoadSettings {
            tcp: layout::tcp_of_this_kernel()?,
            ..settings(wanted)?
        };
        let mut kernel = Kernel::load_with(OBJECT, &settings, layout)?;
        connections::load(&mut kernel.sets[0].programs).map(drop)
    };
    match at_the_end() {
        Ok(()) => Check::ok("tcp", "and with --enrich tcp"),
        Err(error) => Check::warn(
            "tcp",
            format!("{error:#}"),
            "use a kernel with CONFIG_DEBUG_INFO_BTF=y; else --enrich tcp tells what TCP knew at an earlier packet, and not at the end of \
             a connection",
        ),
    }
}

/// The requirements of `--enrich rtt`.
fn rtt(layout: &Layout) -> Check {
    let wanted = Wanted {
        senders: Kinds::ROUND_TRIPS,
        ..PLAIN
    };
    match load(layout, wanted) {
        Ok(()) => Check::ok("rtt", "and with --enrich rtt"),
        Err(error) => Check::warn(
            "rtt",
            format!("{error:#}"),
            "run without --enrich rtt: records then say nothing of handshakes and acknowledgments",
        ),
    }
}

/// The requirements of `--enrich dns` and `icmp`.
fn dns(layout: &Layout) -> Check {
    let taken = || {
        let settings = LoadSettings {
            dns_per_second: 1,
            icmp_errors: true,
            ..settings(PLAIN)?
        };
        let mut kernel = Kernel::load_with(OBJECT, &settings, layout)?;
        attach::load_all(&mut kernel.sets[0].programs)
    };
    match taken() {
        Ok(()) => Check::ok("dns", "and with --enrich dns and icmp"),
        Err(error) => Check::warn(
            "dns",
            format!("{error:#}"),
            "run without --enrich dns and icmp: addresses then have no names, and what cannot be reached seems unanswered",
        ),
    }
}

/// The requirements of `--enrich drops`.
fn drops(layout: &Layout) -> Check {
    let by_flow = layout::drops_of_this_kernel();
    let taken = || {
        let settings = LoadSettings {
            drops: by_flow.as_ref().copied().unwrap_or(DropLayout::UNKNOWN),
            ..settings(PLAIN)?
        };
        let mut kernel = Kernel::load_with(OBJECT, &settings, layout)?;
        drops::load(&mut kernel.sets[0].programs).map(drop)
    };
    match taken() {
        Ok(()) => match &by_flow {
            Ok(_) => Check::ok("drops", "and with --enrich drops"),
            Err(error) => Check::warn("drops", format!("{error:#}"), layout::REMEDY),
        },
        Err(error) => Check::warn(
            "drops",
            format!("{error:#}"),
            "run without --enrich drops: what the kernel drops is then not counted",
        ),
    }
}

/// What the programs do beyond counting.
#[derive(Clone, Copy)]
struct Wanted {
    decapsulate: bool,
    senders: Kinds,
    asks_drivers: bool,
}

const PLAIN: Wanted = Wanted {
    decapsulate: false,
    senders: Kinds::NONE,
    asks_drivers: false,
};

/// Loads the programs of a start with `--ingress-hook xdp`.
pub(super) fn kernel_that_asks() -> Result<Kernel> {
    let layout = layout::of_this_kernel().unwrap_or(Layout::UNKNOWN);
    let settings = settings(Wanted {
        asks_drivers: true,
        ..PLAIN
    })?;
    Kernel::load_with(OBJECT, &settings, &layout)
}

fn load(layout: &Layout, wanted: Wanted) -> Result<()> {
    let settings = settings(wanted)?;
    let mut kernel = Kernel::load_with(OBJECT, &settings, layout)?;
    attach::load_all(&mut kernel.sets[0].programs)
}

fn settings(wanted: Wanted) -> Result<LoadSettings> {
    let Wanted {
        decapsulate,
        senders,
        asks_drivers,
    } = wanted;
    Ok(LoadSettings {
        decapsulate,
        senders,
        asks_drivers,
        ..LoadSettings::smallest(vec![netns_inode()?])
    })
}
