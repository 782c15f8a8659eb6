//! TLS by rustls, and tokens, for both ends of a connection.
//!
//! [`pem`] reads certificates and keys, and says what is wrong with them. [`server`] is the listeners' side, [`client`] that of commands,
//! and [`output`] that of outputs. [`token`] reads and checks tokens. [`identity`] is who a caller is and may do, and [`source`] which host
//! an address stands for. [`reload`] reads files again when they change.
//!
//! May depend on: `sys`.

use std::{io, net::IpAddr, sync::Arc};

use rustls::{
    SupportedProtocolVersion,
    crypto::{CryptoProvider, ring},
    version::{TLS12, TLS13},
};

pub mod client;
pub mod identity;
pub mod output;
pub mod pem;
pub mod reload;
pub mod server;
pub mod source;
pub mod token;

/// The name of gRPC's protocol in a handshake (RFC 7540, 3.3).
pub const ALPN_H2: &[u8] = b"h2";

/// The name of HTTP/1.1 (RFC 7301, 6).
pub const ALPN_HTTP1: &[u8] = b"http/1.1";

/// Both ends use the latest version that both support.
const VERSIONS: [&SupportedProtocolVersion; 2] = [&TLS13, &TLS12];

/// The rustls error inside a connection's error, if it is a TLS error.
pub fn of_tls(error: &io::Error) -> Option<&rustls::Error> {
    error.get_ref()?.downcast_ref()
}

/// Whether traffic to this host, a name or an address, never leaves this machine.
pub fn stays_here(host: &str) -> bool {
    let address = host.trim_start_matches('[').trim_end_matches(']').parse();
    address.map_or(host == "localhost", |address: IpAddr| {
        address.to_canonical().is_loopback()
    })
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}
