//! What the CPUs count together.

use agent::kernel::load::{Kernel, LoadSettings, secret_factors};
use agent_common::{Pair, Reason};
use aya::{
    Ebpf,
    programs::{SchedClassifier, TestRun as _, TestRunOptions},
};
use lab::{kernel, pin_to, privilege::is_root_or_skip};
use std::thread;

use crate::corpus::programs::{IFINDEX, netns};

/// Shorter than Ethernet's shortest frame, so that two facts are counted of it.
const ARP: [u8; 14] = [2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x08, 0x06];

/// Each CPU takes packets of two accounts by turns, so that it adds to counters that the other one adds to all the time.
#[test]
fn cpus_that_share_counters_lose_nothing() {
    if !is_root_or_skip("agent::cpus_that_share_counters_lose_nothing") {
        return;
    }
    let each = kernel::packets(400_000, 4_000);
    // Two sets of programs have one interface in two places.
    let mut kernel = Kernel::load(&LoadSettings {
        min_flows: 1,
        max_flows: 1,
        max_fragments: 1,
        decapsulate: false,
        early_scan_flows: 0,
        netns: vec![netns(); 2],
        max_interfaces: 2,
        sample_rate: 0,
        log_level: 0,
        hash_factors: secret_factors(),
    })
    .unwrap();
    for set in [0, 1] {
        kernel.register(set, IFINDEX, "lo", set as u32).unwrap();
        let program = kernel.sets[set].programs.program_mut("tc_ingress").unwrap();
        <&mut SchedClassifier>::try_from(program)
            .unwrap()
            .load()
            .unwrap();
    }
    let sets = &kernel.sets;
    thread::scope(|scope| {
        for cpu in [0, 1] {
            scope.spawn(move || {
                pin_to(cpu).unwrap();
                for _ in 0..each {
                    for set in sets {
                        take_arp(&set.programs);
                    }
                }
            });
        }
    });
    let mut accounts = kernel.accounts.of_idle(0);
    for hook in [0, 2] {
        let account = accounts.take(hook).unwrap();
        let packets = 2 * each;
        let of = |bytes| Pair {
            packets,
            bytes: packets * bytes,
        };
        assert_eq!(account.get(Reason::Seen), of(14));
        assert_eq!(account.get(Reason::Arp), of(14));
        assert_eq!(account.get(Reason::Short), of(60 - 14));
        assert_eq!(account.missing(), Pair::default());
    }
    // What was pending is in the accounts now, and not twice.
    assert_eq!(
        kernel.accounts.of_idle(0).take(0).unwrap().get(Reason::Arp),
        Pair::default()
    );
}

fn take_arp(programs: &Ebpf) {
    let program = programs.program("tc_ingress").unwrap();
    let program: &SchedClassifier = program.try_into().unwrap();
    let options = TestRunOptions {
        data_in: Some(&ARP),
        ..TestRunOptions::new()
    };
    program.test_run(options).unwrap();
}
