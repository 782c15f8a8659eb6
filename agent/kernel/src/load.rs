//! Loads the programs and their maps into the kernel.

use std::{
    hash::{BuildHasher as _, RandomState},
    mem::offset_of,
    os::fd::{AsFd as _, OwnedFd},
    path::Path,
    sync::Arc,
};

use agent_common::{
    Clocks, drops::DropLayout, process::TaskLayout, senders::Kinds, slots::Hash, tcp::TcpLayout,
};
use anyhow::{Chain, Context as _, Result, anyhow, bail, ensure};
use aya::{
    Ebpf, EbpfError, EbpfLoader,
    maps::{Map, MapData, MapError, RingBuf},
    programs::Xdp,
};
use rules::link_names::LinkNames;

use super::{
    account::{self, Accounts},
    attach,
    bound::TaggedPrograms,
    bpf,
    connections::{self, EndedConnections},
    dns::{self, DnsMessages},
    drops::{self, Drops, Watching},
    fragments::Fragments,
    icmp_errors::{self, IcmpErrors},
    interface_table::{InterfaceTable, Places},
    layout::{self, Layout},
    links::{netlink::errno, netns_inode},
    memory::memory_bytes,
    outers::Outers,
    pages::{self, Bounds, Pages},
    processes::{self, Noting, ProcessNames},
    refusal, ring,
    rule_maps::{PlacedRules, RuleMaps},
    run_times::RunTimes,
    shared_maps::SharedMaps,
    signals,
    socket_bounds::SocketBounds,
};

/// The programs, compiled by the build script.
pub static OBJECT: &[u8] =
    aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/flow-agent-ebpf"));

/// The program that reads the kernel's clocks; see [`Kernel::clocks`].
const CLOCKS: &str = "clocks";

/// Settings that are fixed once the programs are loaded.
#[derive(Clone)]
pub struct LoadSettings {
    /// See [`Bounds`].
    pub min_flows: u32,
    pub max_flows: u32,
    /// Most fragmented datagrams whose ports are remembered at the same time.
    pub max_fragments: u32,
    /// Count the flows of the packets inside tunnels.
    pub decapsulate: bool,
    /// What to record about the senders of flows.
    pub senders: Kinds,
    /// Offsets of the fields that the programs read of processes. Needed only if processes are recorded.
    pub tasks: TaskLayout,
    /// Offsets of the fields that the programs read when a connection ends. Needed only if TCP state is recorded.
    pub tcp: TcpLayout,
    /// Most DNS messages to pass on in a second; 0 passes on none.
    pub dns_per_second: u32,
    /// Whether to pass on ICMP errors.
    pub icmp_errors: bool,
    /// Offsets that the programs need to find the flow of a dropped packet. Needed only if drops are counted.
    pub drops: DropLayout,
    /// Flows on a page at which the programs ask for a scan; 0 leaves scans to the interval.
    pub early_scan_flows: u32,
    /// Inode numbers of the interfaces' network namespaces. Each gets a set of programs.
    pub netns: Vec<u32>,
    /// How many interfaces can be watched at the same time: the number of slots.
    pub max_interfaces: u32,
    /// One flow in this many is counted; 0 counts every flow.
    pub sample_rate: u32,
    /// Whether drivers may be asked for VLAN tags.
    pub asks_drivers: bool,
    /// 0 is off, 1 to 5 are error to trace (aya-log's levels).
    pub log_level: u8,
    /// Factors of the flow table's hash. They must stay secret: with them one can choose flows that all hash to one
    /// place.
    pub hash_factors: [u64; Hash::FACTORS],
}

impl LoadSettings {
    /// [`smallest`](Self::smallest) for the network namespace of the calling thread.
    pub fn smallest_here() -> Result<Self> {
        Ok(Self::smallest(vec![netns_inode()?]))
    }

