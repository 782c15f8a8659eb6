//! The kernel's cost per packet that no counting process is charged for: the CPU time that an arm adds to the sending
//! thread. The programs run, and packet sockets copy packets, in that thread's soft interrupts.

use super::{bench::Turns, host::Host};

const SENDER_NS: &str = "sender_ns_per_packet";
/// Measured by a station that compares its wire with one on which nothing counts.
pub const ADDED_NS: &str = "sender_added_ns_per_packet";

/// For arms that have `process_cpu_percent` and `sent_packets_per_second`. The added time is [`ADDED_NS`] or, without
/// it, the difference in `sender_ns_per_packet` from the arm `nothing` in the same round.
pub fn beside_processes(turns: &Turns, host: &Host) -> Vec<(String, &'static str, f64)> {
    // The sender's CPU time then excludes the soft interrupts in which the kernel counts.
    if host.irq_time_accounting == "y" {
        return Vec::new();
    }
    let added = |(arm, process): (&str, f64)| {
        let kernel_ns = match turns.get(arm, ADDED_NS) {
            Some(added) => added,
            None => turns.get(arm, SENDER_NS)? - turns.get("nothing", SENDER_NS)?,
        };
        let kernel = 100.0 * kernel_ns * turns.get(arm, "sent_packets_per_second")? / 1e9;
        Some([
            (arm.to_owned(), "kernel_ns_per_packet", kernel_ns),
            (arm.to_owned(), "kernel_cpu_percent", kernel),
            (arm.to_owned(), "cpu_percent", kernel + process),
        ])
    };
    let with_a_process = turns.of("process_cpu_percent");
    with_a_process.filter_map(added).flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn turns() -> Turns {
        let mut turns = Turns::default();
        turns.insert("nothing", vec![(SENDER_NS, 1_000.0)]);
        let agent = [
            (SENDER_NS, 1_200.0),
            ("sent_packets_per_second", 100_000.0),
            ("process_cpu_percent", 3.0),
        ];
        turns.insert("agent", agent.into());
        turns
    }

    fn host(irq_time_accounting: &str) -> Host {
        Host {
            irq_time_accounting: irq_time_accounting.to_owned(),
            ..Host::read().unwrap()
        }
    }

    #[test]
    fn the_kernels_share_is_what_an_arm_adds_to_the_sender() {
        let told = beside_processes(&turns(), &host("n"));
        let of_agent = |measure, value| ("agent".to_owned(), measure, value);
        let expected = [
            of_agent("kernel_ns_per_packet", 200.0),
            of_agent("kernel_cpu_percent", 2.0),
            of_agent("cpu_percent", 5.0),
        ];
        assert_eq!(told, expected);
    }

    #[test]
    fn what_a_station_has_measured_itself_goes_first() {
        let mut turns = turns();
        let agent = [
            (ADDED_NS, 100.0),
            (SENDER_NS, 1_200.0),
            ("sent_packets_per_second", 100_000.0),
            ("process_cpu_percent", 3.0),
        ];
        turns.insert("agent", agent.into());
        let told = beside_processes(&turns, &host("n"));
        let values: Vec<_> = told.iter().map(|(.., value)| value.to_string()).collect();
        assert_eq!(values, ["100", "1", "4"]);
    }

    #[test]
    fn nothing_is_told_where_the_senders_time_lacks_interrupts() {
        assert!(beside_processes(&turns(), &host("y")).is_empty());
    }
}
