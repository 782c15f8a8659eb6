//! The account's series: their increases add up to the counts, including interfaces that are no longer watched.

use opentelemetry_proto::tonic::metrics::v1::NumberDataPoint;

use super::*;

/// The last value of a series.
struct Series {
    start: u64,
    time: u64,
    value: u64,
    increase: u64,
}

/// The increase of each series of a metric, as a receiver computes it. Asserts that a sum falls only when its start
/// time changes.
fn increases(requests: &[Request], name: &str) -> Vec<u64> {
    let mut all: BTreeMap<String, Series> = BTreeMap::new();
    for request in requests.iter().filter(|one| one.path == "/v1/metrics") {
        let request = ExportMetricsServiceRequest::decode(&request.body[..]).unwrap();
        let metrics = &request.resource_metrics[0].scope_metrics[0].metrics;
        for metric in metrics.iter().filter(|metric| metric.name == name) {
            let Some(Data::Sum(sum)) = &metric.data else {
                panic!("{metric:?}")
            };
            for point in &sum.data_points {
                let NumberDataPoint {
                    attributes,
                    start_time_unix_nano: start,
                    time_unix_nano: time,
                    value: Some(number_data_point::Value::AsInt(value)),
                    ..
                } = point
                else {
                    panic!("{point:?}")
                };
                let value = u64::try_from(*value).unwrap();
                let series = all.entry(format!("{attributes:?}")).or_insert(Series {
                    start: *start,
                    time: *start,
                    value: 0,
                    increase: 0,
                });
                if series.start == *start {
                    assert!(series.value <= value, "{name}: {attributes:?} falls");
                    series.increase += value - series.value;
                } else {
                    // The old one has ended before.
                    assert!(series.time <= *start, "{name}: {attributes:?}");
                    series.increase += value;
                }
                (series.start, series.time, series.value) = (*start, *time, value);
            }
        }
    }
    all.into_values().map(|series| series.increase).collect()
}

#[test]
fn series_only_grow_and_departed_interfaces_have_a_metric_of_their_own() {
    if !is_root_or_skip(
        "agent::series_only_grow_and_departed_interfaces_have_a_metric_of_their_own",
    ) {
        return;
    }
    let lab = Lab::quiet().unwrap();
    lab.agent.namespace.add_wire(["new0", "far0"]).unwrap();
    let receiver = Receiver::start(&lab, |_, _| Answer::ok());
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("config.toml");
    let select = |interface: &str| {
        let settings = format!(
            "output = ['json', '{}']\ninterface = ['{interface}']\nmax_flows = 1000\nscan_interval = '100ms'\n",
            address(&receiver, "")
        );
        fs::write(&file, settings).unwrap();
    };
    let here = &lab.agent.interface;
    select(here);
    let agent = Agent::start_by_file(&lab.agent, "", &file);
    let watch = |interface: &str| {
        select(interface);
        agent.signal(libc::SIGHUP);
        wait_until("it alone is watched", || {
            let status = agent.status(&lab.agent);
            let hooks = status["hooks"].as_array().unwrap();
            let mut names = hooks.iter().map(|hook| &hook["interface"]["name"]);
            !hooks.is_empty() && names.all(|name| name == interface)
        });
        agent.wait_for_scans(&lab.agent, 2);
    };
    let mut sent = send(&lab, 20, 5);
    wait_until_counted(&agent, &lab, sent.packets);
    watch("new0");
    watch(here);
    let again = send(&lab, 20, 2);
    sent += again;
    wait_until_counted(&agent, &lab, sent.packets);
    let report = agent.stop();
    assert_eq!(report.seen(), sent);

    let requests = receiver.requests();
    let all = |metric: &str| -> Pair {
        let sum = |unit: &str| {
            let increases = increases(&requests, &format!("flow.account.{metric}.{unit}"));
            increases.iter().sum()
        };
        Pair {
            packets: sum("packets"),
            bytes: sum("bytes"),
        }
    };
    for metric in ["seen", "fate"] {
        assert_eq!(all(metric), sent, "{metric}");
        let mut departed = sent;
        departed.packets -= again.packets;
        departed.bytes -= again.bytes;
        assert_eq!(all(&format!("departed.{metric}")), departed, "{metric}");
    }
}
