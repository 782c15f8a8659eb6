use std::{fs, time::SystemTime};

use lab::certificates::{Ca, Issued};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpListener,
};

use super::{
    super::{
        ALPN_H2,
        server::{ReloadableServerTls, ServerFiles},
    },
    *,
};

/// The server's side, and the clients that it accepts.
fn server(issued: &Issued, client_ca: Option<&Ca>) -> ReloadableServerTls {
    let files = ServerFiles {
        certificate: issued.certificate.clone(),
        key: issued.key.clone(),
        client_ca: client_ca.map(Ca::file),
    };
    ReloadableServerTls::new(files.read().unwrap())
}

fn trusting(ca: &Ca) -> ClientFiles {
    ClientFiles {
        ca: Some(ca.file()),
        ..ClientFiles::default()
    }
}

fn with(files: ClientFiles, issued: &Issued) -> ClientFiles {
    ClientFiles {
        certificate: Some(issued.certificate.clone()),
        key: Some(issued.key.clone()),
        ..files
    }
}

/// Connects to a server that echoes a byte. Returns the error of the connection or of the first byte.
async fn connected(
    server: &ReloadableServerTls,
    files: &ClientFiles,
    host: &str,
) -> Result<(), String> {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let acceptor = server.acceptor();
    let echoing = tokio::spawn(async move {
        let mut stream = acceptor.accept(listener.accept().await?.0).await?;
        let byte = stream.read_u8().await?;
        stream.write_u8(byte).await?;
        stream.shutdown().await
    });
    let connector = Connector::new(files.read(&[ALPN_H2]).unwrap());
    let uri = format!("https://{host}:{port}").parse().unwrap();
    let outcome = async {
        let stream = connector.connect(uri).await;
        let mut stream = stream.map_err(|error| error.to_string())?.into_inner();
        // The server may have closed it.
        let _ = stream.write_u8(b'a').await;
        let byte = stream.read_u8().await.map_err(|error| error.to_string())?;
        assert_eq!(byte, b'a');
        Ok(())
    };
    let outcome = outcome.await;
    assert_eq!(
        echoing.await.unwrap().is_ok(),
        outcome.is_ok(),
        "{outcome:?}"
    );
    outcome
}

#[tokio::test]
async fn a_server_is_trusted_by_its_ca_and_its_name() {
    let [ours, theirs] = [Ca::new().unwrap(), Ca::new().unwrap()];
    let by_name = server(&ours.issue("name", "localhost").unwrap(), None);
    let by_address = server(&ours.issue("address", "127.0.0.1").unwrap(), None);
    let files = trusting(&ours);
    connected(&by_name, &files, "localhost").await.unwrap();
    connected(&by_address, &files, "127.0.0.1").await.unwrap();
    for (server, files, host, words) in [
        (
            &by_name,
            &trusting(&theirs),
            "localhost",
            "not from a CA that is trusted",
        ),
        (
            &by_name,
            &ClientFiles::default(),
            "localhost",
            "not from a CA that is trusted",
        ),
        (&by_name, &files, "127.0.0.1", "its certificate is refused"),
        (
            &by_address,
            &files,
            "localhost",
            "its certificate is refused",
        ),
    ] {
        let error = connected(server, files, host).await.unwrap_err();
        assert!(error.contains(words), "{error}");
    }
    let (now, hour) = (SystemTime::now(), Duration::from_hours(1));
    let expired = ours.issue_for("old", "localhost", [now - 2 * hour, now - hour]);
    let expired = server(&expired.unwrap(), None);
    let error = connected(&expired, &files, "localhost").await.unwrap_err();
    assert!(error.contains("expired"), "{error}");
}

