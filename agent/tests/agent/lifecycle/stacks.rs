//! Stacked devices: their tree in `check`, and the warnings where packets count twice.

use lab::{Lab, privilege::is_root_or_skip};
use serde_json::Value;

use crate::support::{Agent, flow_agent, wait_until};

/// Runs lines of `ip` on the agent's host.
fn ip(lab: &Lab, lines: &str) {
    for line in lines.lines().map(str::trim) {
        let words: Vec<_> = line.split(' ').collect();
        let outcome = lab.agent.namespace.ip(&words);
        outcome.unwrap_or_else(|error| panic!("{line}: {error:#}"));
    }
}

/// A lab where a macvlan and a tunnel stand on the agent's end, and a bridge has a port of its own.
fn stacked() -> Lab {
    let lab = Lab::quiet().unwrap();
    ip(
        &lab,
        "link add link agent0 name mac0 type macvlan mode bridge
         link add tun0 type vxlan id 7 remote 10.77.0.2 dev agent0 dstport 4789
         link add br0 type bridge
         link add port0 type veth peer name far0
         link set port0 master br0
         link set mac0 addrgenmode none up
         link set br0 addrgenmode none up",
    );
    lab
}

fn check(lab: &Lab, arguments: &[&str]) -> String {
    let mut command = flow_agent(&lab.agent);
    let output = command.arg("check").args(arguments).output().unwrap();
    String::from_utf8(output.stdout).unwrap()
}

fn json(lab: &Lab, arguments: &[&str]) -> Vec<Value> {
    let text = check(lab, &[&["--output", "json"], arguments].concat());
    let lines = text.lines().map(|line| serde_json::from_str(line).unwrap());
    lines.collect()
}

fn device<'a>(lines: &'a [Value], name: &str) -> &'a Value {
    let mut found = lines
        .iter()
        .filter(|line| line["type"] == "device" && line["name"] == name);
    let device = found
        .next()
        .unwrap_or_else(|| panic!("{name} in {lines:?}"));
    assert!(found.next().is_none(), "{name} comes twice");
    device
}

#[test]
fn check_shows_the_devices_as_they_stand_on_each_other_and_why_they_are_counted() {
    if !is_root_or_skip(
        "agent::check_shows_the_devices_as_they_stand_on_each_other_and_why_they_are_counted",
    ) {
        return;
    }
    let lab = stacked();
    ip(
        &lab,
        "address add 10.79.0.1/24 dev mac0
         route add default dev mac0",
    );
    let text = check(&lab, &[]);
    let tree = text
        .split_once("devices, ")
        .unwrap_or_else(|| panic!("{text}"))
        .1;
    let tree = tree.rsplit_once("the agent can run here").unwrap().0;
    let expected = "\
each above those that its packets pass, too; * is counted:
    lo        loopback  no default route leads over it
  * mac0      macvlan   a default route leads over it; ingress at TC; egress at TC
      agent0  veth      no default route leads over it
    tun0      vxlan     no default route leads over it; down
      agent0  veth      see above
    br0       bridge    no default route leads over it
      port0   veth      no default route leads over it; its other end is far0; down
    far0      veth      no default route leads over it; its other end is port0; down
";
    assert_eq!(tree, expected);

    let xdp = ["--interface", "*0", "--exclude-interface", "tun0"];
    let lines = json(&lab, &xdp);
    let mac = device(&lines, "mac0");
    assert_eq!(mac["lower"], serde_json::json!(["agent0"]));
    assert_eq!(mac["reason"], "pattern");
    assert_eq!(mac["is_counted"], true);
    assert_eq!([&mac["ingress_hook"], &mac["egress_hook"]], ["tc", "tc"]);
    let tunnel = device(&lines, "tun0");
    assert_eq!(tunnel["lower"], serde_json::json!(["agent0"]));
    assert_eq!(tunnel["reason"], "excluded");
    assert_eq!(tunnel["is_counted"], false);
    assert!(tunnel["ingress_hook"].is_null());
    assert_eq!(device(&lines, "port0")["other_end"], "far0");
    assert_eq!(device(&lines, "lo")["reason"], "no_match");

    let twice = lines.iter().filter_map(|line| line["name"].as_str());
    let twice: Vec<_> = twice.filter(|name| name.starts_with("twice ")).collect();
    assert_eq!(
        twice,
        ["twice mac0 agent0", "twice br0 port0", "twice far0 port0"]
    );
    let of_mac = lines.iter().find(|line| line["name"] == twice[0]).unwrap();
    assert_eq!(of_mac["status"], "warn");
    let remedy = of_mac["remedy"].as_str().unwrap();
    assert!(remedy.contains("--exclude-interface mac0"), "{remedy}");
}