    /// The smallest value of each setting; counts every flow.
    pub fn smallest(netns: Vec<u32>) -> Self {
        Self {
            min_flows: 1,
            max_flows: 1,
            max_fragments: 1,
            decapsulate: false,
            senders: Kinds::NONE,
            tasks: TaskLayout::default(),
            tcp: TcpLayout::default(),
            dns_per_second: 0,
            icmp_errors: false,
            drops: DropLayout::UNKNOWN,
            early_scan_flows: 0,
            netns,
            max_interfaces: 1,
            sample_rate: 0,
            asks_drivers: false,
            log_level: 0,
            hash_factors: secret_factors(),
        }
    }
}

/// The programs for the interfaces of one network namespace. Sets share all maps except the interface table.
pub struct ProgramSet {
    pub programs: Ebpf,
    /// Set if drivers may be asked for VLAN tags.
    pub tagged: Option<TaggedPrograms>,
    pub interfaces: InterfaceTable,
    pub run_times: RunTimes,
}

/// Maps whose size is a setting.
const COMMON: &str = "COMMON";
const RARE: &str = "RARE";
const PENDING: &str = "PENDING";
const FRAGMENTS: &str = "FRAGMENTS";
const INTERFACES: &str = "INTERFACES";
const OUTER: &str = "OUTER";
const PROCESSES: &str = "PROCESSES";
const ENDED: &str = "ENDED";
const DNS_MESSAGES: &str = "DNS_MESSAGES";
const ICMP_ERRORS: &str = "ICMP_ERRORS";
/// By page.
const DROPPED: [&str; 2] = ["DROPPED_0", "DROPPED_1"];
const WATCHED: &str = "WATCHED";

/// The loaded object, in its parts.
pub struct Kernel {
    /// The programs to attach, by network namespace in the order of the settings. Empty once the attachments have taken
    /// them.
    pub sets: Vec<ProgramSet>,
    /// Run times of the programs of all sets that are loaded.
    pub run_times: RunTimes,
    clocks: OwnedFd,
    pub pages: Pages,
    pub accounts: Accounts,
    /// The maps for rule rows and networks; `None` once taken.
    rule_maps: Option<[MapData; 3]>,
    /// The rules in force.
    pub rules: PlacedRules,
    /// The ring of the programs' reports about pages that fill early; `None` once taken. See [`super::filled`].
    pub filled: Option<RingBuf<MapData>>,
    filled_memory_bytes: u64,
    /// By network namespace.
    interfaces: Vec<InterfaceTable>,
    /// The names of the registered interfaces, by slot.
    interface_names: Vec<Option<LinkNames>>,
    pub fragments: Fragments,
    pub outers: Outers,
    process_names: ProcessNames,
    pub socket_bounds: SocketBounds,
    pub ended: EndedConnections,
    /// `None` once taken. The programs need its maps to load, even if they pass nothing on.
    dns: Option<DnsMessages>,
    wants_dns: bool,
    dns_memory_bytes: u64,
    pub icmp_errors: IcmpErrors,
    pub drops: Drops,
}

impl Kernel {
    pub fn load(settings: &LoadSettings) -> Result<Self> {
        Self::load_object(OBJECT, settings)
    }

    /// Loads another build of the source that [`OBJECT`] was built from.
    pub fn load_object(object: &'static [u8], settings: &LoadSettings) -> Result<Self> {
        let layout = layout::of_this_kernel();
        let kernel = Self::load_with(
            object,
            settings,
            layout.as_ref().unwrap_or(&Layout::UNKNOWN),
        )?;
        // Whoever lacks the privilege to load anything reads only that.
        if let Err(error) = layout {
            tracing::warn!("{}: {error:#}: {}", layout::LOSS, layout::REMEDY);
        }
        Ok(kernel)
    }

