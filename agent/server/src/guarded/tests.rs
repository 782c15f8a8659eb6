//! Ends of connections with misbehaving peers.

use std::{future::poll_fn, io::IoSlice, pin::pin};

use futures_util::poll;
use lab::certificates::Ca;
use rustls::pki_types::ServerName;
use tls::{
    ALPN_H2,
    client::ClientFiles,
    server::{ReloadableServerTls, ServerFiles},
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpSocket, TcpStream, UnixStream},
    time::timeout,
};
use tokio_rustls::{TlsConnector, client::TlsStream};

use super::{
    super::{authority::Filter, handshake::Handshake, idle::Idle, limits::Limits, peer::Peer},
    *,
};

/// A time that no test waits for.
const LONG: Duration = Duration::from_mins(5);
/// For peers that never do what the connection waits for.
const SHORT: Duration = Duration::from_millis(100);
/// Longer than any end takes, even on a busy machine.
const BOUND: Duration = Duration::from_mins(1);

fn admission() -> Arc<AdmissionControl> {
    Arc::new(AdmissionControl::new(Limits::default().fixed()))
}

fn guarded(connection: Connection, caller: Caller, admission: &Arc<AdmissionControl>) -> Guarded {
    guarded_beside(connection, caller, admission, &Arc::default())
}

fn guarded_beside(
    connection: Connection,
    caller: Caller,
    admission: &Arc<AdmissionControl>,
    idle: &Arc<Idle>,
) -> Guarded {
    caller.hold(admission.consumer(&Peer::Unknown).unwrap(), idle);
    Guarded::new(connection, caller, Arc::clone(admission))
}

/// A connection that waits this long for its peer at the end, and is not idle before.
fn patient(
    connection: Connection,
    patience: Duration,
    admission: &Arc<AdmissionControl>,
) -> Guarded {
    let caller = Caller::silent_until(Peer::Unknown, Instant::now() + LONG);
    let mut guarded = guarded(connection, caller, admission);
    guarded.patience = patience;
    guarded
}

/// A connection that has to end at `ends_at`, and its other end.
fn silent_until(
    ends_at: Instant,
    admission: &Arc<AdmissionControl>,
) -> (Guarded, Caller, UnixStream) {
    let (connection, peer) = unix();
    let caller = Caller::silent_until(Peer::Unknown, ends_at);
    (guarded(connection, caller.clone(), admission), caller, peer)
}

fn unix() -> (Connection, UnixStream) {
    let (ours, peer) = UnixStream::pair().unwrap();
    (Connection::Unix(ours, Filter::default()), peer)
}

/// A connection over TLS on sockets that hold little, after its handshake.
async fn over_tls(
    patience: Duration,
    admission: &Arc<AdmissionControl>,
) -> (Guarded, TlsStream<TcpStream>) {
    let [listener, peer] = [(); 2].map(|()| TcpSocket::new_v4().unwrap());
    // An accepted socket has what its listener has.
    listener.set_send_buffer_size(4096).unwrap();
    peer.set_recv_buffer_size(4096).unwrap();
    listener.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let listener = listener.listen(1).unwrap();
    let connect = peer.connect(listener.local_addr().unwrap());
    let (peer, accepted) = tokio::join!(connect, listener.accept());

    let ca = Ca::new().unwrap();
    let issued = ca.issue("server", "here").unwrap();
    let server = ServerFiles {
        certificate: issued.certificate,
        key: issued.key,
        client_ca: None,
    };
    let acceptor = ReloadableServerTls::new(server.read().unwrap()).acceptor();
    let ours = accepted.unwrap().0;
    let handshake = Handshake::new(
        &acceptor,
        ours,
        (Peer::Unknown, Arc::default()),
        Arc::clone(admission),
    );
    let connection = Connection::Tls(Box::new(handshake));
    let mut guarded = patient(connection, patience, admission);
    let client = ClientFiles {
        ca: Some(ca.file()),
        ..ClientFiles::default()
    };
    let connector = TlsConnector::from(Arc::new(client.read(&[ALPN_H2]).unwrap()));
    let name = ServerName::try_from("here").unwrap();
    let connect = async {
        let mut peer = connector.connect(name, peer.unwrap()).await.unwrap();
        peer.write_u8(7).await.unwrap();
        peer
    };
    let (peer, read) = tokio::join!(connect, guarded.read_u8());
    assert_eq!(read.unwrap(), 7);
    (guarded, peer)
}