/// Nothing is known to be under such a tunnel, so both are uplinks.
#[test]
fn a_tunnel_that_names_no_interface_may_count_twice_and_that_is_said() {
    const TOLD: &str = "packets may be counted twice: the packets of the tunnel tun9, which names no interface \
                        for them, may pass agent0";
    if !is_root_or_skip("agent::a_tunnel_that_names_no_interface_may_count_twice_and_that_is_said")
    {
        return;
    }
    let lab = Lab::quiet().unwrap();
    ip(
        &lab,
        "route add default dev agent0 metric 10
         link add tun9 type vxlan id 9 remote 10.77.0.2 dstport 4789
         link set tun9 addrgenmode none up",
    );
    let remedy =
        "leave one of them out, with --exclude-interface tun9 or --exclude-interface agent0";
    let tunnels = |lines: &[Value]| {
        lines
            .iter()
            .filter(|line| line["name"] == "twice tun9")
            .count()
    };
    assert_eq!(tunnels(&json(&lab, &[])), 0, "it has no default route");
    let agent = Agent::start_on(&lab.agent, "", &[]);
    assert!(!agent.stderr().contains("twice"), "{}", agent.stderr());

    ip(&lab, "route add default dev tun9 metric 20");
    wait_until("it is told of the tunnel", || agent.stderr().contains(TOLD));
    agent.stop();

    let lines = json(&lab, &[]);
    let told = lines.iter().find(|line| line["name"] == "twice tun9");
    let told = told.unwrap_or_else(|| panic!("{lines:?}"));
    assert_eq!(
        (&told["status"], &told["detail"]),
        (&"warn".into(), &TOLD.into())
    );
    assert!(told["remedy"].as_str().unwrap().contains(remedy), "{told}");
    let agent = Agent::start_on(&lab.agent, "", &[]);
    let log = agent.stderr();
    assert!(log.contains(TOLD) && log.contains(remedy), "{log}");
    agent.stop();
    let without = ["--exclude-interface", "tun9"];
    assert_eq!(tunnels(&json(&lab, &without)), 0);
    let agent = Agent::start_on(&lab.agent, "", &without);
    assert!(
        !agent.stderr().contains("counted twice"),
        "{}",
        agent.stderr()
    );
    agent.stop();
}

#[test]
fn the_tree_says_where_packets_of_a_second_default_route_are_counted() {
    if !is_root_or_skip("agent::the_tree_says_where_packets_of_a_second_default_route_are_counted")
    {
        return;
    }
    let lab = stacked();
    ip(
        &lab,
        "route add default dev mac0 metric 10
         route add default dev agent0 metric 20",
    );
    let lines = json(&lab, &[]);
    let mac = device(&lines, "mac0");
    assert_eq!(mac["reason"], "counted_at_lower");
    let detail = mac["detail"].as_str().unwrap();
    assert!(detail.ends_with("are counted at agent0"), "{detail}");
    assert_eq!(device(&lines, "agent0")["reason"], "default_route");
    assert!(
        !lines
            .iter()
            .any(|line| line["name"].as_str().unwrap().starts_with("twice"))
    );
}

#[test]
fn a_start_that_counts_packets_twice_names_both_interfaces_and_what_mends_it() {
    if !is_root_or_skip(
        "agent::a_start_that_counts_packets_twice_names_both_interfaces_and_what_mends_it",
    ) {
        return;
    }
    let lab = stacked();
    for (interfaces, told) in [
        ("agent0,mac0", "what passes mac0 passes agent0, too;"),
        (
            "agent0,tun0",
            "what passes tun0 passes agent0, too, inside the tunnel's packets;",
        ),
        (
            "br0,port0",
            "over the bridge br0 passes its port port0, too;",
        ),
        ("port0,far0", "far0 and port0 are the ends of one cable"),
    ] {
        let agent = Agent::start_on(&lab.agent, interfaces, &[]);
        let log = agent.stderr();
        let line = log.lines().find(|line| line.contains("counted twice"));
        let line = line.unwrap_or_else(|| panic!("{interfaces}: {log}"));
        assert!(line.contains("WARN") && line.contains(told), "{line}");
        for interface in interfaces.split(',') {
            let option = format!("--exclude-interface {interface}");
            assert!(line.contains(&option), "{line}");
        }
        agent.stop();
    }
    let agent = Agent::start_on(&lab.agent, "mac0,br0,far0", &[]);
    assert!(!agent.stderr().contains("twice"), "{}", agent.stderr());
    agent.stop();
}