    /// Loads programs that read kernel memory at the offsets in `layout`. Logs no warnings.
    pub fn load_with(
        object: &'static [u8],
        settings: &LoadSettings,
        layout: &Layout,
    ) -> Result<Self> {
        let _held = signals::Held::new();
        let shape = Shape::of(settings, layout)?;
        let shared = match settings.netns[..] {
            [_] => None,
            _ => Some(SharedMaps::of(object)?),
        };
        let run_times = RunTimes::default();
        let (mut sets, watched) = sets(object, settings, &shape, shared.as_ref(), &run_times)?;
        let interfaces = sets.iter().map(|set| set.interfaces.clone()).collect();
        let first = sets.first_mut().context("no network namespace is given")?;
        let ebpf = &mut first.programs;
        let pages = pages(ebpf, settings)?;
        let accounts = account::Maps {
            common: take(ebpf, COMMON)?,
            rare: take(ebpf, RARE)?,
            pending: take(ebpf, PENDING)?,
        };
        let accounts = Accounts::new(accounts, shape.accounts)?;
        let rule_maps = [
            take(ebpf, "RULE_ROWS")?,
            take(ebpf, "RULE_NETS_V4")?,
            take(ebpf, "RULE_NETS_V6")?,
        ];
        let fragments = Fragments::new(take(ebpf, FRAGMENTS)?)?;
        let outers = Outers::new(take(ebpf, OUTER)?, settings.decapsulate)?;
        let process_names = ProcessNames::new(take(ebpf, PROCESSES)?)?;
        let socket_bounds = SocketBounds::new(take(ebpf, "SOCKET_BOUNDS")?)?;
        let ended = EndedConnections::new(ring(ebpf, ENDED, "ENDS_LOST")?)?;
        let dns = DnsMessages::new(ring(ebpf, DNS_MESSAGES, "DNS_LOST")?)?;
        let icmp_errors = ring(ebpf, ICMP_ERRORS, "ICMP_ERRORS_LOST")?;
        let icmp_errors = IcmpErrors::new(icmp_errors, settings.icmp_errors)?;
        let of_drops = drops::Maps {
            counts: take(ebpf, "DROPS")?,
            by_flow: [take(ebpf, DROPPED[0])?, take(ebpf, DROPPED[1])?],
            beside: take(ebpf, "DROPPED_BESIDE")?,
            watched,
        };
        let drops = Drops::new(of_drops, settings.drops.is_known())?;
        let filled = ebpf
            .take_map("FILLED")
            .context("the object has no map FILLED")?;
        let filled = RingBuf::try_from(filled).context("map the ring of filled pages")?;
        let clocks: &mut Xdp = ebpf
            .program_mut(CLOCKS)
            .with_context(|| format!("the object has no program {CLOCKS}"))?
            .try_into()
            .context("an XDP program")?;
        clocks
            .load()
            .map_err(|error| refusal::explain(CLOCKS, error))?;
        let clocks = clocks.fd().context("a loaded program has a descriptor")?;
        let clocks = clocks.as_fd().try_clone_to_owned();
        Ok(Self {
            clocks: clocks.context("duplicate a program's descriptor")?,
            sets,
            run_times,
            pages,
            accounts,
            rule_maps: Some(rule_maps),
            rules: PlacedRules::default(),
            filled_memory_bytes: memory_bytes(filled.as_fd()),
            filled: Some(filled),
            interfaces,
            interface_names: vec![None; settings.max_interfaces as usize],
            fragments,
            outers,
            process_names,
            socket_bounds,
            ended,
            dns_memory_bytes: dns.kernel_memory_bytes(),
            dns: Some(dns),
            wants_dns: settings.dns_per_second != 0,
            icmp_errors,
            drops,
        })
    }

    /// Like [`load_with`](Self::load_with), and makes the kernel verify the programs for interfaces. Attaches none.
    pub fn verified(settings: &LoadSettings, layout: &Layout) -> Result<Self> {
        let mut kernel = Self::load_with(OBJECT, settings, layout)?;
        attach::load_all(&mut kernel.sets[0].programs)?;
        Ok(kernel)
    }

