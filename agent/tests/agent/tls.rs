//! TLS on TCP listeners, with the real binary and foreign programs: trust, delivery of flows, replaced certificates,
//! and handshakes that never finish.

mod reload;
mod settings;
pub mod silence;
mod trust;

use std::process::Output;

use lab::{
    Host,
    certificates::{Ca, Issued},
};

use crate::support::{Agent, flow_agent};

/// No other test can have this address, since the agent has a network namespace of its own.
pub const ADDRESS: &str = "127.0.0.1:50051";

/// A CA, what it issued to the agent, and what it issued to a client.
pub struct Certificates {
    pub ca: Ca,
    pub agent: Issued,
    pub client: Issued,
}

impl Certificates {
    pub fn new() -> Self {
        let ca = Ca::new().unwrap();
        Self {
            agent: ca.issue("agent", "127.0.0.1").unwrap(),
            client: ca.issue("client", "somebody").unwrap(),
            ca,
        }
    }

    /// Settings of an agent that listens by TLS.
    pub fn settings(&self) -> Vec<String> {
        let Issued { certificate, key } = &self.agent;
        [
            format!("--listen={ADDRESS}"),
            format!("--tls-certificate={}", certificate.display()),
            format!("--tls-key={}", key.display()),
        ]
        .into()
    }

    /// The same of one that asks clients for certificates.
    pub fn mutual(&self) -> Vec<String> {
        let ca = format!("--tls-client-ca={}", self.ca.file().display());
        [self.settings(), vec![ca]].concat()
    }
}

/// As arguments are passed on.
pub fn texts(settings: &[String]) -> Vec<&str> {
    settings.iter().map(String::as_str).collect()
}

/// The options of a client that trusts a CA.
pub fn trusting(ca: &Ca) -> Vec<String> {
    vec![format!("--tls-ca={}", ca.file().display())]
}

/// The options of a client that has a certificate, too.
pub fn with(options: Vec<String>, issued: &Issued) -> Vec<String> {
    let Issued { certificate, key } = issued;
    let own = [
        format!("--tls-client-certificate={}", certificate.display()),
        format!("--tls-client-key={}", key.display()),
    ];
    [options, own.into()].concat()
}

/// The output of `flow-agent status` over TCP.
fn status(host: &Host, address: &str, options: &[String]) -> Output {
    let mut command = flow_agent(host);
    let command = command.args(["status", "--output", "json", "--connect", address]);
    command.args(options).output().unwrap()
}

fn is_answered(host: &Host, options: &[String]) -> bool {
    let address = format!("https://{ADDRESS}");
    status(host, &address, options).status.success()
}

/// The error of a rejected client.
fn refused(host: &Host, address: &str, options: &[String]) -> String {
    let output = status(host, address, options);
    assert!(
        !output.status.success(),
        "{address} {options:?} is answered"
    );
    String::from_utf8(output.stderr).unwrap()
}

/// The agent's status of its TCP listener.
fn told(agent: &Agent, host: &Host) -> serde_json::Value {
    let status = agent.status(host);
    let listeners = status["server"]["listeners"].as_array().unwrap();
    let of_tcp = |listener: &&serde_json::Value| listener["address"] == ADDRESS;
    let found = listeners.iter().find(of_tcp);
    found.expect("the TCP listener").clone()
}
