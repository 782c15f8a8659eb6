//! The cgroups of this host (cgroup v2): which systemd unit and which container a cgroup id stands for.
//!
//! The programs note ids, which are inode numbers. A thread follows the tree of cgroup folders: it reads the tree when
//! the agent starts and watches it with inotify. Removed cgroups keep their name for a while, since flows outlive
//! them.

mod name;
mod share;
mod tree;

use std::{
    collections::{HashMap, HashSet, VecDeque},
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError},
};

use anyhow::{Context as _, Result};
use flows::names::Directory;
use proto::Cgroup;

use self::{
    share::{Share, Shares},
    tree::{Mount, Tree},
};

/// The memory of one cgroup with the longest path. Cgroups of Kubernetes take about 1,100.
const BYTES_PER_CGROUP: u64 = 3_500;
/// Existing cgroups with a known name.
const MOST_LIVING: usize = 1 << 14;
/// Removed cgroups with a known name.
const MOST_GONE: usize = 1 << 12;
const MOST_MISSED: usize = 1 << 12;

/// The names of the cgroups. Clones share them.
#[derive(Clone)]
pub struct Cgroups {
    known: Arc<Mutex<Known>>,
    wake: tree::Wake,
}

/// The systemd unit that a control group belongs to, by its path from the root of the hierarchy; empty if there is none.
pub fn unit_of(path: &str) -> &str {
    name::unit(path).1
}

/// Where the cgroup v2 hierarchy is mounted.
pub fn find() -> Result<PathBuf> {
    Ok(Mount::find()?.path)
}

impl Cgroups {
    /// The most memory that all names may take.
    pub const MOST_BYTES: u64 = (MOST_LIVING + MOST_GONE) as u64 * BYTES_PER_CGROUP;

    /// Reads the tree and starts a thread that follows it.
    pub fn follow() -> Result<Self> {
        Self::follow_at_most(MOST_LIVING)
    }

    /// Like [`follow`](Self::follow), with at most `most` names of existing cgroups.
    fn follow_at_most(most: usize) -> Result<Self> {
        let known = Arc::new(Mutex::new(Known::new(most)));
        let (tree, wake) = Tree::new(Mount::find()?, &known)?;
        std::thread::Builder::new()
            .name("cgroups".to_owned())
            .spawn(move || tree.follow())
            .context("start a thread that follows the cgroups")?;
        Ok(Self { known, wake })
    }

    /// The cgroups with these ids, in the same order. See [`Self::lookup`].
    pub fn lookup_all(&self, ids: &[u64]) -> Vec<Cgroup> {
        let mut told = Vec::new();
        self.lookup(ids, &mut |cgroup| told.push(cgroup.clone()));
        told
    }

    /// A fixed set of cgroups with these ids and paths, which no thread follows.
    pub fn with_known(cgroups: &[(u64, &str)]) -> Self {
        let mut known = Known::new(MOST_LIVING);
        for (id, path) in cgroups {
            assert_eq!(known.add(name::cgroup(*id, path), Share::Host), Added::Yes);
        }
        Self {
            known: Arc::new(Mutex::new(known)),
            wake: tree::Wake::silent(),
        }
    }

    /// How many existing cgroups have a name.
    #[cfg(test)]
    pub fn len(&self) -> usize {
        lock(&self.known).living.len()
    }

    #[cfg(test)]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// A cgroup that was removed before the agent saw it has only its id. The thread that reads the tree holds the lock only
/// for moments.
impl Directory<Cgroup> for Cgroups {
    fn lookup(&self, ids: &[u64], each: &mut dyn FnMut(&Cgroup)) {
        let mut is_new = false;
        let known: Vec<_> = {
            let mut known = lock(&self.known);
            let of = |&id| (id, known.get(id, &mut is_new));
            ids.iter().map(of).collect()
        };
        if is_new {
            self.wake.look_again();
        }
        for (id, known) in known {
            if let Some(known) = known {
                each(&known);
            } else {
                let nameless = Cgroup {
                    id,
                    ..Cgroup::default()
                };
                each(&nameless);
            }
        }
    }
}

/// The names, by id.
struct Known {
    /// The most entries that `living` may have.
    most: usize,
    living: HashMap<u64, Living>,
    /// The ids in `living`, by whose share they are in.
    shares: Shares,
    gone: HashMap<u64, Arc<Cgroup>>,
    /// The ids in `gone`, oldest first.
    gone_ids: VecDeque<u64>,
    /// Unknown ids that were asked for, so that each is searched for only once.
    missed: HashSet<u64>,
}

struct Living {
    cgroup: Arc<Cgroup>,
    share: Share,
}

/// The result of adding a cgroup.
#[derive(Debug, PartialEq)]
enum Added {
    Yes,
    /// Added after this cgroup was removed to make room. Only the id of that one is known from then on.
    InPlaceOf(Arc<Cgroup>),
    /// Not added: there is no room, and no other share is larger.
    No,
}

impl Known {
    fn new(most: usize) -> Self {
        Self {
            most,
            living: HashMap::new(),
            shares: Shares::default(),
            gone: HashMap::new(),
            gone_ids: VecDeque::new(),
            missed: HashSet::new(),
        }
    }