    /// Lets the programs of a network namespace (its index in the settings) count packets of `ifindex` in the accounts
    /// of `slot`. Rules can name the interface only if this is called before [`Kernel::take_rule_maps`].
    pub fn register(
        &mut self,
        netns: usize,
        ifindex: u32,
        names: impl Into<LinkNames>,
        slot: u32,
    ) -> Result<()> {
        let names = names.into();
        let name = names.name.clone();
        if let Some(known) = self.interface_names.get_mut(slot as usize) {
            *known = Some(names);
        }
        ensure!(
            self.interfaces[netns].enter(ifindex, slot),
            "{name} (ifindex {ifindex}) has no place in the programs' table beside the other interfaces, \
             which is rare: change --max-interfaces"
        );
        Ok(())
    }

    /// The filter rules' maps. They can be taken only once.
    pub fn take_rule_maps(&mut self) -> Result<RuleMaps> {
        let [rows, nets_v4, nets_v6] = self
            .rule_maps
            .take()
            .context("the maps of the filter rules are taken")?;
        let names = self.interface_names.clone();
        Ok(RuleMaps::new(rows, nets_v4, nets_v6, names))
    }

    /// Makes the programs match another set of filter rules. During the call a packet is matched against this set or
    /// the previous one; after it, against this set only. On failure the previous set stays.
    pub fn follow(&mut self, rules: PlacedRules) -> Result<()> {
        self.pages.set_rule_set(rules.number)?;
        self.rules = rules;
        Ok(())
    }

    /// Starts recording which processes make sockets, and looks for the makers of existing sockets. `cgroups` is the
    /// root of the cgroup hierarchy. Fails once the sets have been taken.
    pub fn note_processes(&mut self, cgroups: &Path) -> Result<(ProcessNames, Noting)> {
        let _held = signals::Held::new();
        let first = self.sets.first_mut();
        let set = first.context("the programs have been taken")?;
        let noting = Noting::start(
            &mut set.programs,
            &set.run_times,
            cgroups,
            &self.socket_bounds,
        )?;
        Ok((self.process_names.clone(), noting))
    }

    /// Starts recording the TCP state of connections that end. Fails once the sets have been taken.
    pub fn note_ends(&mut self) -> Result<()> {
        let _held = signals::Held::new();
        let first = self.sets.first_mut();
        let set = first.context("the programs have been taken")?;
        self.ended
            .note(&mut set.programs, &set.run_times, &self.socket_bounds)
    }

    /// Starts counting the packets that the kernel drops. Fails once the sets have been taken.
    pub fn count_drops(&mut self) -> Result<()> {
        let _held = signals::Held::new();
        let first = self.sets.first_mut();
        let set = first.context("the programs have been taken")?;
        self.drops.count(&mut set.programs, &set.run_times)
    }

    /// The DNS messages, if the settings ask for them. They can be taken only once.
    pub fn take_dns(&mut self) -> Option<DnsMessages> {
        self.dns.take_if(|_| self.wants_dns)
    }

    /// The current values of the programs' clocks.
    pub fn clocks(&self) -> Result<Clocks> {
        const JIFFIES: usize = offset_of!(Clocks, jiffies);
        const BOOT_NS: usize = offset_of!(Clocks, boot_ns);
        // Long enough: the kernel requires at least an Ethernet header as input.
        let mut packet = [0; size_of::<Clocks>()];
        bpf::run(self.clocks.as_fd(), &mut packet)
            .context("run the program that reads the clocks")?;
        let number = |at: usize| {
            let bytes = packet[at..]
                .first_chunk()
                .expect("the packet has room for both");
            u64::from_ne_bytes(*bytes)
        };
        Ok(Clocks {
            jiffies: number(JIFFIES),
            boot_ns: number(BOOT_NS),
        })
    }

    pub fn kernel_memory_bytes(&self) -> u64 {
        self.pages.kernel_memory_bytes()
            + self.accounts.kernel_memory_bytes()
            + self.rules.kernel_memory_bytes
            + self.filled_memory_bytes
            + self
                .interfaces
                .iter()
                .map(InterfaceTable::kernel_memory_bytes)
                .sum::<u64>()
            + self.fragments.kernel_memory_bytes()
            + self.outers.kernel_memory_bytes()
            + self.process_names.kernel_memory_bytes()
            + self.ended.kernel_memory_bytes()
            + self.dns_memory_bytes
            + self.icmp_errors.kernel_memory_bytes()
            + self.drops.kernel_memory_bytes()
    }
}