#[test]
fn one_that_comes_and_stands_on_a_counted_one_is_told_of() {
    if !is_root_or_skip("agent::one_that_comes_and_stands_on_a_counted_one_is_told_of") {
        return;
    }
    let lab = Lab::quiet().unwrap();
    let mut agent = Agent::start_on(&lab.agent, "agent0,new*", &[]);
    assert!(!agent.stderr().contains("twice"));
    ip(
        &lab,
        "link add link agent0 name new0 type macvlan mode bridge",
    );
    agent.wait_until_logged("packets are counted twice: what passes new0 passes agent0, too");
    agent.stop();
}

/// The end of a container's cable is created first, then added to a bridge.
#[test]
fn one_that_is_counted_and_becomes_a_port_of_a_counted_bridge_is_told_of() {
    if !is_root_or_skip(
        "agent::one_that_is_counted_and_becomes_a_port_of_a_counted_bridge_is_told_of",
    ) {
        return;
    }
    let lab = stacked();
    ip(&lab, "link set port0 nomaster");
    let mut agent = Agent::start_on(&lab.agent, "br*,port*", &[]);
    ip(&lab, "link set port0 master br0");
    agent.wait_until_logged("over the bridge br0 passes its port port0, too;");
    agent.stop();
}

/// The interfaces with hooks.
fn watched(lab: &Lab, agent: &Agent) -> Vec<String> {
    let status = agent.status(&lab.agent);
    let hooks = status["hooks"].as_array().unwrap().iter();
    let names = hooks.map(|hook| hook["interface"]["name"].as_str().unwrap().to_owned());
    let mut names: Vec<_> = names.collect();
    names.sort();
    names.dedup();
    names
}

#[test]
fn a_default_route_that_comes_below_another_ones_takes_its_place() {
    if !is_root_or_skip("agent::a_default_route_that_comes_below_another_ones_takes_its_place") {
        return;
    }
    let lab = stacked();
    ip(&lab, "route add default dev mac0 metric 10");
    let mut agent = Agent::start_on(&lab.agent, "", &[]);
    assert_eq!(watched(&lab, &agent), ["mac0"]);
    ip(&lab, "route add default dev agent0 metric 20");
    agent.wait_until_logged("no longer counted");
    wait_until("agent0 is counted alone", || {
        watched(&lab, &agent) == ["agent0"]
    });
    // An interface above a counted one adds nothing, however often its route appears.
    ip(
        &lab,
        "link add link agent0 name mac1 type macvlan mode bridge
         link set mac1 addrgenmode none up
         route add default dev mac1 metric 30
         route add default dev br0 metric 40",
    );
    wait_until("the last route is followed", || {
        watched(&lab, &agent) == ["agent0", "br0"]
    });
    // An interface that becomes the port of another one counts for both.
    ip(
        &lab,
        "link del mac1
         link del mac0
         link del tun0
         link set agent0 master br0",
    );
    wait_until("the port is counted alone", || {
        watched(&lab, &agent) == ["agent0"]
    });
    agent.stop();
}

/// Where `net.ipv4.nexthop_compat_mode` is 0, such a route names no interface.
#[test]
fn a_default_route_by_nexthop_objects_leads_over_their_interfaces() {
    if !is_root_or_skip("agent::a_default_route_by_nexthop_objects_leads_over_their_interfaces") {
        return;
    }
    let lab = stacked();
    let namespace = &lab.agent.namespace;
    let setting = "net/ipv4/nexthop_compat_mode";
    namespace.set_sysctl(setting, "0").unwrap();
    ip(
        &lab,
        "link set port0 addrgenmode none up
         link set far0 addrgenmode none up
         nexthop add id 1 dev agent0",
    );
    // The bridge has a carrier a little after its port.
    wait_until("the bridge takes a nexthop", || {
        let add = ["nexthop", "add", "id", "2", "dev", "br0"];
        namespace.ip(&add).is_ok()
    });
    ip(
        &lab,
        "nexthop add id 9 group 1/2
         route add default nhid 9 metric 10",
    );
    let agent = Agent::start_on(&lab.agent, "", &[]);
    assert_eq!(watched(&lab, &agent), ["agent0", "br0"]);
    agent.stop();

    ip(&lab, "route del default");
    ip(&lab, "route add default dev br0 metric 20");
    let agent = Agent::start_on(&lab.agent, "", &[]);
    assert_eq!(watched(&lab, &agent), ["br0"]);
    // Once this one is followed, the first look, which would find the other, is over.
    ip(
        &lab,
        "link set tun0 addrgenmode none up
         route add default dev tun0 metric 40",
    );
    wait_until("a route that comes is followed", || {
        watched(&lab, &agent) == ["br0", "tun0"]
    });
    ip(&lab, "route add default nhid 1 metric 30");
    wait_until("the route by the object is followed", || {
        watched(&lab, &agent) == ["agent0", "br0"]
    });
    agent.stop();
}
