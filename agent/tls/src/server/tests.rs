use std::{
    fs,
    path::Path,
    time::{Duration, SystemTime},
};

use lab::{
    certificates::{Ca, Issued, replace},
    log::logged,
};
use rustls::{HandshakeKind, client::Resumption, pki_types::ServerName};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, duplex};
use tokio_rustls::TlsConnector;

use super::{super::client::ClientFiles, *};

fn files(issued: &Issued) -> ServerFiles {
    ServerFiles {
        certificate: issued.certificate.clone(),
        key: issued.key.clone(),
        client_ca: None,
    }
}

/// The server certificate that a client sees which trusts the CA.
async fn shown(reloadable: &ReloadableServerTls, ca: &Path) -> Vec<u8> {
    let client = ClientFiles {
        ca: Some(ca.to_owned()),
        ..ClientFiles::default()
    };
    let connector = TlsConnector::from(Arc::new(client.read(&[ALPN_H2]).unwrap()));
    let (ours, theirs) = duplex(1 << 16);
    let name = ServerName::try_from("here").unwrap();
    let acceptor = reloadable.acceptor();
    let (client, server) = tokio::join!(connector.connect(name, ours), acceptor.accept(theirs));
    let (mut client, mut server) = (client.unwrap(), server.unwrap());
    client.write_all(b"a").await.unwrap();
    assert_eq!(server.read_u8().await.unwrap(), b'a');
    assert_eq!(server.get_ref().1.alpn_protocol(), Some(ALPN_H2));
    client.get_ref().1.peer_certificates().unwrap()[0].to_vec()
}

/// Checks the files `times` times.
fn check(reloadable: &ReloadableServerTls, times: usize) {
    let mut last = reloadable.tried();
    for _ in 0..times {
        last = reloadable.check(&last);
    }
}

#[tokio::test]
async fn no_connection_is_resumed_without_a_look_at_the_clients_certificate() {
    let ca = Ca::new().unwrap();
    let reloadable =
        ReloadableServerTls::new(files(&ca.issue("a", "here").unwrap()).read().unwrap());
    let client = ClientFiles {
        ca: Some(ca.file()),
        ..ClientFiles::default()
    };
    let mut config = client.read(&[ALPN_H2]).unwrap();
    config.resumption = Resumption::default();
    let connector = TlsConnector::from(Arc::new(config));
    for _ in 0..3 {
        let (ours, theirs) = duplex(1 << 16);
        let name = ServerName::try_from("here").unwrap();
        let acceptor = reloadable.acceptor();
        let (client, server) = tokio::join!(connector.connect(name, ours), acceptor.accept(theirs));
        let (mut client, mut server) = (client.unwrap(), server.unwrap());
        // Tickets would come after the handshake, before the first byte.
        server.write_u8(7).await.unwrap();
        server.flush().await.unwrap();
        assert_eq!(client.read_u8().await.unwrap(), 7);
        let kind = client.get_ref().1.handshake_kind();
        assert_eq!(kind, Some(HandshakeKind::Full));
    }
}

#[tokio::test]
async fn files_that_change_are_shown_and_those_that_cannot_be_used_are_told_and_not() {
    let ca = Ca::new().unwrap();
    let issued = ca.issue("a", "here").unwrap();
    let reloadable = ReloadableServerTls::new(files(&issued).read().unwrap());
    let first = shown(&reloadable, &ca.file()).await;
    check(&reloadable, 3);
    assert_eq!(shown(&reloadable, &ca.file()).await, first);

    ca.issue("a", "here").unwrap();
    check(&reloadable, 3);
    let second = shown(&reloadable, &ca.file()).await;
    assert_ne!(second, first);
    assert_eq!(reloadable.status().fault, None);

    // The key of another certificate.
    let text = fs::read_to_string(&issued.key).unwrap();
    let other = ca.issue("b", "here").unwrap();
    replace(&issued.key, &fs::read_to_string(&other.key).unwrap()).unwrap();
    check(&reloadable, 3);
    let fault = reloadable.status().fault.unwrap();
    assert!(fault.contains("a.key is not the key of"), "{fault}");
    assert_eq!(shown(&reloadable, &ca.file()).await, second);

    replace(&issued.key, &text).unwrap();
    check(&reloadable, 3);
    assert_eq!(reloadable.status().fault, None);
    assert_eq!(shown(&reloadable, &ca.file()).await, second);

    // An expired certificate does not replace a valid one.
    let (now, hour) = (SystemTime::now(), Duration::from_hours(1));
    ca.issue_for("a", "here", [now - 2 * hour, now - hour])
        .unwrap();
    check(&reloadable, 3);
    let fault = reloadable.status().fault.unwrap();
    assert!(fault.contains("a.pem expired at "), "{fault}");
    assert_eq!(shown(&reloadable, &ca.file()).await, second);
}

#[tokio::test]
async fn files_are_read_when_whoever_writes_them_is_done() {
    let ca = Ca::new().unwrap();
    let issued = ca.issue("a", "here").unwrap();
    let reloadable = ReloadableServerTls::new(files(&issued).read().unwrap());
    let before = shown(&reloadable, &ca.file()).await;
    let mut last = reloadable.tried();
    for round in 0..4 {
        replace(&issued.key, &round.to_string()).unwrap();
        last = reloadable.check(&last);
        assert_eq!(reloadable.status().fault, None);
        assert_eq!(shown(&reloadable, &ca.file()).await, before);
    }
    ca.issue("a", "here").unwrap();
    last = reloadable.check(&last);
    assert_eq!(shown(&reloadable, &ca.file()).await, before);
    reloadable.check(&last);
    assert_ne!(shown(&reloadable, &ca.file()).await, before);
}

#[test]
fn a_fault_is_logged_once_and_so_is_its_end() {
    let ca = Ca::new().unwrap();
    let issued = ca.issue("a", "here").unwrap();
    let mut reloadable = None;
    let log =
        logged(|| reloadable = Some(ReloadableServerTls::new(files(&issued).read().unwrap())));
    let reloadable = reloadable.unwrap();
    assert!(
        log.contains("TCP listeners speak TLS certificate=/"),
        "{log}"
    );
    assert!(log.contains("a.pem not_after=\"20"), "{log}");

    let text = fs::read_to_string(&issued.key).unwrap();
    fs::remove_file(&issued.key).unwrap();
    let log = logged(|| check(&reloadable, 9));
    let faults = log
        .matches("keeping the certificate as read before: ")
        .count();
    assert_eq!(faults, 1, "{log}");
    assert!(log.contains("a.key: No such file"), "{log}");

    replace(&issued.key, &text).unwrap();
    let log = logged(|| check(&reloadable, 9));
    let read = log.matches("read the certificate again").count();
    assert_eq!(read, 1, "{log}");
}

#[tokio::test]
async fn a_reload_of_the_settings_takes_the_files_that_are_named_at_the_start() {
    let ca = Ca::new().unwrap();
    let issued = ca.issue("a", "here").unwrap();
    let reloadable = ReloadableServerTls::new(files(&issued).read().unwrap());
    let first = shown(&reloadable, &ca.file()).await;
    let other = ca.issue("b", "here").unwrap();
    reloadable.replace(files(&other).read().unwrap());
    assert_eq!(shown(&reloadable, &ca.file()).await, first);
    ca.issue("a", "here").unwrap();
    reloadable.replace(files(&issued).read().unwrap());
    assert_ne!(shown(&reloadable, &ca.file()).await, first);
    assert!(!reloadable.status().asks_for_certificates);
}