/// Settings and values that every set of programs is loaded with.
struct Shape<'a> {
    settings: &'a LoadSettings,
    accounts: account::Layout,
    places: Places,
    layout: &'a Layout,
    decapsulate: u32,
    icmp_errors_kept: u32,
}

impl<'a> Shape<'a> {
    fn of(settings: &'a LoadSettings, layout: &'a Layout) -> Result<Self> {
        let cpus = account::possible_cpus()?;
        Ok(Self {
            settings,
            accounts: account::Layout::of(settings.max_interfaces, cpus),
            places: Places::for_up_to(settings.max_interfaces),
            layout,
            decapsulate: u32::from(settings.decapsulate),
            icmp_errors_kept: u32::from(settings.icmp_errors),
        })
    }

    fn load(
        &self,
        object: &[u8],
        netns: u32,
        shared: Option<&SharedMaps>,
    ) -> Result<Ebpf, EbpfError> {
        let settings = self.settings;
        let outers = if settings.decapsulate {
            settings.max_flows
        } else {
            1
        };
        let processes = if settings.senders.has(Kinds::PROCESSES) {
            processes::MOST_IN_THE_KERNEL
        } else {
            1
        };
        let ended = if settings.senders.has(Kinds::TCP) {
            connections::RING_LEN_BYTES
        } else {
            // As small as a ring can be.
            4096
        };
        let dns_messages = match settings.dns_per_second {
            0 => 4096,
            _ => dns::RING_LEN_BYTES,
        };
        let icmp_errors = if settings.icmp_errors {
            icmp_errors::RING_LEN_BYTES
        } else {
            4096
        };
        let (dropped, watched) = if settings.drops.is_known() {
            // Twice the interfaces: one may give up its entry only after its successor has taken another one.
            (drops::MOST_FLOWS, 2 * settings.max_interfaces)
        } else {
            (1, 1)
        };
        let mut loader = EbpfLoader::new();
        loader
            .override_global("NETNS", &netns, true)
            .override_global("ACCOUNTS_PER_PAGE", &self.accounts.per_page, true)
            .override_global("HASH_FACTORS", &settings.hash_factors[..], true)
            .override_global(aya_log::LEVEL, &settings.log_level, false)
            .map_max_entries(COMMON, self.accounts.common_entries())
            .map_max_entries(RARE, self.accounts.rare_entries())
            .map_max_entries(PENDING, self.accounts.pending_entries())
            .override_global("INTERFACE_SEED", &self.places.seed, true)
            .override_global("INTERFACE_BITS", &self.places.bits, true)
            .map_max_entries(INTERFACES, self.places.buckets())
            .override_global("SKB_LAYOUT", &self.layout.skb, true)
            .override_global("DEVICE_LAYOUT", &self.layout.device, true)
            .override_global("DECAPSULATE", &self.decapsulate, true)
            .override_global("SENDERS_KEPT", &settings.senders.0, true)
            .override_global("TASK_LAYOUT", &settings.tasks, true)
            .override_global("TCP_LAYOUT", &settings.tcp, true)
            .map_max_entries(PROCESSES, processes)
            .override_global("DNS_PER_SECOND", &settings.dns_per_second, true)
            .map_max_entries(ENDED, ended)
            .map_max_entries(DNS_MESSAGES, dns_messages)
            .override_global("ICMP_ERRORS_KEPT", &self.icmp_errors_kept, true)
            .map_max_entries(ICMP_ERRORS, icmp_errors)
            .override_global("DROP_LAYOUT", &settings.drops, true)
            .map_max_entries(DROPPED[0], dropped)
            .map_max_entries(DROPPED[1], dropped)
            .map_max_entries(WATCHED, watched)
            .map_max_entries(FRAGMENTS, settings.max_fragments)
            .map_max_entries(OUTER, outers);
        if let Some(shared) = shared {
            shared.share(&mut loader);
        }
        loader.load(object)
    }
}

