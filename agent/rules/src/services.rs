//! Names of services for ports: those that IANA registered and people use, and common names of databases and the like.
//!
//! The table is part of the program, so that a filter means the same on every host.

/// Ports by name. A port's first name comes first.
const NAMES: &[(&str, u16)] = &[
    ("ftp-data", 20),
    ("ftp", 21),
    ("ssh", 22),
    ("telnet", 23),
    ("smtp", 25),
    ("whois", 43),
    ("tacacs", 49),
    ("domain", 53),
    ("dns", 53),
    ("bootps", 67),
    ("dhcp", 67),
    ("bootpc", 68),
    ("tftp", 69),
    ("http", 80),
    ("kerberos", 88),
    ("pop3", 110),
    ("sunrpc", 111),
    ("nntp", 119),
    ("ntp", 123),
    ("netbios-ns", 137),
    ("netbios-dgm", 138),
    ("netbios-ssn", 139),
    ("imap", 143),
    ("snmp", 161),
    ("snmptrap", 162),
    ("bgp", 179),
    ("ldap", 389),
    ("https", 443),
    ("microsoft-ds", 445),
    ("smb", 445),
    ("submissions", 465),
    ("smtps", 465),
    ("isakmp", 500),
    ("syslog", 514),
    ("dhcpv6-client", 546),
    ("dhcpv6-server", 547),
    ("rtsp", 554),
    ("submission", 587),
    ("ldaps", 636),
    ("domain-s", 853),
    ("rsync", 873),
    ("ftps", 990),
    ("imaps", 993),
    ("pop3s", 995),
    ("socks", 1080),
    ("openvpn", 1194),
    ("ms-sql-s", 1433),
    ("oracle", 1521),
    ("l2tp", 1701),
    ("pptp", 1723),
    ("radius", 1812),
    ("radius-acct", 1813),
    ("mqtt", 1883),
    ("nfs", 2049),
    ("netflow", 2055),
    ("etcd-client", 2379),
    ("etcd-server", 2380),
    ("mysql", 3306),
    ("rdp", 3389),
    ("stun", 3478),
    ("otlp", 4317),
    ("ipsec-nat-t", 4500),
    ("ipfix", 4739),
    ("vxlan", 4789),
    ("sip", 5060),
    ("sips", 5061),
    ("mdns", 5353),
    ("llmnr", 5355),
    ("postgresql", 5432),
    ("postgres", 5432),
    ("amqps", 5671),
    ("amqp", 5672),
    ("vnc", 5900),
    ("x11", 6000),
    ("geneve", 6081),
    ("sflow", 6343),
    ("redis", 6379),
    ("kube-apiserver", 6443),
    ("syslog-tls", 6514),
    ("http-alt", 8080),
    ("https-alt", 8443),
    ("mqtts", 8883),
    ("kafka", 9092),
    ("prometheus", 9090),
    ("elasticsearch", 9200),
    ("git", 9418),
    ("kubelet", 10250),
    ("memcached", 11211),
    ("mongodb", 27017),
    ("wireguard", 51820),
];

/// The port of a service, whose name may be in upper or lower case.
pub fn port(name: &str) -> Option<u16> {
    let mut names = NAMES.iter();
    let found = names.find(|(known, _)| known.eq_ignore_ascii_case(name));
    found.map(|(_, port)| *port)
}

pub fn names() -> impl Iterator<Item = &'static str> {
    NAMES.iter().map(|(name, _)| *name)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn a_service_has_one_port_and_is_no_number_and_no_protocol() {
        let mut seen = HashSet::new();
        for name in names() {
            assert!(seen.insert(name), "{name} is there twice");
            assert!(name.parse::<u32>().is_err());
            assert_eq!(proto::protocols::number(name), None, "{name}");
            assert!(!name.contains([',', ';', ' ', '/']));
        }
        assert_eq!(
            (port("HTTPS"), port("dns"), port("htps")),
            (Some(443), Some(53), None)
        );
    }
}
