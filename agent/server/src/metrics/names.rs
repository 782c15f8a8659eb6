//! The host names accepted in requests for metrics. A web page can make its own name resolve to an address of this host
//! (DNS rebinding), and could then read every answer.

use std::{
    fs::File,
    io::Read as _,
    net::{IpAddr, Ipv4Addr, UdpSocket},
};

use hyper::{
    Request,
    header::{HOST, HeaderValue},
    http::uri::Authority,
};

const NODE: &str = "/proc/sys/kernel/hostname";
const RESOLVER: &str = "/etc/resolv.conf";
const HOSTS: &str = "/etc/hosts";
/// The most to read of each file.
const MOST_BYTES: u64 = 256 << 10;

/// The host name in a request, if it is not this host's. A client that sends none is no browser.
pub fn foreign<B>(request: &Request<B>) -> Option<String> {
    let headers = request.headers().get_all(HOST).iter();
    let named = headers.map(HeaderValue::as_bytes);
    let uri = request.uri().authority();
    let mut named = named.chain(uri.map(|authority| authority.as_str().as_bytes()));
    let foreign = named.find(|name| !is_ours(name, Local::read));
    foreign.map(|name| String::from_utf8_lossy(name).into_owned())
}

fn is_ours(authority: &[u8], local: impl FnOnce() -> Local) -> bool {
    let Ok(authority) = Authority::try_from(authority) else {
        return authority.is_empty();
    };
    let host = authority.host();
    let in_brackets = host
        .strip_prefix('[')
        .and_then(|rest| rest.strip_suffix(']'));
    if in_brackets.unwrap_or(host).parse::<IpAddr>().is_ok() {
        return true;
    }
    let host = host.trim_end_matches('.').to_ascii_lowercase();
    // A name without a dot is not in the public DNS.
    !host.contains('.') || local().has(&host)
}

/// The files that define this machine's names.
#[derive(Default)]
struct Local {
    node: String,
    resolver: String,
    hosts: String,
}

impl Local {
    /// A file that cannot be read has no names.
    fn read() -> Self {
        Self {
            node: beginning(NODE),
            resolver: beginning(RESOLVER),
            hosts: beginning(HOSTS),
        }
    }

    /// Whether this is the machine's name, alone or in one of its search domains, or a name of one of its own addresses
    /// in /etc/hosts.
    fn has(&self, name: &str) -> bool {
        let is_it = |other: &str| other.trim_end_matches('.').eq_ignore_ascii_case(name);
        let node = self.node.trim();
        let in_domain = |domain: &str| is_it(&format!("{node}.{domain}"));
        let mut domains = self.resolver.lines().flat_map(|line| {
            let mut words = line.split_ascii_whitespace();
            let names_some = words
                .next()
                .is_some_and(|word| matches!(word, "search" | "domain"));
            words.filter(move |_| names_some)
        });
        let mut hosts = self.hosts.lines().flat_map(|line| {
            let line = line.split('#').next().unwrap_or_default();
            let mut words = line.split_ascii_whitespace();
            let address = words.next().and_then(|address| address.parse().ok());
            words.filter(move |word| is_it(word) && address.is_some_and(is_own))
        });
        is_it(node) || domains.any(in_domain) || hosts.next().is_some()
    }
}

/// Whether this is an address of this machine. Block lists in /etc/hosts use unspecified and similar addresses, which
/// do not count.
fn is_own(address: IpAddr) -> bool {
    let is_no_hosts =
        address.is_unspecified() || address.is_multicast() || address == Ipv4Addr::BROADCAST;
    // The kernel refuses to bind a socket to another machine's address.
    !is_no_hosts && (address.is_loopback() || UdpSocket::bind((address, 0)).is_ok())
}

fn beginning(path: &str) -> String {
    let mut text = Vec::new();
    if let Ok(file) = File::open(path) {
        // On a read error, keep the text read so far.
        let _ = file.take(MOST_BYTES).read_to_end(&mut text);
    }
    String::from_utf8_lossy(&text).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn local() -> Local {
        Local {
            node: "web1\n".to_owned(),
            resolver: "nameserver 10.0.0.1\nsearch example.net lan.\n".to_owned(),
            hosts: "127.0.0.1 localhost # evil.example\n127.0.1.1\tweb1.corp.example web1\n\
                    192.0.2.7 other.corp.example\n0.0.0.0 blocked.example\nnonsense odd.example\n"
                .to_owned(),
        }
    }

    #[test]
    fn addresses_names_without_a_dot_and_the_machines_own_are_ours() {
        for name in [
            "127.0.0.1",
            "127.0.0.1:9100",
            "[::1]:9100",
            "[2001:db8::1]",
            "localhost:9100",
            "LocalHost.",
            "flow-agent:9100",
            "web1",
            "web1.example.net:9100",
            "Web1.Lan.:9100",
            "web1.corp.example",
            "",
        ] {
            assert!(is_ours(name.as_bytes(), local), "{name}");
        }
    }

    #[test]
    fn a_name_that_anybody_can_have_resolve_to_this_host_is_not_ours() {
        for name in [
            "evil.example",
            "evil.example:9100",
            "web1.evil.example",
            "web2.example.net",
            "localhost.evil.example",
            "127.0.0.1.evil.example",
            "127.0.0.1@evil.example",
            "1.2.3.4.5",
            "example.net",
            "other.corp.example",
            "blocked.example",
            "odd.example",
            "a b",
            "[::1",
        ] {
            assert!(!is_ours(name.as_bytes(), local), "{name}");
        }
        // Even if `Host` names this machine.
        let request = Request::get("http://evil.example/metrics").header(HOST, "localhost");
        let named = foreign(&request.body(()).unwrap());
        assert_eq!(named.as_deref(), Some("evil.example"));
        let request = Request::get("/metrics")
            .header(HOST, "localhost")
            .header(HOST, "b.example");
        assert_eq!(
            foreign(&request.body(()).unwrap()).as_deref(),
            Some("b.example")
        );
        assert_eq!(foreign(&Request::get("/metrics").body(()).unwrap()), None);
    }
}
