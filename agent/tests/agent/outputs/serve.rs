//! Servers as parts of test receivers.

use std::{
    net::{SocketAddr, TcpListener as StdTcpListener},
    thread,
};

use lab::Lab;
use tokio::{
    net::{TcpListener, TcpStream},
    runtime::Builder,
};

/// Listens on the agent's host, and serves each connection on a thread of its own, which ends with the tests.
pub fn serve_each<F>(lab: &Lab, serve: impl Fn(TcpStream) -> F + Send + 'static) -> SocketAddr
where
    F: Future<Output = ()> + Send + 'static,
{
    let listen = || Ok(StdTcpListener::bind("127.0.0.1:0")?);
    let listener = lab.agent.namespace.enter(listen).unwrap();
    listener.set_nonblocking(true).unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        let runtime = Builder::new_current_thread().enable_all().build();
        runtime.unwrap().block_on(async {
            let listener = TcpListener::from_std(listener).unwrap();
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                tokio::spawn(serve(stream));
            }
        });
    });
    address
}
