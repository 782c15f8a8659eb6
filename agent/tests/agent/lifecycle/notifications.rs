//! What the kernel tells of interfaces and routes, also when it tells a lot at once.

use std::fmt::Write as _;

use lab::{Lab, privilege::is_root_or_skip};

use super::coming::{batch, hooks_of, ip, status};
use crate::support::{Agent, wait_until};

const MISSED: &str = "more changes of interfaces than were read in time";

/// The default receive buffer of a socket has room for a hundred of these.
#[test]
fn thousands_of_routes_and_changes_hide_no_interface() {
    const ROUTES: u32 = 5000;
    const CHANGES: u32 = 500;
    if !is_root_or_skip("agent::thousands_of_routes_and_changes_hide_no_interface") {
        return;
    }
    let lab = Lab::quiet().unwrap();
    let (namespace, interface) = (&lab.agent.namespace, &lab.agent.interface);
    namespace.add_wire(["new0", "far0"]).unwrap();
    namespace.add_wire(["busy0", "busy1"]).unwrap();
    ip(namespace, &format!("route add default dev {interface}"));
    let agent = Agent::start_on(&lab.agent, "", &[]);
    assert_eq!(hooks_of(&status(&lab, &agent), interface), 2);

    // Nothing is read meanwhile.
    agent.signal(libc::SIGSTOP);
    let mut lines = String::new();
    for number in 0..ROUTES {
        let [_, _, high, low] = number.to_be_bytes();
        writeln!(lines, "route add 10.77.{high}.{low}/32 dev busy0").unwrap();
    }
    for number in 0..CHANGES {
        writeln!(lines, "link set busy0 mtu {}", 1400 + number % 2).unwrap();
    }
    lines += "route add default dev new0 metric 7\n";
    writeln!(lines, "link del {interface}").unwrap();
    batch(namespace, &lines);
    agent.signal(libc::SIGCONT);
    wait_until("the new uplink is watched and the other one is not", || {
        let status = status(&lab, &agent);
        hooks_of(&status, "new0") == 2 && hooks_of(&status, interface) == 0
    });
    let log = agent.stderr();
    assert!(!log.contains(MISSED), "{log}");
    agent.stop();
}
