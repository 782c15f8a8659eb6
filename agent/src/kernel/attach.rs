//! Hangs the programs on interfaces: interfaces and hook settings come in, [`Attachments`] go out,
//! whose end detaches everything.
//!
//! TCX and XDP attachments are BPF links: the kernel removes them with the process, whatever ends
//! it. Filters on a clsact qdisc stay after a SIGKILL, so they carry our name and a handle of this
//! instance, and the next start removes those whose instance is gone.

use std::{
    fs::{self, File, TryLockError},
    path::Path,
};

use agent_common::LinkType;
use anyhow::{Context as _, Result, anyhow, bail};
use aya::{
    Ebpf,
    programs::{
        LinkOrder, SchedClassifier, TcAttachType, Xdp, XdpMode as AyaXdpMode,
        links::FdLink,
        tc::{self, NlOptions, SchedClassifierLink, TcAttachOptions, TcHandle},
    },
    util::KernelVersion,
};

use super::links::Link;

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum IngressHook {
    Tc,
    Xdp,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum XdpMode {
    /// Native where the driver can, else generic.
    Auto,
    Native,
    Generic,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Direction {
    Both,
    Ingress,
    Egress,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum TcAttach {
    /// TCX links where the kernel has them (6.6), else clsact.
    Auto,
    Tcx,
    Clsact,
}

#[derive(Clone, Copy, Debug)]
pub struct AttachSettings {
    pub ingress_hook: IngressHook,
    pub xdp_mode: XdpMode,
    pub direction: Direction,
    pub tc_attach: TcAttach,
}

/// How a hook came to be attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    Tcx,
    Clsact,
    XdpNative,
    XdpGeneric,
}

/// One attached hook.
#[derive(Clone, Debug)]
pub struct Hook {
    pub interface: String,
    pub ifindex: u32,
    /// Interface slot × 2 + direction: the index of its account.
    pub account_index: u32,
    pub is_egress: bool,
    pub mode: Mode,
}

/// What is attached; dropping it detaches.
pub struct Attachments {
    pub hooks: Vec<Hook>,
    links: Vec<FdLink>,
    filters: Vec<SchedClassifierLink>,
    instance: Option<Instance>,
}

/// A priority that leaves room on both sides (the kernel's own choice starts at 49152).
const CLSACT_PRIORITY: u16 = 0xc0de;
/// The upper half of every handle of ours.
const HANDLE_MAJOR: u16 = 0xf10a;
const MAX_INSTANCES: u16 = 64;
const LOCK_DIR: &str = "/run/flow-agent";

impl Attachments {
    /// Attaches the hooks of every interface; where one fails, none stays.
    pub fn attach(ebpf: &mut Ebpf, links: &[Link], settings: AttachSettings) -> Result<Self> {
        let mut attached = Self {
            hooks: Vec::new(),
            links: Vec::new(),
            filters: Vec::new(),
            instance: None,
        };
        for (slot, link) in links.iter().enumerate() {
            let slot = slot as u32;
            if settings.direction != Direction::Egress {
                match settings.ingress_hook {
                    IngressHook::Tc => attached.tc(ebpf, link, slot, false, settings.tc_attach)?,
                    IngressHook::Xdp => attached.xdp(ebpf, link, slot, settings.xdp_mode)?,
                }
            }
            // What a host sends to itself arrives on lo as well: one hook counts it once.
            if settings.direction != Direction::Ingress && !link.is_loopback {
                attached.tc(ebpf, link, slot, true, settings.tc_attach)?;
            }
        }
        if attached.hooks.is_empty() {
            bail!(
                "nothing to attach: on lo only ingress is seen; choose --direction both or ingress"
            );
        }
        Ok(attached)
    }

    fn tc(
        &mut self,
        ebpf: &mut Ebpf,
        link: &Link,
        slot: u32,
        is_egress: bool,
        how: TcAttach,
    ) -> Result<()> {
        let name = match (is_egress, link_type(link)?) {
            (false, LinkType::Ethernet) => "tc_ingress",
            (false, LinkType::Ip) => "tc_ingress_ip",
            (true, LinkType::Ethernet) => "tc_egress",
            (true, LinkType::Ip) => "tc_egress_ip",
        };
        let way = if is_egress { "egress" } else { "ingress" };
        let program: &mut SchedClassifier = ebpf
            .program_mut(name)
            .with_context(|| format!("the object has no program {name}"))?
            .try_into()
            .context("a TC program")?;
        if program.fd().is_err() {
            program
                .load()
                .with_context(|| format!("load the program {name}"))?;
        }
        let attach_type = if is_egress {
            TcAttachType::Egress
        } else {
            TcAttachType::Ingress
        };
        let mut mode = Mode::Tcx;
        if how != TcAttach::Clsact {
            // First on ingress, last on egress: what others change or drop there is theirs.
            let order = if is_egress {
                LinkOrder::last()
            } else {
                LinkOrder::first()
            };
            match program.attach_with_options(
                &link.name,
                attach_type,
                TcAttachOptions::TcxOrder(order),
            ) {
                Ok(id) => {
                    let link = program.take_link(id).context("keep the TCX link")?;
                    self.links
                        .push(FdLink::try_from(link).context("a TCX link has a descriptor")?);
                }
                Err(error) if how == TcAttach::Auto && is_einval(&error) => mode = Mode::Clsact,
                Err(error) => {
                    return Err(error).with_context(|| format!("attach tc {way} to {}", link.name));
                }
            }
        }
        if mode == Mode::Clsact || how == TcAttach::Clsact {
            mode = Mode::Clsact;
            if self.instance.is_none() {
                self.instance = Some(Instance::lock()?);
            }
            let instance = self.instance.as_ref().expect("set above");
            match tc::qdisc_add_clsact(&link.name) {
                Ok(()) => {}
                Err(error) if is_exist(&error) => {}
                Err(error) => {
                    return Err(error)
                        .with_context(|| format!("add the clsact qdisc to {}", link.name));
                }
            }
            instance.remove_stale(&link.name, attach_type);
            let id = program
                .attach_with_options(
                    &link.name,
                    attach_type,
                    TcAttachOptions::Netlink(NlOptions {
                        priority: CLSACT_PRIORITY,
                        handle: TcHandle::new(HANDLE_MAJOR, instance.number),
                        ..NlOptions::default()
                    }),
                )
                .with_context(|| format!("attach tc {way} to {} by clsact", link.name))?;
            self.filters
                .push(program.take_link(id).context("keep the clsact filter")?);
        }
        self.hooks.push(Hook {
            interface: link.name.clone(),
            ifindex: link.ifindex,
            account_index: slot * 2 + u32::from(is_egress),
            is_egress,
            mode,
        });
        Ok(())
    }

    fn xdp(&mut self, ebpf: &mut Ebpf, link: &Link, slot: u32, wanted: XdpMode) -> Result<()> {
        let link_type = link_type(link)?;
        let modes: &[(AyaXdpMode, Mode)] = match wanted {
            XdpMode::Auto => &[
                (AyaXdpMode::Driver, Mode::XdpNative),
                (AyaXdpMode::Skb, Mode::XdpGeneric),
            ],
            XdpMode::Native => &[(AyaXdpMode::Driver, Mode::XdpNative)],
            XdpMode::Generic => &[(AyaXdpMode::Skb, Mode::XdpGeneric)],
        };
        let frags = has_xdp_frags();
        let name = match (frags, link_type) {
            (false, LinkType::Ethernet) => "xdp_ingress",
            (false, LinkType::Ip) => "xdp_ingress_ip",
            (true, LinkType::Ethernet) => "xdp_frags",
            (true, LinkType::Ip) => "xdp_frags_ip",
        };
        let program: &mut Xdp = ebpf
            .program_mut(name)
            .with_context(|| format!("the object has no program {name}"))?
            .try_into()
            .context("an XDP program")?;
        if program.fd().is_err() {
            program
                .load()
                .with_context(|| format!("load the program {name}"))?;
        }
        let mut last = anyhow!("no mode tried");
        for &(aya_mode, mode) in modes {
            match program.attach_to_if_index(link.ifindex, aya_mode) {
                Ok(id) => {
                    let xdp_link = program.take_link(id).context("keep the XDP link")?;
                    // aya falls back to a netlink attachment, which would outlive a SIGKILL.
                    let fd_link = FdLink::try_from(xdp_link)
                        .map_err(|_| anyhow!("the kernel gave no BPF link for XDP"))?;
                    self.links.push(fd_link);
                    self.hooks.push(Hook {
                        interface: link.name.clone(),
                        ifindex: link.ifindex,
                        account_index: slot * 2,
                        is_egress: false,
                        mode,
                    });
                    return Ok(());
                }
                Err(error) => last = anyhow!(error),
            }
        }
        Err(last).with_context(|| {
            format!(
                "attach XDP to {} (another XDP program there, or a driver that cannot? try \
                 --xdp-mode generic or --ingress-hook tc)",
                link.name
            )
        })
    }
}

impl Drop for Attachments {
    fn drop(&mut self) {
        // Links detach as their descriptors close, filters by netlink; the lock goes last.
        self.links.clear();
        self.filters.clear();
        self.instance.take();
    }
}

fn link_type(link: &Link) -> Result<LinkType> {
    link.link_type().with_context(|| {
        format!(
            "{}: hardware type {} carries neither Ethernet nor bare IP",
            link.name, link.hardware_type
        )
    })
}

fn is_einval(error: &(dyn std::error::Error + 'static)) -> bool {
    has_errno(error, libc::EINVAL)
}

fn is_exist(error: &(dyn std::error::Error + 'static)) -> bool {
    has_errno(error, libc::EEXIST)
}

fn has_errno(error: &(dyn std::error::Error + 'static), errno: i32) -> bool {
    std::iter::successors(Some(error), |e| e.source())
        .filter_map(|e| e.downcast_ref::<std::io::Error>())
        .any(|e| e.raw_os_error() == Some(errno))
        || error
            .to_string()
            .contains(&std::io::Error::from_raw_os_error(errno).to_string())
}

/// This process's number among the agents of the host, held by a file lock: a number whose lock
/// can be had belongs to nobody who lives.
struct Instance {
    number: u16,
    _lock: File,
}

impl Instance {
    fn lock() -> Result<Self> {
        fs::create_dir_all(LOCK_DIR).with_context(|| format!("make {LOCK_DIR}"))?;
        for number in 1..=MAX_INSTANCES {
            let path = Path::new(LOCK_DIR).join(format!("instance-{number}.lock"));
            let file = File::options()
                .create(true)
                .truncate(false)
                .write(true)
                .open(&path)
                .with_context(|| format!("open {}", path.display()))?;
            match file.try_lock() {
                Ok(()) => {
                    return Ok(Self {
                        number,
                        _lock: file,
                    });
                }
                Err(TryLockError::WouldBlock) => {}
                Err(TryLockError::Error(error)) => {
                    return Err(error).with_context(|| format!("lock {}", path.display()));
                }
            }
        }
        bail!("{MAX_INSTANCES} agents run on this host already")
    }

    /// Removes the filter that a killed agent of our number left behind: our priority and handle.
    fn remove_stale(&self, interface: &str, attach_type: TcAttachType) {
        let stale = SchedClassifierLink::attached(
            interface,
            attach_type,
            CLSACT_PRIORITY,
            TcHandle::new(HANDLE_MAJOR, self.number),
            None,
        );
        // Mostly there is none, and the kernel says ENOENT.
        if let Ok(link) = stale {
            use aya::programs::Link as _;
            if link.detach().is_ok() {
                tracing::info!(
                    interface,
                    "removed a filter that a killed agent left behind"
                );
            }
        }
    }
}

/// XDP frames of several buffers exist from kernel 5.18; before it, the flag is refused.
fn has_xdp_frags() -> bool {
    KernelVersion::current().is_ok_and(|kernel| kernel >= KernelVersion::new(5, 18, 0))
}
