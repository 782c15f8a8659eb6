//! Counters that several CPUs add to.

use std::thread;

use ::kernel::load::{Kernel, LoadSettings, ProgramSet};
use agent_common::{Pair, Reason, account::PENDING_PLACES, direction::hook_number};
use aya::programs::{SchedClassifier, TestRun as _, TestRunOptions};
use lab::{kernel, pin_to, privilege::is_root_or_skip};

use crate::corpus::programs::{IFINDEX, netns};

/// Shorter than Ethernet's shortest frame, so two facts are counted for each.
const ARP: [u8; 14] = [2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x08, 0x06];
const PROGRAMS: [&str; 2] = ["tc_ingress", "tc_egress"];
/// Pending counters of an account are at the same place in both.
const SLOTS: [u32; 2] = [0, PENDING_PLACES as u32 / 2];
const MAX_INTERFACES: u32 = SLOTS[1] + 1;

/// Each CPU takes packets of several accounts in turn, so both CPUs keep adding to the same counters.
#[test]
fn cpus_that_share_counters_lose_nothing() {
    if !is_root_or_skip("agent::cpus_that_share_counters_lose_nothing") {
        return;
    }
    let each = kernel::packets(200_000, 2_000);
    // Sets of programs have one interface in two slots, and in none.
    let mut kernel = Kernel::load(&LoadSettings {
        max_interfaces: MAX_INTERFACES,
        ..LoadSettings::smallest(vec![netns(); SLOTS.len() + 1])
    })
    .unwrap();
    for (set, slot) in SLOTS.into_iter().enumerate() {
        kernel.register(set, IFINDEX, "lo", slot).unwrap();
    }
    for set in &mut kernel.sets {
        for name in PROGRAMS {
            let program = set.programs.program_mut(name).unwrap();
            let program: &mut SchedClassifier = program.try_into().unwrap();
            program.load().unwrap();
        }
    }
    for page in [0, 1] {
        assert_eq!(kernel.pages.active_number(), page);
        take_on_two_cpus(&kernel.sets, each);
        kernel.pages.flip().unwrap();
    }

    let hooks = SLOTS.map(|slot| [0, 1].map(|direction| hook_number(slot, direction)));
    for page in [0, 1] {
        let mut accounts = kernel.accounts.of_idle(page);
        let known = hooks.as_flattened().iter();
        let known = known.map(|&hook| (accounts.take(hook).unwrap(), Reason::Arp, 2));
        let known: Vec<_> = known.collect();
        let unknown = accounts.take_unknown().unwrap();
        // It has both directions.
        let unknown = (unknown, Reason::UnknownInterface, 4);
        for (account, reason, times) in known.into_iter().chain([unknown]) {
            let packets = times * each;
            let of = |bytes| Pair {
                packets,
                bytes: packets * bytes,
            };
            assert_eq!(account.get(Reason::Seen), of(14));
            assert_eq!(account.get(reason), of(14), "{reason:?}");
            assert_eq!(account.get(Reason::Short), of(60 - 14), "{reason:?}");
            assert_eq!(account.missing(), Pair::default());
        }
        // The pending counters are in the accounts, and count once.
        let again = kernel.accounts.of_idle(page).take(hooks[0][0]).unwrap();
        assert_eq!(again.get(Reason::Short), Pair::default());
    }
}

fn take_on_two_cpus(sets: &[ProgramSet], each: u64) {
    thread::scope(|scope| {
        for cpu in [0, 1] {
            scope.spawn(move || {
                pin_to(cpu).unwrap();
                for _ in 0..each {
                    for name in PROGRAMS {
                        for set in sets {
                            take_arp(set, name);
                        }
                    }
                }
            });
        }
    });
}

fn take_arp(set: &ProgramSet, name: &str) {
    let program = set.programs.program(name).unwrap();
    let program: &SchedClassifier = program.try_into().unwrap();
    let options = TestRunOptions {
        data_in: Some(&ARP),
        ..TestRunOptions::new()
    };
    program.test_run(options).unwrap();
}
