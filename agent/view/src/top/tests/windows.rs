//! Rates over windows of unequal length.

use super::*;

const MS: u64 = 1_000_000;
const EVERY: Duration = Duration::from_secs(2);

/// The time up to each scan in milliseconds, recorded from an agent with `--scan-interval 5s` while `top` asked every two
/// seconds.
const RECORDED: [u64; 15] = [
    2809, 1921, 3020, 1038, 2878, 968, 1090, 1532, 2239, 195, 2931, 2023, 1240, 4112, 4684,
];

/// The scan after this one takes `length_ms`.
fn scan(picture: &mut Picture, scan_id: u64, length_ms: u64, records: Vec<FlowRecord>) {
    let start = picture.end_unix_ns;
    picture.add_batch(&FlowBatch {
        window_start_unix_ns: start,
        window_end_unix_ns: start + length_ms * MS,
        ..batch(scan_id, records)
    });
}

/// A flow that sends a packet of `bytes` every `pace_ms`: its counts between two times, and since the beginning.
fn paced(host: u8, (bytes, pace_ms): (u64, u64), from_ms: u64, to_ms: u64) -> FlowRecord {
    let total = to_ms / pace_ms;
    let delta = total - from_ms / pace_ms;
    let counts = |packets: u64| [packets, packets * bytes, 0, 0];
    flow(host, counts(delta), counts(total))
}

#[test]
fn constant_flows_have_constant_rates_in_the_same_order_however_scans_come() {
    // 570 and 400 kbit/s.
    let paces = [(14_250, 200), (15_000, 300)];
    let mut picture = Picture::of(EVERY);
    let mut now = 0;
    for (scan_id, length) in (1..).zip(RECORDED) {
        let records = (1..).zip(paces);
        let records = records
            .map(|(host, pace)| paced(host, pace, now, now + length))
            .filter(|record| record.src().delta_packets > 0);
        scan(&mut picture, scan_id, length, records.collect());
        now += length;
        let mut rates: Vec<_> = picture
            .flows()
            .map(|(_, flow)| {
                rounded(picture.per_second(picture.recent(&flow.figures).0.all_bytes() * 8))
            })
            .collect();
        rates.sort_unstable_by(|one, other| other.cmp(one));
        assert!(
            (480_000..660_000).contains(&rates[0]) && (320_000..480_000).contains(&rates[1]),
            "scan {scan_id} after {length} ms: {rates:?}"
        );
        let covered = picture.length().unwrap();
        assert!(
            covered >= Duration::from_millis(1500) && covered <= Duration::from_millis(now),
            "scan {scan_id}: {covered:?}"
        );
        for bits in picture.history(picture.all()) {
            assert!((800_000..1_140_000).contains(&bits), "{bits}");
        }
    }
    // No packet is lost or counted twice.
    let packets: u64 = paces.iter().map(|(_, pace)| now / pace).sum();
    assert_eq!(picture.all().total.all_packets(), packets);
}

#[test]
fn a_short_window_is_shown_with_the_one_before_and_goes_on_with_the_next_scan() {
    let mut picture = Picture::of(EVERY);
    let shown = |picture: &Picture| {
        let (traffic, flows) = picture.recent(picture.groups(View::Peers).next().unwrap().1);
        let millis = picture.length().unwrap().as_millis();
        (millis, traffic.all_packets(), flows, picture.windows())
    };
    let record = |host: u8, packets: u64| flow(host, [packets, 0, 0, 0], [packets, 0, 0, 0]);
    scan(&mut picture, 1, 2000, vec![record(1, 10), record(2, 10)]);
    assert_eq!(shown(&picture), (2000, 20, 2, 1));
    // The first flow goes on, the second one ends without a packet, and a third one begins.
    let ended = FlowRecord {
        end_reason: Some(EndReason::IdleTimeout.into()),
        ..record(2, 0)
    };
    scan(
        &mut picture,
        2,
        400,
        vec![record(1, 1), ended, record(3, 5)],
    );
    assert_eq!(shown(&picture), (2400, 26, 3, 1));
    assert_eq!(picture.history(picture.all()).len(), 1);
    // The sums have the packets of the flow that ended, so it is still shown.
    assert_eq!(picture.flows().count(), 3);
    scan(&mut picture, 3, 1600, vec![record(1, 2), record(3, 5)]);
    assert_eq!(shown(&picture), (2000, 13, 2, 2));
    assert_eq!(picture.history(picture.all()).len(), 2);
    scan(&mut picture, 4, 2000, vec![]);
    assert_eq!(shown(&picture), (2000, 0, 0, 3));
    assert_eq!(picture.flows().count(), 2);
    // A window of unknown length is not joined with another.
    scan(&mut picture, 5, 0, vec![record(1, 1000)]);
    assert_eq!(shown(&picture), (0, 1000, 1, 4));
    scan(&mut picture, 6, 300, vec![record(1, 3)]);
    assert_eq!(shown(&picture), (300, 3, 1, 4));
    // An empty picture has windows of the same kind.
    let mut picture = picture.renewed();
    assert_eq!((picture.windows(), picture.length()), (0, None));
    // A rate over so short a time says nothing.
    scan(&mut picture, 1, 300, vec![record(1, 1000)]);
    assert_eq!((picture.windows(), picture.length()), (0, None));
    scan(&mut picture, 2, 1200, vec![]);
    assert_eq!(shown(&picture), (1500, 1000, 1, 1));
}

#[test]
fn a_full_table_is_told_as_long_as_its_scan_is_shown() {
    let mut picture = Picture::of(EVERY);
    let mut scan_id = 0;
    let mut told = |length_ms, refused_in_window| {
        scan_id += 1;
        let start = picture.end_unix_ns;
        picture.add_batch(&FlowBatch {
            window_start_unix_ns: start,
            window_end_unix_ns: start + length_ms * MS,
            refused_in_window,
            ..batch(scan_id, vec![])
        });
        picture.missing.refused_in_window
    };
    assert!(told(1000, true));
    // The same window.
    assert!(told(1000, false));
    // The next one, which is shown together with it until it is long enough.
    assert!(told(1000, false));
    assert!(!told(1000, false));
    assert!(told(100, true) && told(1500, false));
    assert!(!told(2000, false));
}

#[test]
fn each_scan_is_a_window_if_none_is_asked_for() {
    let mut picture = Picture::of(Duration::ZERO);
    for scan_id in 1..=3 {
        scan(&mut picture, scan_id, 1, vec![]);
        assert_eq!(picture.windows(), scan_id);
        assert_eq!(picture.length(), Some(Duration::from_millis(1)));
    }
}
