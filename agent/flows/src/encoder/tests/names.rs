//! The names in a batch: cgroups and processes.

use proto::Process;

use super::*;
use crate::names::Directory;

/// Cgroups by id and path. For any other, only the id is known.
struct Cgroups(Vec<(u64, &'static str)>);

impl Directory<Cgroup> for Cgroups {
    fn lookup(&self, ids: &[u64], each: &mut dyn FnMut(&Cgroup)) {
        for &id in ids {
            let known = self.0.iter().find(|(known, _)| *known == id);
            each(&Cgroup {
                id,
                path: known.map_or_else(String::new, |(_, path)| (*path).to_owned()),
                ..Cgroup::default()
            });
        }
    }
}

/// Processes. For any other, only the key is known.
struct Processes(Vec<Process>);

impl Directory<Process> for Processes {
    fn lookup(&self, keys: &[u64], each: &mut dyn FnMut(&Process)) {
        for &key in keys {
            let known = self.0.iter().find(|known| known.key == key);
            each(&known.cloned().unwrap_or(Process {
                key,
                ..Process::default()
            }));
        }
    }
}

#[test]
fn each_batch_names_the_cgroups_of_its_own_records() {
    let named = |[src, dst]: [u64; 2]| {
        let mut record = longest_record();
        record.src.cgroup_id = (src != 0).then_some(src);
        record.dst.cgroup_id = (dst != 0).then_some(dst);
        record
    };
    let known = [(3, "/a.service"), (5, "/b.service")];
    let encoder = BatchEncoder::new(identity()).naming(Names {
        cgroups: Some(Arc::new(Cgroups(known.to_vec()))),
        ..Names::default()
    });
    for mut encoder in [encoder.another(), encoder] {
        let mut batches = Vec::new();
        let mut sink = |batch: Batch| batches.push(decode(&batch));
        encoder.begin(&header(1));
        for _ in 0..1_000 {
            encoder.push(&named([5, 3]), &mut sink);
        }
        encoder.push(&named([0, 5]), &mut sink);
        encoder.push(&named([9, 0]), &mut sink);
        encoder.finish(&trailer(&HookAccount::default()), &mut sink);
        encoder.begin(&header(1));
        encoder.push(&named([0, 0]), &mut sink);
        encoder.push(&named([3, 0]), &mut sink);
        encoder.finish(&trailer(&HookAccount::default()), &mut sink);
        let mut said = batches.iter().map(|batch| {
            let cgroups = batch.cgroups.iter();
            cgroups
                .map(|one| (one.id, one.path.as_str()))
                .collect::<Vec<_>>()
        });
        let unknown = (9, "");
        let all = [known[0], known[1], unknown];
        assert!(batches.len() > 2);
        assert_eq!(said.clone().next().unwrap(), known);
        // The records of the last batch may name fewer.
        let last_of_first = said.clone().nth(batches.len() - 2).unwrap();
        assert!(
            last_of_first.ends_with(&[unknown])
                && last_of_first.iter().all(|one| all.contains(one))
        );
        assert_eq!(said.next_back().unwrap(), [known[0]]);
        assert_eq!(encoder.nameless_ends(), 1);
        assert!(
            batches
                .iter()
                .all(|batch| batch.account.is_some() == batch.last_of_scan)
        );
    }
}

#[test]
fn a_batch_names_the_processes_of_its_records_each_once() {
    let process = |pid| Process {
        key: u64::from(pid) << 32 | 1,
        pid,
        name: "nginx".to_owned(),
        uid: Some(33),
    };
    let [first, second, third] = [7, 5, 9].map(process);
    let mut encoder = BatchEncoder::new(identity()).naming(Names {
        processes: Some(Arc::new(Processes(vec![
            first.clone(),
            second.clone(),
            third.clone(),
        ]))),
        ..Names::default()
    });
    let mut batches = Vec::new();
    let mut sink = |batch: Batch| batches.push(decode(&batch));
    let named = |[src, dst]: [u64; 2]| {
        let mut record = longest_record();
        record.src.process_key = (src != 0).then_some(src);
        record.dst.process_key = (dst != 0).then_some(dst);
        record
    };
    for keys in [
        &[[first.key, second.key], [0, first.key], [0, 0]][..],
        &[[0, third.key]],
    ] {
        encoder.begin(&header(1));
        for keys in keys {
            encoder.push(&named(*keys), &mut sink);
        }
        encoder.finish(&trailer(&HookAccount::default()), &mut sink);
    }
    let said = batches.into_iter().map(|batch| batch.processes);
    assert_eq!(said.collect::<Vec<_>>(), [vec![second, first], vec![third]]);
}

/// Readers of a batch find names by binary search.
#[test]
fn what_a_batch_names_is_in_order() {
    const MANY: u64 = 300;
    let mut encoder = BatchEncoder::new(identity()).naming(Names {
        cgroups: Some(Arc::new(Cgroups(Vec::new()))),
        processes: Some(Arc::new(Processes(Vec::new()))),
        ..Names::default()
    });
    let mut batches = Vec::new();
    let mut sink = |batch: Batch| batches.push(decode(&batch));
    encoder.begin(&header(1));
    for number in 0..MANY {
        // In no order, and each twice.
        let id = 1 + number * 7 % (MANY / 2 + 1);
        let mut record = longest_record();
        (record.src.cgroup_id, record.dst.cgroup_id) = (Some(id), None);
        (record.src.process_key, record.dst.process_key) = (None, Some(id << 32));
        encoder.push(&record, &mut sink);
    }
    encoder.finish(&trailer(&HookAccount::default()), &mut sink);
    for batch in &batches {
        let records = || batch.records.iter();
        let in_order = |ids: Vec<u64>| {
            let all: std::collections::BTreeSet<u64> = ids.into_iter().collect();
            all.into_iter().collect::<Vec<_>>()
        };
        let cgroups: Vec<_> = batch.cgroups.iter().map(|one| one.id).collect();
        let named = records().filter_map(|one| one.src().cgroup_id.or(one.dst().cgroup_id));
        assert_eq!(cgroups, in_order(named.collect()));
        let processes: Vec<_> = batch.processes.iter().map(|one| one.key).collect();
        let named = records().filter_map(|one| one.src().process_key.or(one.dst().process_key));
        assert_eq!(processes, in_order(named.collect()));
        assert!(cgroups.len() > 10 && processes.len() > 10);
    }
}