/// The programs of each network namespace, and the table of watched interfaces that they share.
fn sets(
    object: &'static [u8],
    settings: &LoadSettings,
    shape: &Shape<'_>,
    shared: Option<&SharedMaps>,
    run_times: &RunTimes,
) -> Result<(Vec<ProgramSet>, Arc<MapData>)> {
    let mut sets = Vec::new();
    let mut watched = None;
    for netns in &settings.netns {
        let mut programs = shape
            .load(object, *netns, shared)
            .map_err(|error| explain(error, settings))?;
        let tagged = settings
            .asks_drivers
            .then(|| TaggedPrograms::new(object, &programs))
            .transpose()?;
        let table = take(&mut programs, INTERFACES)?;
        let places = Places::for_up_to(settings.max_interfaces);
        let of_all = match &watched {
            Some(of_all) => Arc::clone(of_all),
            None => Arc::clone(watched.insert(Arc::new(take(&mut programs, WATCHED)?))),
        };
        let drops = Watching::new(of_all, *netns);
        let drops = settings.drops.is_known().then_some(drops);
        sets.push(ProgramSet {
            programs,
            tagged,
            interfaces: InterfaceTable::new(table, places, drops)?,
            run_times: run_times.clone(),
        });
    }
    let watched = watched.context("no network namespace is given")?;
    Ok((sets, watched))
}

fn pages(ebpf: &mut Ebpf, settings: &LoadSettings) -> Result<Pages> {
    let maps = pages::Maps {
        windows: take(ebpf, "PAGES")?,
        behind: take(ebpf, "BEHIND")?,
        senders: take(ebpf, "SENDERS")?,
        senders_behind: take(ebpf, "SENDERS_BEHIND")?,
        fill: take(ebpf, "FILL")?,
        variables: take(ebpf, ".bss")?,
    };
    let bounds = Bounds {
        min_flows: settings.min_flows,
        max_flows: settings.max_flows,
        early_scan_flows: settings.early_scan_flows,
        senders: settings.senders,
        sample_rate: settings.sample_rate,
    };
    Pages::create(maps, bounds, settings.hash_factors)
        .map_err(|error| explain_memory(error, &bounds))
}

fn ring(ebpf: &mut Ebpf, entries: &str, lost: &str) -> Result<ring::Maps> {
    Ok(ring::Maps {
        entries: take(ebpf, entries)?,
        lost: take(ebpf, lost)?,
    })
}

/// Random numbers, different in each process. They derive from the keys that the standard library gets from the kernel
/// for its own hash maps.
pub fn secret_factors() -> [u64; Hash::FACTORS] {
    let random = RandomState::new();
    std::array::from_fn(|index| random.hash_one(index))
}

#[expect(
    clippy::wildcard_enum_match_arm,
    reason = "aya has a variant for every map type"
)]
fn take(ebpf: &mut Ebpf, name: &str) -> Result<MapData> {
    let map = ebpf
        .take_map(name)
        .with_context(|| format!("the object has no map {name}"))?;
    match map {
        Map::Array(data)
        | Map::ArrayOfMaps(data)
        | Map::HashMap(data)
        | Map::LruHashMap(data)
        | Map::PerCpuArray(data)
        | Map::RingBuf(data) => Ok(data),
        _ => bail!("map {name} is of another kind"),
    }
}

fn explain(error: EbpfError, settings: &LoadSettings) -> anyhow::Error {
    if let EbpfError::MapError(MapError::CreateError { name, io_error }) = &error
        && matches!(io_error.raw_os_error(), Some(libc::ENOMEM | libc::E2BIG))
        && let Some(remedy) = remedy(name, settings)
    {
        return anyhow!(error).context(format!("the kernel has no memory for {remedy}"));
    }
    let refused = Chain::new(&error)
        .filter_map(|e| e.downcast_ref::<std::io::Error>())
        .any(|e| matches!(e.raw_os_error(), Some(libc::EPERM | libc::EACCES)));
    if refused {
        anyhow!(error).context(
            "no privilege to load BPF programs: run as root, or with the capabilities CAP_BPF, \
             CAP_NET_ADMIN and CAP_PERFMON (`flow-agent check` says what is missing)",
        )
    } else {
        anyhow!(error).context("load the BPF programs (`flow-agent check` says what is missing)")
    }
}

