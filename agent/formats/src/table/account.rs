//! The account's equation as a line of text.

use proto::Account;

/// The account's equation in packets, or the difference if it does not hold.
pub fn closing(account: &Account) -> String {
    let seen = proto::pair(account.seen);
    let missing = account.missing();
    let sampled_out = match (
        account.sample_rate,
        proto::pair(account.sampled_out).packets,
    ) {
        (0, 0) => String::new(),
        // A collector has stopped sampling since.
        (0, packets) => format!(" + sampled out {packets}"),
        (rate, packets) => format!(" + sampled out {packets} (1 flow in {rate} is counted)"),
    };
    let equation = format!(
        "seen {} = flows {} + unparsed {}{} + not inserted {}{} + filtered {}{sampled_out}",
        seen.packets,
        proto::pair(account.flows).packets,
        account.unparsed_sum().packets,
        in_brackets(&reasons(account.unparsed.iter())),
        account.not_inserted_sum().packets,
        in_brackets(&reasons(account.not_inserted.iter())),
        proto::pair(account.filtered).packets,
    );
    if missing == agent_common::Pair::default() {
        return format!("account closes: {equation}");
    }
    let (packets, bytes) = (missing.packets.cast_signed(), missing.bytes.cast_signed());
    format!("ACCOUNT DOES NOT CLOSE, {packets} packets and {bytes} bytes are missing: {equation}")
}

/// The reasons that have packets: `arp 3, llc 1`.
pub(super) fn reasons<'a>(counts: impl Iterator<Item = (&'a String, &'a proto::Count)>) -> String {
    let named = counts
        .filter(|(_, count)| count.packets > 0)
        .map(|(reason, count)| format!("{reason} {}", count.packets));
    named.collect::<Vec<_>>().join(", ")
}

fn in_brackets(text: &str) -> String {
    if text.is_empty() {
        String::new()
    } else {
        format!(" ({text})")
    }
}
