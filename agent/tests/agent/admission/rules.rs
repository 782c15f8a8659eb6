//! Who may see and change the filter rules, and how much memory a refused set of rules can take.

use lab::{Lab, privilege::is_root_or_skip};
use prost::Message as _;
use proto::{Filters, GetFiltersRequest, SetFiltersRequest};
use tonic::Code;

use super::{
    client::{
        Client, GET_FILTERS, NOBODY, Outcome, ROOT, SET_FILTERS, connect_as, connect_by_tcp,
        framed, open_to_all, outcome,
    },
    memory::{MIB, Memory, reset_peak},
};
use crate::support::Agent;

const WINDOW_BYTES: u32 = 65_535;

async fn client_of(agent: &Agent, uid: u32) -> Client {
    let stream = connect_as(&agent.address(), uid).unwrap();
    Client::new(stream, WINDOW_BYTES).await.unwrap()
}

fn set(rules: &[&str]) -> SetFiltersRequest {
    let rules = rules.iter().map(ToString::to_string);
    SetFiltersRequest {
        rules: rules.collect(),
    }
}

async fn rules_of(client: &mut Client) -> Vec<String> {
    let answer = client.call(GET_FILTERS, &GetFiltersRequest {}).await;
    let answer = answer.unwrap();
    assert_eq!(answer.code, Code::Ok, "{}", answer.message);
    Filters::decode(answer.answer).unwrap().rules
}

#[tokio::test(flavor = "multi_thread")]
async fn rules_are_changed_by_root_seen_by_local_users_and_neither_over_tcp() {
    if !is_root_or_skip("agent::rules_are_changed_by_root_seen_by_local_users_and_neither_over_tcp")
    {
        return;
    }
    let lab = Lab::quiet().unwrap();
    let mut agent = Agent::start(&lab, &["--listen", "127.0.0.1:0", "--output", "none"]);
    open_to_all(&agent.address());
    let (mut root, mut nobody) = (
        client_of(&agent, ROOT).await,
        client_of(&agent, NOBODY).await,
    );
    let stream = connect_by_tcp(&lab.agent, &agent.stderr());
    let mut tcp = Client::new(stream, WINDOW_BYTES).await.unwrap();

    let rules = ["exclude net 10.9.0.0/16"];
    let answer = root.call(SET_FILTERS, &set(&rules)).await.unwrap();
    assert_eq!(answer.code, Code::Ok, "{}", answer.message);
    let in_force = Filters::decode(answer.answer).unwrap();
    assert_eq!((in_force.generation, in_force.rules.len()), (2, 1));
    assert_eq!(rules_of(&mut nobody).await, rules);

    let none = set(&[]);
    let refused = nobody.call(SET_FILTERS, &none).await.unwrap();
    assert_eq!(refused.code, Code::PermissionDenied);
    assert!(refused.message.contains("only root"), "{refused:?}");
    for path in [SET_FILTERS, GET_FILTERS] {
        let refused = tcp.call(path, &none).await.unwrap();
        assert_eq!(refused.code, Code::PermissionDenied);
        assert!(refused.message.contains("Unix socket"), "{refused:?}");
    }
    // The agent refuses before any of the body has arrived.
    for client in [&mut nobody, &mut tcp] {
        let call = client.open(SET_FILTERS).await.unwrap();
        let refused = outcome(call.response.await.unwrap()).await.unwrap();
        assert_eq!(refused.code, Code::PermissionDenied, "{refused:?}");
    }
    assert_eq!(rules_of(&mut root).await, rules);
    let status = agent.status(&lab.agent);
    assert_eq!(status["server"]["refused_callers"], 5);

    // It does not keep what they send after that.
    let large = vec![0; 66_000_000];
    let before = Memory::of(agent.pid());
    reset_peak(agent.pid());
    for client in [&mut nobody, &mut tcp] {
        for _ in 0..4 {
            let mut call = client.open(SET_FILTERS).await.unwrap();
            // The agent may have refused the stream already.
            drop(call.body.send_data(framed(&large), true));
            let refused = outcome(call.response.await.unwrap()).await.unwrap();
            assert_eq!(refused.code, Code::PermissionDenied, "{refused:?}");
        }
    }
    let after = Memory::of(agent.pid());
    assert!(
        after.peak < before.resident + 16 * MIB,
        "{before:?} {after:?}"
    );
    agent.stop_silent();
}

/// Empty rules, which take two bytes each on the wire.
fn empty_rules(count: usize) -> Vec<u8> {
    const RULES_TAG: u8 = 1 << 3 | 2;
    [RULES_TAG, 0].repeat(count)
}

fn one_rule(text: &str) -> Vec<u8> {
    set(&[text]).encode_to_vec()
}

/// Decoded carelessly, one message of empty rules takes 800 MiB, and four at once twice that.
#[tokio::test(flavor = "multi_thread")]
async fn a_set_that_is_refused_takes_little_more_than_its_message() {
    const MOST_BYTES: usize = 48 << 20;
    /// The message, its buffer in HTTP/2, and what reading it may take.
    const BOUND: u64 = 160 * MIB;
    if !is_root_or_skip("agent::a_set_that_is_refused_takes_little_more_than_its_message") {
        return;
    }
    let lab = Lab::quiet().unwrap();
    let mut agent = Agent::start(&lab, &["--output", "none"]);
    let fill = |text: &str| one_rule(&text.repeat((MOST_BYTES - 100) / text.len()));
    // How many sets come at once, and what is in each.
    let sets = [
        (4, empty_rules(MOST_BYTES / 2)),
        (1, fill("exclude all;")),
        (1, fill("a ")),
        (1, fill("exclude port 1,2;")),
        (
            1,
            one_rule(&format!("exclude on {}b", "a,".repeat(20 << 20))),
        ),
        (
            1,
            one_rule(&format!("exclude net {}::", "::,".repeat(15 << 20))),
        ),
        (1, fill("exclude nothing that anybody knows")),
    ];
    let mut before = Memory::of(agent.pid());
    for (at_once, message) in sets {
        reset_peak(agent.pid());
        let message = framed(&message);
        let mut calls = Vec::new();
        for _ in 0..at_once {
            let mut client = client_of(&agent, ROOT).await;
            let message = message.clone();
            calls.push(tokio::spawn(async move {
                let mut call = client.open(SET_FILTERS).await.unwrap();
                call.body.send_data(message, true).unwrap();
                outcome(call.response.await.unwrap()).await.unwrap()
            }));
        }
        for call in calls {
            let refused: Outcome = call.await.unwrap();
            assert_eq!(refused.code, Code::InvalidArgument, "{}", refused.message);
        }
        let after = Memory::of(agent.pid());
        assert!(after.peak < before.resident + BOUND, "{before:?} {after:?}");
        before.resident = before.resident.min(after.resident);
    }
    let mut client = client_of(&agent, ROOT).await;
    let mut call = client.open(SET_FILTERS).await.unwrap();
    let too_large = framed(&one_rule(&"#".repeat(MOST_BYTES)));
    call.body.send_data(too_large, true).unwrap();
    let refused = outcome(call.response.await.unwrap()).await.unwrap();
    assert_eq!(refused.code, Code::OutOfRange, "{refused:?}");
    assert!(rules_of(&mut client).await.is_empty());
    agent.stop_silent();
}
