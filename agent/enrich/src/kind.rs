//! What makes a kind of enrichment, and the types that its functions are about.

pub use anyhow::Result;
pub use flows::{encoder::BatchEncoder, names::Names, replica::Replica};
pub use kernel::{
    layout::Layout,
    load::{Kernel, LoadSettings},
};
pub use proto::AgentStatus;

pub use crate::{Settings, dns::Exchange, memory::Tables};

/// A kind of enrichment. A value is a running kind; functions without `self` are called before it runs. Errors are
/// logged, so their context says what is missing from then on.
///
/// The registry has the values that the programs note beside each flow. The flow cache has the values for records: it
/// keeps them by slot and writes them itself, since a virtual call per record and kind would slow down every scan.
pub trait Kind: Send {
    /// Sets what else the programs need. If this kernel lacks it, fails without a change; the agent then runs without
    /// the kind.
    fn load(_settings: &Settings, _load: &mut LoadSettings) -> Result<()>
    where
        Self: Sized,
    {
        Ok(())
    }

    /// Starts once the programs are loaded, before they are attached. If this fails, they are loaded again without the
    /// kind.
    fn start(settings: &Settings, loaded: &LoadSettings, kernel: &mut Kernel) -> Result<Self>
    where
        Self: Sized;

    /// The most memory that it may take, in bytes, excluding the values that the programs note beside flows.
    fn most_bytes(settings: &Settings, tables: &Tables) -> u64
    where
        Self: Sized;

    /// The check of `flow-agent check`. `load` already has the values noted beside flows. `None` if the check of
    /// another kind covers it.
    fn check(_load: LoadSettings, _layout: &Layout) -> Option<Check>
    where
        Self: Sized,
    {
        None
    }

    /// Prepares the flow cache, and gives its names to the batches.
    fn supply(&self, _replica: &mut Replica, _names: &mut Names) {}

    /// Takes the data of the programs since the last scan, before the flow cache takes the page.
    fn drain(&mut self, _page: u32, _kernel: &mut Kernel, _replica: &mut Replica) -> Result<()> {
        Ok(())
    }

    /// Ends a scan, after the flow cache did. Returns the parts of batches besides flows.
    fn end_scan(&mut self, _now_boot_ns: u64, _replica: &mut Replica) -> Vec<Exchange> {
        Vec::new()
    }

    /// Sets its fields of the status.
    fn report(&self, _scanned: &Scanned<'_>, _status: &mut AgentStatus) {}
}

/// The outcome of a scan.
pub struct Scanned<'a> {
    pub kernel: &'a Kernel,
    pub replica: &'a Replica,
    pub encoder: &'a BatchEncoder,
}

/// An answer of `flow-agent check`.
pub struct Check {
    pub name: &'static str,
    pub outcome: Result<String>,
    /// What to do if the outcome is an error.
    pub remedy: &'static str,
}