/// Shuts it down as hyper does, which flushes before each attempt.
async fn end(guarded: &mut Guarded) -> io::Result<()> {
    let end = poll_fn(|context| {
        ready!(Pin::new(&mut *guarded).poll_flush(context))?;
        Pin::new(&mut *guarded).poll_shutdown(context)
    });
    timeout(BOUND, end).await.expect("it ends")
}

async fn passes(connection: Connection, mut peer: impl AsyncRead + AsyncWrite + Unpin) {
    let mut guarded = patient(connection, LONG, &admission());
    peer.write_all(b"ask").await.unwrap();
    let mut asked = [0; 3];
    guarded.read_exact(&mut asked).await.unwrap();
    assert_eq!(&asked, b"ask");

    guarded.write_all(b"ans").await.unwrap();
    assert!(guarded.is_write_vectored());
    let slices = [IoSlice::new(b"w"), IoSlice::new(b"er")];
    assert_eq!(guarded.write_vectored(&slices).await.unwrap(), 3);
    let end = async {
        guarded.shutdown().await.unwrap();
        let error = guarded.write_all(b"more").await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::BrokenPipe);
        drop(guarded);
    };
    // The peer writes until it has read everything.
    let read = async {
        let mut answer = Vec::new();
        peer.read_to_end(&mut answer).await.unwrap();
        assert_eq!(answer, b"answer");
        // More than the sockets hold.
        peer.write_all(&vec![0; 2 << 20]).await.unwrap();
        drop(peer);
    };
    tokio::join!(end, read);
}

#[tokio::test]
async fn bytes_pass_both_ways_on_either_kind_of_socket() {
    let (connection, peer) = unix();
    passes(connection, peer).await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let connect = TcpStream::connect(listener.local_addr().unwrap());
    let (peer, accepted) = tokio::join!(connect, listener.accept());
    passes(Connection::Tcp(accepted.unwrap().0), peer.unwrap()).await;
}

#[tokio::test]
async fn a_peer_that_does_not_close_the_connection_is_waited_for_and_not_for_long() {
    let (connection, mut peer) = unix();
    let mut guarded = patient(connection, SHORT, &admission());
    assert!(poll!(pin!(guarded.shutdown())).is_pending());
    let ended = timeout(BOUND, guarded.shutdown()).await;
    ended.expect("it ends").unwrap();
    drop(guarded);
    let error = peer.write_all(b"late").await.unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::BrokenPipe);
}

#[tokio::test]
async fn a_peer_that_reads_nothing_over_tls_is_not_waited_for_long() {
    let admission = admission();
    let (mut guarded, _peer) = over_tls(SHORT, &admission).await;
    // TLS keeps what the sockets do not take. Behind it, the goodbye cannot leave.
    while poll!(pin!(guarded.write(&[0; 4096]))).is_ready() {}
    assert!(poll!(pin!(guarded.flush())).is_pending());
    assert!(poll!(pin!(guarded.shutdown())).is_pending());
    let error = end(&mut guarded).await.unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    assert_eq!(admission.status().silent_connections, 0);
}

async fn ends_beside(
    mut guarded: Guarded,
    mut peer: impl AsyncWrite + Unpin + Send + 'static,
    admission: &AdmissionControl,
) {
    let writing = tokio::spawn(async move { while peer.write_all(&[0; 4096]).await.is_ok() {} });
    if let Err(error) = end(&mut guarded).await {
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }
    assert!(!writing.is_finished());
    assert_eq!(admission.status().silent_connections, 0);
    drop(guarded);
    timeout(BOUND, writing)
        .await
        .expect("it is closed")
        .unwrap();
}

/// On another thread there is always something more to read.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_peer_that_writes_without_end_is_not_waited_for_long_either() {
    let admission = admission();
    let (connection, peer) = unix();
    ends_beside(patient(connection, SHORT, &admission), peer, &admission).await;
    let (guarded, peer) = over_tls(SHORT, &admission).await;
    ends_beside(guarded, peer, &admission).await;
}