#[tokio::test]
async fn a_client_is_served_if_its_certificate_is_of_the_ca_that_is_asked_for() {
    let [ours, theirs] = [Ca::new().unwrap(), Ca::new().unwrap()];
    let server = server(&ours.issue("server", "localhost").unwrap(), Some(&ours));
    let files = trusting(&ours);
    let good = with(files.clone(), &ours.issue("client", "somebody").unwrap());
    connected(&server, &good, "localhost").await.unwrap();
    let none = connected(&server, &files, "localhost").await.unwrap_err();
    assert!(
        none.contains("it asks for a client's certificate"),
        "{none}"
    );
    let wrong = with(files.clone(), &theirs.issue("client", "somebody").unwrap());
    let wrong = connected(&server, &wrong, "localhost").await.unwrap_err();
    assert!(
        wrong.contains("it refuses the client's certificate"),
        "{wrong}"
    );
    let (now, hour) = (SystemTime::now(), Duration::from_hours(1));
    let old = ours.issue_for("old", "somebody", [now - 2 * hour, now - hour]);
    let old = connected(&server, &with(files, &old.unwrap()), "localhost").await;
    assert!(old.unwrap_err().contains("CertificateExpired"));
}

#[tokio::test]
async fn what_is_no_tls_and_what_ends_is_told() {
    let ca = Ca::new().unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let said: [&[u8]; 3] = [
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        b"",
        &[21, 3, 3, 0, 2, 2, 80],
    ];
    let served = tokio::spawn(async move {
        for words in said {
            let (mut stream, _) = listener.accept().await.unwrap();
            stream.read_u8().await.unwrap();
            stream.write_all(words).await.unwrap();
            stream.shutdown().await.unwrap();
            let _ = stream.read_to_end(&mut Vec::new()).await;
        }
    });
    for expected in [
        "it does not speak TLS",
        "it ended the handshake",
        "it ended the handshake",
    ] {
        let connector = Connector::new(trusting(&ca).read(&[ALPN_H2]).unwrap());
        let uri = format!("https://127.0.0.1:{port}").parse().unwrap();
        let error = connector.connect(uri).await.err().unwrap();
        assert_eq!(error.to_string(), expected);
    }
    served.await.unwrap();
    for (uri, words) in [
        ("https://127.0.0.1:1", "cannot connect"),
        ("/a", "has no host"),
    ] {
        let connector = Connector::new(trusting(&ca).read(&[]).unwrap());
        let error = connector.connect(uri.parse().unwrap()).await.err().unwrap();
        assert!(error.to_string().contains(words), "{error}");
    }
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let tcp = TcpStream::connect(listener.local_addr().unwrap());
    let connector = Connector::new(trusting(&ca).read(&[]).unwrap());
    let error = connector.over(tcp.await.unwrap(), "a..b").await.err();
    assert!(
        matches!(error, Some(ConnectError::BadName { .. })),
        "{error:?}"
    );
}

#[test]
fn files_that_cannot_be_used_are_told_and_a_certificate_takes_its_key() {
    let ca = Ca::new().unwrap();
    let [a, b] = ["a", "b"].map(|name| ca.issue(name, "here").unwrap());
    let crossed = Issued {
        key: b.key,
        ..a.clone()
    };
    let fault = with(trusting(&ca), &crossed).read(&[]).unwrap_err();
    assert_eq!(fault.of, Use::Key);
    fs::remove_file(ca.file()).unwrap();
    let fault = trusting(&ca).read(&[]).unwrap_err();
    assert_eq!(fault.of, Use::Ca);
    assert!(!with(ClientFiles::default(), &a).is_empty());
}

/// With TLS 1.3 the client learns of the refusal after the handshake, and may write first.
#[tokio::test]
async fn who_writes_to_a_server_that_has_refused_it_hears_why() {
    let ca = Ca::new().unwrap();
    let server = server(&ca.issue("server", "localhost").unwrap(), Some(&ca));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let acceptor = server.acceptor();
    let refusing = tokio::spawn(async move {
        let (stream, _) = listener.accept().await.unwrap();
        acceptor.accept(stream).await.is_ok()
    });
    let connector = Connector::new(trusting(&ca).read(&[ALPN_H2]).unwrap());
    let uri = format!("https://localhost:{port}").parse().unwrap();
    let mut stream = connector.connect(uri).await.unwrap().into_inner();
    // The server has closed the connection by then.
    assert!(!refusing.await.unwrap());
    let error = loop {
        if let Err(error) = stream.write_all(&[0; 1 << 14]).await {
            break error;
        }
    };
    let asks = "it asks for a client's certificate";
    assert!(error.to_string().contains(asks), "{error:?}");
}
