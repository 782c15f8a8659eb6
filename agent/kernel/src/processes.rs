//! Has the programs record which processes make sockets, and reads those records.
//!
//! Programs attached to the root cgroup run whenever a process makes or binds a socket. Another program runs once over
//! all open files, for sockets that existed before.

use std::{
    fs::File,
    os::fd::{AsFd as _, OwnedFd},
    path::Path,
    sync::Arc,
    thread,
};

use agent_common::{Process, process::KeptWithSockets};
use anyhow::{Context as _, Result};
use aya::{
    Ebpf,
    maps::{HashMap, Map, MapData, MapError},
    programs::{CgroupAttachMode, CgroupSock, cgroup_sock::CgroupSockLink},
};

use super::{
    bpf,
    iterator::{self, run_to_the_end},
    memory::map_memory_bytes,
    refusal,
    run_times::RunTimes,
    socket_bounds::{self, Counting, SocketBounds},
};

/// Processes that the kernel keeps the names of until the agent asks for them. The least recently used one makes room.
pub const MOST_IN_THE_KERNEL: u32 = 1 << 15;

/// The programs that run in cgroups.
const MAKERS: [&str; 3] = ["sock_create", "post_bind4", "post_bind6"];
const OPEN: &str = "open_files";
const FILES: &str = "task_file";

/// The processes that the programs recorded. Clones share them.
#[derive(Clone)]
pub struct ProcessNames {
    map: Arc<HashMap<MapData, u64, Process>>,
    kernel_memory_bytes: u64,
}

impl ProcessNames {
    pub fn new(map: MapData) -> Result<Self> {
        let kernel_memory_bytes = map_memory_bytes(&map);
        let map = HashMap::try_from(Map::LruHashMap(map)).context("the map of processes")?;
        Ok(Self {
            map: Arc::new(map),
            kernel_memory_bytes,
        })
    }

    /// Looks up a process. `None` if the map has evicted it.
    pub fn of(&self, key: u64) -> Result<Option<Process>> {
        match self.map.get(&key, 0) {
            Ok(process) => Ok(Some(process)),
            Err(MapError::KeyNotFound) => Ok(None),
            Err(error) => Err(error).context("look up a process in the kernel's map"),
        }
    }

    /// The kernel allocates all of it when the map is created.
    pub fn kernel_memory_bytes(&self) -> u64 {
        self.kernel_memory_bytes
    }
}

/// Keeps the programs recording until it is dropped.
pub struct Noting {
    _links: Vec<CgroupSockLink>,
    _counting: Option<Counting>,
}

impl Noting {
    /// Starts recording. `cgroups` is the root of the hierarchy. Sockets that exist already are found a little later,
    /// if the kernel allows that.
    pub fn start(
        programs: &mut Ebpf,
        run_times: &RunTimes,
        cgroups: &Path,
        bounds: &SocketBounds,
    ) -> Result<Self> {
        let files = open_files(programs).map(Arc::new);
        let again = files.as_ref().ok().map(Arc::clone);
        let look_again = move || {
            if let Some(files) = &again
                && let Err(error) = look_at(files)
            {
                tracing::warn!("cannot look again for sockets that had no room: {error:#}");
            }
        };
        let counting = bounds.count(programs, KeptWithSockets::Process, look_again);
        let folder = File::open(cgroups);
        let folder = folder.with_context(|| format!("open {}", cgroups.display()))?;
        // Attach before looking at open files, so that no socket is missed in between.
        let mut links = Vec::new();
        for name in MAKERS {
            let program = load_maker(programs, name)?;
            // A link lets others keep their programs or add more, here and in cgroups below, and takes no flag for
            // that.
            let link = program.attach(&folder, CgroupAttachMode::Single);
            let link = link.with_context(|| {
                format!(
                    "attach {name} at {}, where another program may allow none beside it",
                    cgroups.display()
                )
            })?;
            let fd = program.fd().context("a loaded program has a descriptor")?;
            run_times
                .watch(name, fd.as_fd())
                .context("duplicate a program's descriptor")?;
            links.push(
                program
                    .take_link(link)
                    .context("keep the program attached")?,
            );
        }
        let looking = files.and_then(|files| {
            let thread = thread::Builder::new().name("open-files".to_owned());
            let look = move || look_at(&files).unwrap_or_else(|error| old_are_unknown(&error));
            thread
                .spawn(look)
                .context("start a thread that looks for sockets")
        });
        if let Err(error) = looking {
            old_are_unknown(&error);
        }
        Ok(Self {
            _links: links,
            _counting: counting,
        })
    }
}

fn old_are_unknown(error: &anyhow::Error) {
    tracing::warn!("the processes of sockets older than the agent are unknown: {error:#}");
}

/// Loads all of the programs without attaching them.
pub fn load(programs: &mut Ebpf) -> Result<()> {
    for name in MAKERS {
        load_maker(programs, name)?;
    }
    socket_bounds::load(programs, KeptWithSockets::Process)?;
    iterator::load(programs, OPEN, FILES).map(drop)
}

fn load_maker<'a>(programs: &'a mut Ebpf, name: &str) -> Result<&'a mut CgroupSock> {
    let program = programs.program_mut(name);
    let program = program.with_context(|| format!("the object has no program {name}"))?;
    let program: &mut CgroupSock = program.try_into().context("a program of cgroups")?;
    program
        .load()
        .map_err(|error| refusal::explain(name, error))?;
    Ok(program)
}

/// The link of the program that goes over all open files.
fn open_files(programs: &mut Ebpf) -> Result<OwnedFd> {
    let program = iterator::load(programs, OPEN, FILES)?;
    let program = program.fd().context("a loaded program has a descriptor")?;
    let link = bpf::create_iterator(program.as_fd());
    link.context("attach the program to the list of open files")
}

/// Runs the program over all open files.
fn look_at(files: &OwnedFd) -> Result<()> {
    let files =
        bpf::open_iterator(files.as_fd()).context("open the kernel's list of open files")?;
    run_to_the_end(File::from(files)).context("go through the kernel's list of open files")
}