    /// Sets `is_new` if the id is unknown and is asked for for the first time.
    fn get(&mut self, id: u64, is_new: &mut bool) -> Option<Arc<Cgroup>> {
        let living = self.living.get(&id).map(|living| &living.cgroup);
        if let Some(known) = living.or_else(|| self.gone.get(&id)) {
            return Some(Arc::clone(known));
        }
        if self.missed.len() == MOST_MISSED {
            self.missed.clear();
        }
        *is_new |= self.missed.insert(id);
        None
    }

    /// Adds a cgroup. If there is no room, the largest share gives one up to a smaller share.
    fn add(&mut self, cgroup: Cgroup, share: Share) -> Added {
        let id = cgroup.id;
        if self.living.contains_key(&id) {
            return Added::Yes;
        }
        let mut added = Added::Yes;
        if self.living.len() >= self.most {
            let Some(last) = self.shares.give_up_for(share) else {
                return Added::No;
            };
            if let Some(living) = self.living.remove(&last) {
                added = Added::InPlaceOf(living.cgroup);
            }
        }
        if self.gone.remove(&id).is_some() {
            self.gone_ids.retain(|gone| *gone != id);
        }
        self.missed.remove(&id);
        self.shares.insert(share, id);
        let cgroup = Arc::new(cgroup);
        self.living.insert(id, Living { cgroup, share });
        added
    }

    fn share_of(&self, id: u64) -> Option<Share> {
        self.living.get(&id).map(|living| living.share)
    }

    fn remove(&mut self, id: u64) {
        let Some(Living { cgroup, share }) = self.living.remove(&id) else {
            return;
        };
        self.shares.remove(share, id);
        if self.gone_ids.len() == MOST_GONE
            && let Some(first) = self.gone_ids.pop_front()
        {
            self.gone.remove(&first);
        }
        self.gone_ids.push_back(id);
        self.gone.insert(id, cgroup);
    }
}

fn lock(known: &Mutex<Known>) -> std::sync::MutexGuard<'_, Known> {
    known.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::{
        fs,
        os::unix::fs::MetadataExt as _,
        time::{Duration, Instant},
    };

    use lab::{ControlGroup, privilege::is_root_or_skip};

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(100);

    fn path_of(cgroups: &Cgroups, id: u64) -> String {
        cgroups.lookup_all(&[id]).remove(0).path
    }

    fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
        let deadline = Instant::now() + PATIENCE;
        while !is_so() {
            assert!(Instant::now() < deadline, "{what}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    #[test]
    fn folders_that_come_and_go_are_followed() {
        if !is_root_or_skip("enrich::folders_that_come_and_go_are_followed") {
            return;
        }
        let group = ControlGroup::slice().unwrap();
        let slice = format!("/{}", group.path().file_name().unwrap().to_str().unwrap());
        let make = |name: &str| {
            let path = group.path().join(name);
            fs::create_dir_all(&path).unwrap();
            fs::metadata(path).unwrap().ino()
        };
        let before = make("before.service");
        let cgroups = Cgroups::follow().unwrap();
        // A cgroup that exists at the start is known at once.
        assert_eq!(path_of(&cgroups, before), format!("{slice}/before.service"));
        let root = fs::metadata(find().unwrap()).unwrap().ino();
        assert_eq!(path_of(&cgroups, root), "/");
        // So are folders inside folders that were just made.
        for name in [
            "one.slice/two.slice/three.service",
            "one.slice/four.service",
        ] {
            let id = make(name);
            // Look directly: asking for the id would make the thread read the tree.
            let is_known = || lock(&cgroups.known).living.contains_key(&id);
            wait_until("it is known", is_known);
            assert_eq!(path_of(&cgroups, id), format!("{slice}/{name}"));
        }
        let known = cgroups.len();
        fs::remove_dir(group.path().join("before.service")).unwrap();
        wait_until("it is gone", || {
            !lock(&cgroups.known).living.contains_key(&before)
        });
        assert_eq!(path_of(&cgroups, before), format!("{slice}/before.service"));
        // Other cgroups may come and go meanwhile.
        assert!(known > 0 && !cgroups.is_empty());
    }

    #[test]
    fn what_nobody_told_of_is_found_when_it_is_asked_for() {
        if !is_root_or_skip("enrich::what_nobody_told_of_is_found_when_it_is_asked_for") {
            return;
        }
        let group = ControlGroup::slice().unwrap();
        let cgroups = Cgroups::follow().unwrap();
        let id = fs::metadata(group.path()).unwrap().ino();
        // As if inotify had lost the event.
        lock(&cgroups.known).remove(id);
        lock(&cgroups.known).gone.clear();
        wait_until("it is looked for", || !path_of(&cgroups, id).is_empty());
        // A removal that was missed is noticed as well.
        lock(&cgroups.known).add(name::cgroup(u64::MAX, "/gone"), Share::Host);
        cgroups.lookup_all(&[u64::MAX - 1]);
        wait_until("it is looked for again", || {
            !lock(&cgroups.known).living.contains_key(&u64::MAX)
        });
    }

    #[test]
    fn names_outlive_their_cgroups_as_long_as_there_is_room() {
        let mut known = Known::new(MOST_LIVING);
        let add = |known: &mut Known, id| {
            known.add(name::cgroup(id, "/system.slice/a.service"), Share::Host) == Added::Yes
        };
        let count = MOST_GONE as u64 + 1;
        for id in 1..=count {
            assert!(add(&mut known, id));
            known.remove(id);
            known.remove(id);
        }
        // A cgroup that exists after all.
        assert!(add(&mut known, 2));
        known.remove(2);
        let mut is_new = false;
        for (id, is_known) in [(1, false), (2, true), (count, true)] {
            let found = known.get(id, &mut is_new);
            let unit = found.map(|one| one.unit.clone());
            assert_eq!(unit.as_deref(), is_known.then_some("a.service"), "{id}");
        }
        assert!(is_new && known.living.is_empty());
        is_new = false;
        known.get(1, &mut is_new);
        assert!(!is_new, "it is looked for once");
        assert_eq!(
            (known.gone.len(), known.gone_ids.len()),
            (MOST_GONE, MOST_GONE)
        );
    }

    /// Runs in its own user namespace, whose inotify limit nobody else uses.
    #[test]
    fn without_room_for_watches_cgroups_are_found_when_they_are_asked_for() {
        const NAME: &str = "without_room_for_watches_cgroups_are_found_when_they_are_asked_for";
        const INSIDE: &str = "FLOW_AGENT_TEST_WITHOUT_WATCHES";
        if !is_root_or_skip(&format!("enrich::{NAME}")) {
            return;
        }
        let group = ControlGroup::slice().unwrap();
        // Each cgroup is in a folder that may have no watch.
        let make = |number: u32| {
            let path = format!("{number}.slice/{number}.service");
            let path = group.path().join(path);
            fs::create_dir_all(&path).unwrap();
            fs::metadata(path).unwrap().ino()
        };
        if std::env::var_os(INSIDE).is_some() {
            let early: Vec<u64> = (0..10).map(make).collect();
            let cgroups = Cgroups::follow().unwrap();
            let later: Vec<u64> = (10..20).map(make).collect();
            for (number, id) in early.into_iter().chain(later).enumerate() {
                let unit = || cgroups.lookup_all(&[id]).remove(0).unit;
                wait_until("it is found", || !unit().is_empty());
                assert_eq!(unit(), format!("{number}.service"));
            }
            return;
        }
        // The test program may be in a folder that other users cannot enter.
        let folder = tempfile::Builder::new().tempdir_in("/tmp").unwrap();
        let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        fs::set_permissions(folder.path(), open).unwrap();
        let program = folder.path().join("tests");
        let mut copy = std::process::Command::new("cp");
        let copied = copy.arg(std::env::current_exe().unwrap()).arg(&program);
        assert!(copied.status().unwrap().success());
        for limit in ["max_inotify_watches", "max_inotify_instances"] {
            let few = if limit.ends_with("watches") { 5 } else { 0 };
            let script = format!("echo {few} > /proc/sys/user/{limit} && exec \"$0\" \"$@\"");
            let mut inside = std::process::Command::new("unshare");
            inside.args(["--user", "--map-root-user", "sh", "-c", &script]);
            inside.arg(&program).args(["--nocapture", NAME]);
            let output = inside.env(INSIDE, "1").output().unwrap();
            let text = [output.stdout, output.stderr].concat();
            let text = String::from_utf8_lossy(&text);
            assert!(output.status.success(), "{limit}: {text}");
            assert!(text.contains("1 passed"), "{text}");
        }
    }

    #[test]
    fn there_is_a_bound() {
        let mut known = Known::new(MOST_LIVING);
        let add = |known: &mut Known, id| known.add(name::cgroup(id, "/"), Share::Host);
        for id in 0..MOST_LIVING as u64 {
            assert_eq!(add(&mut known, id), Added::Yes);
        }
        assert_eq!(add(&mut known, 5), Added::Yes, "it is there");
        assert_eq!(add(&mut known, MOST_LIVING as u64), Added::No);
        known.remove(5);
        assert_eq!(add(&mut known, MOST_LIVING as u64), Added::Yes);
    }

    #[test]
    fn whoever_has_the_most_makes_room_for_those_who_have_less() {
        let mut known = Known::new(MOST_LIVING);
        let mut next = 0;
        let mut add = |known: &mut Known, share| {
            next += 1;
            (next, known.add(name::cgroup(next, "/"), share))
        };
        let (one, other) = (Share::User(1000), Share::User(1001));
        let (first, _) = add(&mut known, Share::Unit(7));
        while add(&mut known, one).1 == Added::Yes {}
        // As many as the first share has left.
        for _ in 0..MOST_LIVING / 2 - 1 {
            let (_, added) = add(&mut known, other);
            assert!(matches!(added, Added::InPlaceOf(_)), "{added:?}");
        }
        assert_eq!(add(&mut known, other).1, Added::No);
        assert_eq!(add(&mut known, one).1, Added::No);
        // A small share always finds room.
        for unit in 100..1000 {
            let (id, added) = add(&mut known, Share::Unit(unit));
            assert!(matches!(added, Added::InPlaceOf(_)), "{added:?}");
            assert!(known.share_of(id).is_some());
        }
        assert!(known.share_of(first).is_some());
        assert_eq!(known.living.len(), MOST_LIVING);
        let ids: Vec<u64> = known.living.keys().copied().collect();
        for id in ids {
            known.remove(id);
        }
        assert!(known.shares.is_empty());
    }

    /// As a user may do to whom systemd has delegated a part of the tree.
    #[test]
    fn a_users_cgroups_by_the_thousand_leave_a_later_unit_its_name() {
        const MOST: usize = 1500;
        if !is_root_or_skip("enrich::a_users_cgroups_by_the_thousand_leave_a_later_unit_its_name") {
            return;
        }
        let group = ControlGroup::slice().unwrap();
        let make = |name: &str| {
            let path = group.path().join(name);
            fs::create_dir(&path).unwrap();
            path
        };
        let given = make("user@1000.service");
        std::os::unix::fs::chown(&given, Some(1000), Some(1000)).unwrap();
        for number in 0..MOST {
            make(&format!("user@1000.service/{number}"));
        }
        let cgroups = Cgroups::follow_at_most(MOST).unwrap();
        // Other tests remove cgroups of theirs meanwhile, which leaves room for as many.
        let is_full = || (MOST - 100..=MOST).contains(&cgroups.len());
        assert!(is_full(), "{}", cgroups.len());
        let later = fs::metadata(make("later.service")).unwrap().ino();
        let unit = || cgroups.lookup_all(&[later]).remove(0).unit;
        wait_until("it is known", || !unit().is_empty());
        assert_eq!(unit(), "later.service");
        assert!(is_full(), "{}", cgroups.len());
    }
}
