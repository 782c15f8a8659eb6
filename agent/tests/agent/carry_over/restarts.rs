//! SIGTERM: the programs keep counting if systemd restarts the service, and are removed if it stops the service.

use lab::privilege::is_root_or_skip;

use super::{CLSACT, Line, has_links_or_skip, wait_until, warns_of_carrying};
use crate::support::{
    attached::{nothing_is_attached, tcx_programs},
    hook::Hook,
};

fn restarts_lose_nothing(hook: Hook, settings: &[&str]) {
    let line = Line::new(hook, settings);
    let mut agent = line.start();
    let before = line.counters();
    let traffic = line.traffic();
    for _ in 0..3 {
        traffic.wait_for(50);
        line.store.set_job(Some("restart")).unwrap();
        let log = agent.leave();
        line.store.set_job(None).unwrap();
        assert!(!nothing_is_attached(&line.lab.agent), "{log}");
        traffic.wait_for(50);
        agent = line.start();
        assert!(!warns_of_carrying(&agent), "{}", agent.stderr());
    }
    traffic.wait_for(50);
    let sent = traffic.end_all();
    let counted = line.counted(before);
    assert_eq!(counted.packets, sent);
    let books = line.end(agent, counted);
    assert_eq!(books.repeated, 0);
    assert_eq!(books.instances.len(), 4);
}

#[test]
fn restarts_lose_no_packet_on_tcx() {
    if has_links_or_skip("agent::restarts_lose_no_packet_on_tcx") {
        restarts_lose_nothing(Hook::TcIngress, &[]);
    }
}

#[test]
fn restarts_lose_no_packet_on_native_xdp() {
    if has_links_or_skip("agent::restarts_lose_no_packet_on_native_xdp") {
        restarts_lose_nothing(Hook::NativeXdp, &[]);
    }
}

#[test]
fn restarts_lose_no_packet_on_clsact() {
    if is_root_or_skip("agent::restarts_lose_no_packet_on_clsact") {
        restarts_lose_nothing(Hook::TcIngress, CLSACT);
    }
}

/// Even if the service manager still has the descriptors, for example after someone else's signal.
#[test]
fn a_stop_detaches_and_the_next_start_counts_from_zero() {
    if !has_links_or_skip("agent::a_stop_detaches_and_the_next_start_counts_from_zero") {
        return;
    }
    for job in [None, Some("stop")] {
        let line = Line::new(Hook::TcIngress, &[]);
        let agent = line.start();
        assert_eq!(tcx_programs(&line.lab.agent), [1, 1]);
        let before = line.counters();
        let traffic = line.traffic();
        traffic.wait_for(50);
        line.store.set_job(job).unwrap();
        agent.stop();
        wait_until("nothing is attached", || {
            nothing_is_attached(&line.lab.agent)
        });
        // Its records have exactly the packets that it saw.
        let first = line.books();
        let left_out = traffic.end_all() - first.seen().packets;
        line.store.set_job(None).unwrap();

        let agent = line.start();
        assert!(!warns_of_carrying(&agent), "{}", agent.stderr());
        let traffic = line.traffic();
        traffic.wait_for(20);
        drop(traffic);
        let mut counted = line.counted(before);
        counted.packets -= left_out;
        line.wait_until_in_accounts(counted.packets);
        agent.stop();
        line.books().assert_close();
        assert_eq!(line.books().seen().packets, counted.packets);
    }
}