/// The purpose of a map that does not fit in memory, and the setting that makes it smaller.
fn remedy(map: &str, settings: &LoadSettings) -> Option<String> {
    Some(match map {
        FRAGMENTS => format!(
            "{} fragmented datagrams: lower --max-fragments",
            settings.max_fragments
        ),
        OUTER => format!(
            "the tunnels of {} flows: lower --max-flows, or run without --decapsulate",
            settings.max_flows
        ),
        COMMON | RARE | PENDING => format!(
            "the accounts of {} interfaces: lower --max-interfaces",
            settings.max_interfaces
        ),
        PROCESSES => "the names of processes: run without --enrich process".to_owned(),
        ENDED => "the connections that end: run without --enrich tcp".to_owned(),
        DNS_MESSAGES => "messages of the DNS: run without --enrich dns".to_owned(),
        ICMP_ERRORS => "ICMP errors: run without --enrich icmp".to_owned(),
        WATCHED => format!(
            "the drops of {} interfaces: lower --max-interfaces, or run without --enrich drops",
            settings.max_interfaces
        ),
        INTERFACES => format!(
            "the table of {} interfaces: lower --max-interfaces",
            settings.max_interfaces
        ),
        _ => return None,
    })
}

fn explain_memory(error: anyhow::Error, bounds: &Bounds) -> anyhow::Error {
    if errno(&error) == Some(libc::ENOMEM) {
        let (flows, setting) = if bounds.early_scan_flows == 0 {
            (bounds.max_flows, "--max-flows")
        } else {
            (bounds.min_flows.min(bounds.max_flows), "--min-flows")
        };
        error.context(format!(
            "the kernel has no memory for two pages of {flows} flows: lower {setting}, or \
             raise the memory limit of the agent's cgroup"
        ))
    } else {
        error
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_map_that_does_not_fit_is_told_by_the_setting_that_sizes_it() {
        let settings = LoadSettings {
            min_flows: 1000,
            max_flows: 1000,
            max_fragments: 77,
            decapsulate: true,
            senders: Kinds::NONE,
            tasks: TaskLayout::default(),
            tcp: TcpLayout::default(),
            dns_per_second: 0,
            icmp_errors: false,
            drops: DropLayout::UNKNOWN,
            early_scan_flows: 0,
            netns: vec![0],
            max_interfaces: 2,
            sample_rate: 1,
            asks_drivers: false,
            log_level: 0,
            hash_factors: secret_factors(),
        };
        for (map, told) in [
            (
                FRAGMENTS,
                "for 77 fragmented datagrams: lower --max-fragments",
            ),
            (
                OUTER,
                "of 1000 flows: lower --max-flows, or run without --decapsulate",
            ),
            (COMMON, "accounts of 2 interfaces: lower --max-interfaces"),
            (RARE, "accounts of 2 interfaces: lower --max-interfaces"),
            (PENDING, "accounts of 2 interfaces: lower --max-interfaces"),
            (
                WATCHED,
                "drops of 2 interfaces: lower --max-interfaces, or run without --enrich drops",
            ),
            (INTERFACES, "table of 2 interfaces: lower --max-interfaces"),
            ("CLOCKS", "load the BPF programs"),
        ] {
            let error = EbpfError::MapError(MapError::CreateError {
                name: map.to_owned(),
                io_error: std::io::Error::from_raw_os_error(libc::ENOMEM),
            });
            let error = format!("{:#}", explain(error, &settings));
            assert!(error.contains(told), "{error}");
        }
    }
}