#[tokio::test]
async fn an_idle_connection_ends_whatever_is_polled_and_is_counted_once() {
    let admission = admission();
    let (mut guarded, _, _peer) = silent_until(Instant::now(), &admission);
    let read = timeout(BOUND, guarded.read(&mut [0])).await;
    let read = read.expect("it ends");
    let written = guarded.write(b"a").await;
    let written_vectored = guarded.write_vectored(&[IoSlice::new(b"a")]).await;
    let flushed = guarded.flush().await.map(|()| 0);
    for ended in [read, written, written_vectored, flushed] {
        assert_eq!(ended.unwrap_err().kind(), io::ErrorKind::TimedOut);
    }
    assert_eq!(admission.status().silent_connections, 1);
}

/// Other requests on it, and requests that it reads, make no difference.
#[tokio::test]
async fn a_connection_with_an_answer_that_is_not_read_ends() {
    let admission = admission();
    let (mut guarded, caller, mut peer) = silent_until(Instant::now(), &admission);
    let _open = caller.open(&admission).unwrap();
    let until = async |until| {
        let place = admission.answer(&Peer::Unknown).await.unwrap();
        caller.unread(Some(place), until)
    };
    let read = until(Instant::now()).await;
    let unread = until(Instant::now() + LONG).await;
    drop(read);
    peer.write_all(b"a").await.unwrap();
    assert_eq!(guarded.read_u8().await.unwrap(), b'a');
    drop(unread);
    let _unread = until(Instant::now()).await;
    let _later = until(Instant::now() + LONG).await;
    guarded.look.as_mut().reset(Instant::now());
    let ended = timeout(BOUND, guarded.read_u8()).await;
    let error = ended.expect("it ends").unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    let status = admission.status();
    assert_eq!(
        (status.unread_connections, status.silent_connections),
        (1, 0)
    );
}

/// Its task waits only for its peer.
#[tokio::test]
async fn a_connection_that_gives_way_ends_at_once_and_waits_for_nobody() {
    let (admission, idle) = (admission(), Arc::<Idle>::default());
    let (connection, mut peer) = unix();
    let caller = Caller::silent_until(Peer::Unknown, Instant::now() + LONG);
    let mut guarded = guarded_beside(connection, caller, &admission, &idle);
    guarded.patience = LONG;
    let reads = tokio::spawn(async move {
        let read = guarded.read_u8().await;
        timeout(BOUND, guarded.shutdown())
            .await
            .expect("it ends")
            .unwrap();
        read
    });
    tokio::task::yield_now().await;
    assert!(idle.make_room(&admission));
    let read = timeout(BOUND, reads).await.expect("it ends").unwrap();
    assert_eq!(read.unwrap_err().kind(), io::ErrorKind::ConnectionAborted);
    assert!(!idle.make_room(&admission));
    let closed = timeout(BOUND, peer.read_u8()).await.expect("it is closed");
    assert!(closed.is_err());
}

/// Whatever the state was, so that data that arrives meanwhile is noticed.
#[tokio::test]
async fn a_connection_is_looked_at_again_before_long() {
    let admission = admission();
    let (mut guarded, caller, _peer) = silent_until(Instant::now(), &admission);
    let open = caller.open(&admission).unwrap();
    for _ in 0..2 {
        guarded.look.as_mut().reset(Instant::now());
        assert!(poll!(pin!(guarded.read_u8())).is_pending());
        let next = guarded.look.deadline();
        assert!(next <= Instant::now() + NEXT_LOOK, "{next:?}");
    }
    drop(open);
    guarded.look.as_mut().reset(Instant::now());
    assert!(poll!(pin!(guarded.read_u8())).is_pending());
    assert!(guarded.look.deadline() <= Instant::now() + NEXT_LOOK);
}

#[tokio::test]
async fn a_request_keeps_its_connection_open_and_so_does_one_that_has_just_ended() {
    let admission = admission();
    let past = Instant::now() - Duration::from_secs(1);
    let (mut busy, caller, mut peer) = silent_until(past, &admission);
    let _open = caller.open(&admission).unwrap();
    peer.write_all(b"a").await.unwrap();
    assert_eq!(busy.read_u8().await.unwrap(), b'a');

    let (mut just_idle, caller, mut peer) = silent_until(past, &admission);
    drop(caller.open(&admission).unwrap());
    peer.write_all(b"b").await.unwrap();
    assert_eq!(just_idle.read_u8().await.unwrap(), b'b');
    assert_eq!(admission.status().silent_connections, 0);
}
