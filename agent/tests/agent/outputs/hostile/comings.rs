//! A receiver over UDP that comes and goes: nothing acknowledges datagrams, but a host reports a closed port.

use std::net::SocketAddr;

use super::{messages::Messages, *};

const ABSENCES: usize = 3;
/// All datagrams wait here until they are read.
const RECEIVE_BUFFER_BYTES: usize = 16 << 20;

/// Listens at a port for a while.
struct Receiver(UdpSocket);

impl Receiver {
    fn bind(lab: &Lab, address: SocketAddr) -> Self {
        let bind = || Ok(UdpSocket::bind(address)?);
        let socket = lab.agent.namespace.enter(bind).unwrap();
        socket.set_nonblocking(true).unwrap();
        rustix::net::sockopt::set_socket_recv_buffer_size_force(&socket, RECEIVE_BUFFER_BYTES)
            .unwrap();
        Self(socket)
    }

    /// The sum of the received flows, decoded without knowing earlier templates.
    fn read(&self) -> Pair {
        let mut messages = Messages::default();
        let mut datagram = vec![0; 1 << 16];
        while let Ok(len) = self.0.recv(&mut datagram) {
            messages.take(&datagram[..len]);
        }
        messages.flows
    }
}

#[test]
fn a_receiver_of_datagrams_that_comes_and_goes_has_what_is_sent_and_the_rest_is_refused_or_waits() {
    if !is_root_or_skip(
        "agent::a_receiver_of_datagrams_that_comes_and_goes_has_what_is_sent_and_the_rest_is_refused_or_waits",
    ) {
        return;
    }
    let lab = Lab::quiet().unwrap();
    let address = {
        let receiver = Receiver::bind(&lab, "127.0.0.1:0".parse().unwrap());
        receiver.0.local_addr().unwrap()
    };
    let setting = format!("ipfix=udp://{address}");
    let agent = Agent::start(&lab, &["--output", "json", "--output", &setting]);
    let mut sent = Pair::default();
    let mut read = Pair::default();
    let mut listening = None;
    for _ in 0..ABSENCES {
        drop(listening.take());
        // Nobody listens.
        sent += send(&lab, 20, 1);
        wait_until_counted(&agent, &lab, sent.packets);
        let mut fates_of = BTreeMap::new();
        wait_until("it is told", || {
            let output = output(&agent, &lab, "ipfix");
            fates_of = fates(&output, sent);
            // Earlier datagrams count as sent. Datagrams in flight when the host reported the closed port count as
            // refused.
            fates_of["sent"] == read && output["failing"] == true
        });
        let output_now = output(&agent, &lab, "ipfix");
        assert_eq!(output_now["last_error"], "nobody listens there");
        assert_eq!(fates_of["lost"], Pair::default());
        let refused = fates_of["refused"];

        let receiver = Receiver::bind(&lab, address);
        wait_until("nothing waits", || {
            let fates = fates(&output(&agent, &lab, "ipfix"), sent);
            fates["queued"] == Pair::default()
        });
        let fates = fates(&output(&agent, &lab, "ipfix"), sent);
        assert_eq!(fates["refused"], refused);
        read += receiver.read();
        assert_eq!(fates["sent"], read);
        listening = Some(receiver);
    }
    let log = agent.stop().log;
    assert_eq!(
        log.matches("cannot deliver flows to").count(),
        ABSENCES,
        "{log}"
    );
    assert_eq!(
        log.matches("delivering flows to").count(),
        ABSENCES,
        "{log}"
    );
}
