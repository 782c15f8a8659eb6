//! Names chosen by others. Wherever people read them, control characters for terminals must be escaped.

use lab::{Lab, privilege::is_root_or_skip};
use tempfile::TempDir;
use view::client::{Observer, Target};

use crate::support::{Agent, answered, flow_agent, wait_until};

/// Unescaped it would reset the terminal and reverse the writing direction. U+009B begins an escape sequence
/// too.
const INTERFACE: &str = "w\u{1b}c\u{202e}\u{9b}\u{7f}";
/// A part of it that serde leaves as it is.
const INTERFACE_AND_REST: &str = "c\u{202e}\u{9b}\u{7f}";
const INTERFACE_SHOWN: &str = r"w\u{1b}c\u{202e}\u{9b}\u{7f}";
/// Unescaped it would do the same, and add a line to the list.
const CONSUMER: &str = "c\u{1b}c\u{202e}\u{200b}\nconsumer  root";
const CONSUMER_SHOWN: &str = r"c\u{1b}c\u{202e}\u{200b}\u{a}consumer  root";

/// A path may have line breaks.
const SOCKET: &str = "s\u{1b}c\n.sock";
const SOCKET_SHOWN: &str = r"s\u{1b}c\u{a}.sock";

#[test]
fn names_from_elsewhere_move_nothing_on_a_terminal() {
    if !is_root_or_skip("agent::names_from_elsewhere_move_nothing_on_a_terminal") {
        return;
    }
    let mut lab = Lab::quiet().unwrap();
    let old = std::mem::replace(&mut lab.agent.interface, INTERFACE.to_owned());
    for change in [
        &["link", "set", &old, "down"][..],
        &["link", "set", &old, "name", INTERFACE],
        &["link", "set", INTERFACE, "up"],
    ] {
        lab.agent.namespace.ip(change).unwrap();
    }
    let directory = TempDir::new().unwrap();
    let socket = format!("unix:{}", directory.path().join(SOCKET).display());
    let rule = format!("exclude on {INTERFACE} dst port 9");
    let settings = ["--output", "table", "--listen", &socket, "--filter", &rule];
    let agent = Agent::start(&lab, &settings);
    let target: Target = agent.address().parse().unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let consumer = runtime
        .block_on(Observer::connect(target, CONSUMER))
        .unwrap();
    let frame = lab.peer.frame_v4(&lab.agent).udp(7, 53, &[0; 18]).unwrap();
    wait_until("a table has the flow", || {
        lab.peer.frame_socket().unwrap().send(&frame).unwrap();
        agent.stdout().contains(":53 ")
    });

    let connect = ["--connect", &agent.address()];
    let shown = |arguments: &[&str]| {
        let output = answered(|| {
            let mut command = flow_agent(&lab.agent);
            command.args(arguments);
            command
        });
        let text = [output.stdout, output.stderr].concat();
        String::from_utf8(text).unwrap()
    };
    let status = shown(&[&["status"][..], &connect].concat());
    assert!(status.contains(CONSUMER_SHOWN), "{status:?}");
    let audit = shown(&[&["audit"][..], &connect].concat());
    let filter = shown(&[&["filter", "show"][..], &connect].concat());
    let check = shown(&["check", "--interface", INTERFACE]);
    let refused = shown(&["check", "--interface", "nowhere7"]);
    let (log, table) = (agent.stderr(), agent.stdout());
    assert!(log.contains(SOCKET_SHOWN), "{log:?}");
    let all = [&status, &audit, &filter, &check, &refused, &log, &table];
    for text in all {
        assert!(text.contains(INTERFACE_SHOWN), "{text:?}");
    }
    let acts = |character: char| {
        (character.is_control() && character != '\n') || "\u{202e}\u{200b}".contains(character)
    };
    for text in all {
        assert!(!text.contains(acts), "{text:?}");
    }
    for command in ["status", "audit"] {
        let json = shown(&[&[command, "--output", "json"][..], &connect].concat());
        assert!(!json.contains(acts), "{json:?}");
        let read: serde_json::Value = serde_json::from_str(&json).unwrap();
        assert!(read.to_string().contains(INTERFACE_AND_REST), "{read}");
    }
    drop(consumer);
    agent.kill();
}

/// Each name of an interface selects it, at the start and later.
#[test]
fn an_interface_is_selected_and_filtered_by_its_alternative_names() {
    if !is_root_or_skip("agent::an_interface_is_selected_and_filtered_by_its_alternative_names") {
        return;
    }
    let lab = Lab::quiet().unwrap();
    let namespace = &lab.agent.namespace;
    let add_name = |interface: &str, name: &str| {
        let add = ["link", "property", "add", "dev", interface, "altname", name];
        namespace.ip(&add).unwrap();
    };
    for ends in [["near0", "far0"], ["near1", "far1"], ["near2", "far2"]] {
        namespace.add_wire(ends).unwrap();
    }
    add_name("near0", "uplink-of-the-rack");
    add_name("near2", "late-but-excluded");
    let selection = "uplink-of-the-rack,late-*";
    let settings = [
        "--exclude-interface",
        "*-excluded",
        "--filter",
        "exclude on quiet-from-now-on",
    ];
    let agent = Agent::start_on(&lab.agent, selection, &settings);
    let hooks = |interface: &str| {
        let status = agent.status(&lab.agent);
        let hooks = status["hooks"].as_array().unwrap();
        let is_its = |hook: &&serde_json::Value| hook["interface"]["name"] == interface;
        hooks.iter().filter(is_its).count()
    };
    let all = ["near0", "near1", "near2"];
    assert_eq!(all.map(hooks), [2, 0, 0]);
    assert_eq!(agent.status(&lab.agent)["interfaces"]["absent"], 0);
    add_name("near1", "late-comer");
    wait_until("it is counted by a name that it got", || {
        hooks("near1") == 2
    });
    assert_eq!(hooks("near2"), 0);
    let frame = lab.peer.frame_v4(&lab.agent).udp(7, 53, &[0; 18]).unwrap();
    let send = |far: &str| {
        let socket = lab::FrameSocket::new(namespace, far).unwrap();
        socket.send(&frame).unwrap();
    };
    let left_out = || agent.status(&lab.agent)["account"]["filtered"]["packets"].as_u64();
    send("far1");
    wait_until("the packet is seen", || {
        agent.status(&lab.agent)["account"]["seen"]["packets"] == 1
    });
    assert_eq!(left_out().unwrap_or(0), 0);
    add_name("near1", "quiet-from-now-on");
    wait_until("the rule follows the name", || {
        send("far1");
        left_out().unwrap_or(0) > 0
    });
    add_name("near0", "later-excluded");
    wait_until("it is given up by a name that it got", || {
        hooks("near0") == 0
    });
    agent.stop();
}
