use std::{
    env,
    process::Command,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use super::*;

/// Reruns a test of this module in a process for each of these time zones, whose name the process gets.
fn in_zones(test: &str, zones: &[&str], check: impl Fn(&str)) {
    const ZONE: &str = "FLOW_AGENT_TEST_ZONE";
    if let Ok(zone) = env::var(ZONE) {
        check(&zone);
        return;
    }
    for zone in zones {
        let mut child = Command::new(env::current_exe().unwrap());
        let name = format!("local_time::tests::{test}");
        child
            .args([&*name, "--exact"])
            .env("TZ", zone)
            .env(ZONE, zone);
        let output = child.output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(
            output.status.success() && said.contains(" 1 passed"),
            "{zone}: {said}"
        );
    }
}

/// An instant of UTC, as RFC 3339 has it.
fn utc(text: &str) -> SystemTime {
    DateTime::parse_from_rfc3339(text).unwrap().into()
}

fn civil(text: &str) -> NaiveDateTime {
    text.parse().unwrap()
}

fn since_1970(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH)
        .unwrap()
        .as_nanos()
        .try_into()
        .unwrap()
}

fn shown(time: SystemTime) -> String {
    Zone::Local.seconds(since_1970(time)).to_string()
}

const BERLIN: &str = "Europe/Berlin";
const SYDNEY: &str = "Australia/Sydney";
const SAMOA: &str = "Pacific/Apia";
const LORD_HOWE: &str = "Australia/Lord_Howe";
const CAIRO: &str = "Africa/Cairo";
const KATHMANDU: &str = "Asia/Kathmandu";
/// Without the system's database.
const RULE: &str = "CET-1CEST,M3.5.0,M10.5.0/3";

#[test]
fn times_are_shown_with_the_offset_of_their_day() {
    in_zones(
        "times_are_shown_with_the_offset_of_their_day",
        &[BERLIN, RULE, "UTC", KATHMANDU],
        |zone| {
            let [winter, summer] = ["2026-01-02T23:30:00Z", "2026-07-02T23:30:00Z"].map(utc);
            let expected = match zone {
                KATHMANDU => ["2026-01-03 05:15:00+05:45", "2026-07-03 05:15:00+05:45"],
                "UTC" => ["2026-01-02 23:30:00Z", "2026-07-02 23:30:00Z"],
                _ => ["2026-01-03 00:30:00+01:00", "2026-07-03 01:30:00+02:00"],
            };
            assert_eq!([winter, summer].map(shown), expected);
            let millis = Zone::Utc.millis(since_1970(winter) + 7_999_999);
            assert_eq!(millis.to_string(), "2026-01-02 23:30:00.007Z");
            // Displayed times can be typed.
            for time in [winter, summer] {
                let typed = Moment::parse(&shown(time)).unwrap();
                assert_eq!(typed.resolve(UNIX_EPOCH, Zone::Utc), time);
            }
        },
    );
    let year = format!("{}", Zone::Local.seconds(u64::MAX));
    assert!(year.starts_with("2554-"), "{year}");
}

#[test]
fn a_time_that_clocks_skip_counts_from_before_and_one_shown_twice_is_the_first() {
    in_zones(
        "a_time_that_clocks_skip_counts_from_before_and_one_shown_twice_is_the_first",
        &[BERLIN, RULE, SAMOA, SYDNEY],
        |zone| {
            let cases: &[_] = match zone {
                SAMOA => &[
                    // That day was left out.
                    ("2011-12-30T10:00:00", "2011-12-30T20:00:00Z"),
                    ("2011-12-31T10:00:00", "2011-12-30T20:00:00Z"),
                ],
                SYDNEY => &[
                    ("2026-10-04T02:30:00", "2026-10-03T16:30:00Z"),
                    ("2026-04-05T02:30:00", "2026-04-04T15:30:00Z"),
                ],
                _ => &[
                    ("2026-03-29T01:59:59", "2026-03-29T00:59:59Z"),
                    ("2026-03-29T02:30:00", "2026-03-29T01:30:00Z"),
                    ("2026-03-29T03:30:00", "2026-03-29T01:30:00Z"),
                    ("2026-10-25T02:30:00", "2026-10-25T00:30:00Z"),
                    ("2026-10-25T03:00:00", "2026-10-25T02:00:00Z"),
                ],
            };
            for (typed, expected) in cases {
                let instant = Zone::Local.instant(civil(typed));
                assert_eq!(instant, utc(expected), "{typed}");
            }
            let twice = Zone::Local.instants(civil("2026-10-25T02:30:00"));
            assert_eq!(
                twice.len(),
                if [BERLIN, RULE].contains(&zone) { 2 } else { 1 }
            );
        },
    );
}

#[test]
fn what_people_type_is_today_yesterday_or_the_last_time_that_clocks_showed_it() {
    in_zones(
        "what_people_type_is_today_yesterday_or_the_last_time_that_clocks_showed_it",
        &[BERLIN, SYDNEY],
        |zone| {
            // 22:00 in Berlin and 7:00 of the next day in Sydney.
            let now = utc("2026-06-10T20:00:00Z");
            let cases: &[_] = match zone {
                BERLIN => &[
                    ("21:27", "2026-06-10T19:27:00Z"),
                    ("22:00", "2026-06-10T20:00:00Z"),
                    ("22:00:01", "2026-06-09T20:00:01Z"),
                    ("7:05", "2026-06-10T05:05:00Z"),
                    ("today", "2026-06-09T22:00:00Z"),
                    ("today 23:00", "2026-06-10T21:00:00Z"),
                    ("yesterday", "2026-06-08T22:00:00Z"),
                    ("yesterday 21:27", "2026-06-09T19:27:00Z"),
                    ("yesterday 21:27:30", "2026-06-09T19:27:30Z"),
                    ("2026-01-02", "2026-01-01T23:00:00Z"),
                    ("2026-01-02T03:04", "2026-01-02T02:04:00Z"),
                    ("2026-01-02 03:04:05", "2026-01-02T02:04:05Z"),
                ],
                _ => &[
                    ("21:27", "2026-06-10T11:27:00Z"),
                    ("6:00", "2026-06-10T20:00:00Z"),
                    ("06:00:01", "2026-06-09T20:00:01Z"),
                    ("today", "2026-06-10T14:00:00Z"),
                    ("yesterday", "2026-06-09T14:00:00Z"),
                    ("2026-01-02", "2026-01-01T13:00:00Z"),
                ],
            };
            for (typed, expected) in cases {
                let moment = Moment::parse(typed).unwrap();
                assert_eq!(moment.resolve(now, Zone::Local), utc(expected), "{typed}");
            }
            // A day after clocks were set back is an hour longer.
            let after = utc("2026-10-25T20:00:00Z");
            if zone == BERLIN {
                let yesterday = Moment::parse("yesterday").unwrap();
                let begun = yesterday.resolve(after, Zone::Local);
                assert_eq!(begun, utc("2026-10-23T22:00:00Z"));
            }
        },
    );
}

#[test]
fn a_time_with_an_offset_or_of_utc_is_the_same_in_every_zone() {
    let expected = utc("2026-01-02T03:04:00Z");
    for text in [
        "2026-01-02T03:04Z",
        "2026-01-02 03:04:00Z",
        "2026-01-02T04:04:00+01:00",
        "2026-01-02T04:04+01:00",
        "2026-01-02t03:04:00.000z",
        "2026-01-01T22:04-05:00",
    ] {
        let moment = Moment::parse(text).unwrap();
        assert_eq!(moment, Moment::At(expected), "{text}");
    }
    let midnight = Moment::parse("2026-01-02Z").unwrap();
    assert_eq!(midnight, Moment::At(utc("2026-01-02T00:00:00Z")));
    let local = Moment::parse("2026-01-02T03:04").unwrap();
    assert_eq!(local.resolve(UNIX_EPOCH, Zone::Utc), expected);
    for text in [
        "",
        "tomorrow",
        "10",
        "24:00",
        "1:2",
        "21:2",
        "21:60",
        ":30",
        "123:00",
        "2026-13-01",
        "2026-1-2",
        "2026-01-02X03:04",
        "2026-01-02T",
        "todayish",
        "yesterday21:27",
        "today 9",
        "21.27",
        "21:27.5",
        "02026-01-02",
        "+026-01-02",
        "2026-01-02T03:04+1",
        "21:27Z",
    ] {
        assert_eq!(Moment::parse(text), None, "{text:?}");
    }
}

/// The lengths of the steps between two moments, in minutes.
fn lengths(step: Step, from: &str, to: &str) -> Vec<u64> {
    let (mut at, to) = (utc(from), utc(to));
    let mut steps = Steps::new(step, Zone::Local);
    let mut lengths = Vec::new();
    while at < to {
        let found = steps.of(at);
        assert_eq!(found.start, at, "a step begins where the one before ended");
        let last = found.end - Duration::from_nanos(1);
        assert_eq!(steps.of(last), found);
        // Another look that begins there sees the same.
        assert_eq!(Steps::new(step, Zone::Local).of(last), found);
        lengths.push((found.end.duration_since(found.start).unwrap()).as_secs() / 60);
        at = found.end;
    }
    lengths
}

#[test]
fn steps_are_those_of_the_clock_and_the_calendar_on_days_of_any_length() {
    in_zones(
        "steps_are_those_of_the_clock_and_the_calendar_on_days_of_any_length",
        &[BERLIN, RULE, LORD_HOWE, KATHMANDU, SAMOA, CAIRO],
        |zone| match zone {
            KATHMANDU => {
                let step = Steps::new(Step::HOUR, Zone::Local).of(utc("2026-01-02T03:20:00Z"));
                assert_eq!(shown(step.start), "2026-01-02 09:00:00+05:45");
                assert_eq!(shown(step.end), "2026-01-02 10:00:00+05:45");
            }
            // Clocks are set back, and later forward, by half an hour at 2:00.
            LORD_HOWE => {
                let back = lengths(Step::HOUR, "2026-04-04T13:00:00Z", "2026-04-04T17:30:00Z");
                assert_eq!(back, [60, 90, 60, 60]);
                let forward = lengths(Step::HOUR, "2026-10-03T13:30:00Z", "2026-10-03T17:00:00Z");
                assert_eq!(forward, [60, 60, 30, 60]);
            }
            SAMOA => {
                let days = lengths(Step::DAY, "2011-12-28T10:00:00Z", "2012-01-01T10:00:00Z");
                assert_eq!(days, [1440; 4]);
                let step = Steps::new(Step::DAY, Zone::Local).of(utc("2011-12-30T09:59:59Z"));
                assert_eq!(shown(step.end), "2011-12-31 00:00:00+14:00");
            }
            // Clocks are set forward at midnight.
            CAIRO => {
                let days = lengths(Step::DAY, "2025-04-23T22:00:00Z", "2025-04-25T21:00:00Z");
                assert_eq!(days, [1440, 1380]);
            }
            _ => {
                let days = lengths(Step::DAY, "2026-03-27T23:00:00Z", "2026-03-30T22:00:00Z");
                assert_eq!(days, [1440, 1380, 1440]);
                let days = lengths(Step::DAY, "2026-10-23T22:00:00Z", "2026-10-26T23:00:00Z");
                assert_eq!(days, [1440, 1500, 1440]);
                // 25 hours, of which two are called 2:00.
                let hours = lengths(Step::HOUR, "2026-10-24T22:00:00Z", "2026-10-25T23:00:00Z");
                assert_eq!(hours, [60; 25]);
                let hours = lengths(Step::HOUR, "2026-03-28T23:00:00Z", "2026-03-29T22:00:00Z");
                assert_eq!(hours, [60; 23]);
                let quarters = Step::Seconds(6 * 3600);
                let quarters = lengths(quarters, "2026-10-24T22:00:00Z", "2026-10-25T23:00:00Z");
                assert_eq!(quarters, [420, 360, 360, 360]);
                let minutes = lengths(
                    Step::Seconds(300),
                    "2026-03-28T23:00:00Z",
                    "2026-03-29T22:00:00Z",
                );
                assert_eq!(minutes, [5; 23 * 12]);
                let weeks = lengths(Step::WEEK, "2026-03-22T23:00:00Z", "2026-04-05T22:00:00Z");
                assert_eq!(weeks, [7 * 1440 - 60, 7 * 1440]);
                let week = Steps::new(Step::WEEK, Zone::Local).of(utc("2026-06-10T20:00:00Z"));
                assert_eq!(shown(week.start), "2026-06-08 00:00:00+02:00");
                let month = Steps::new(Step::MONTH, Zone::Local).of(utc("2026-03-15T20:00:00Z"));
                assert_eq!(shown(month.start), "2026-03-01 00:00:00+01:00");
                assert_eq!(shown(month.end), "2026-04-01 00:00:00+02:00");
                let year =
                    Steps::new(Step::Months(12), Zone::Local).of(utc("2026-06-10T20:00:00Z"));
                assert_eq!(shown(year.start), "2026-01-01 00:00:00+01:00");
            }
        },
    );
}

/// One minute after midnight, clocks are set back to one minute after eleven, or forward to one after one.
const AROUND_MIDNIGHT: &str = "NST3:30NDT,M3.2.0/0:01,M11.1.0/0:01";

#[test]
fn a_day_whose_midnight_comes_twice_lasts_until_the_second() {
    in_zones(
        "a_day_whose_midnight_comes_twice_lasts_until_the_second",
        &[AROUND_MIDNIGHT],
        |_| {
            let (from, to) = ("2026-10-31T02:30:00Z", "2026-11-02T03:30:00Z");
            assert_eq!(lengths(Step::DAY, from, to), [1500, 1440]);
            assert_eq!(lengths(Step::HOUR, from, to), [60; 49]);
            // Steps of 30 s, four minutes of them around the moment.
            let halves = Step::Seconds(30);
            let halves = lengths(halves, "2026-11-01T02:29:00Z", "2026-11-01T02:33:00Z");
            assert_eq!(halves.len(), 8);
            let [weeks, months] = [Step::WEEK, Step::MONTH].map(|step| {
                let step = Steps::new(step, Zone::Local).of(utc("2026-11-01T02:30:30Z"));
                [step.start, step.end].map(shown)
            });
            assert_eq!(
                weeks,
                ["2026-10-26 00:00:00-02:30", "2026-11-02 00:00:00-03:30"]
            );
            assert_eq!(
                months,
                ["2026-10-01 00:00:00-02:30", "2026-11-01 00:00:00-03:30"]
            );
        },
    );
}

#[test]
fn where_clocks_skip_the_beginnings_of_steps_one_begins_when_they_are_set() {
    const TROLL: &str = "Antarctica/Troll";
    const CHATHAM: &str = "Pacific/Chatham";
    in_zones(
        "where_clocks_skip_the_beginnings_of_steps_one_begins_when_they_are_set",
        &[BERLIN, TROLL, CHATHAM],
        |zone| match zone {
            // From 2:00 to 3:00.
            BERLIN => {
                let of = |minutes: u32, to| {
                    lengths(Step::Seconds(minutes * 60), "2026-03-28T23:00:00Z", to)
                };
                assert_eq!(of(45, "2026-03-29T01:45:00Z"), [45, 45, 30, 45]);
                assert_eq!(of(40, "2026-03-29T02:00:00Z"), [40, 40, 40, 20, 40]);
            }
            // From 1:00 to 3:00.
            TROLL => {
                let from = "2026-03-29T00:00:00Z";
                let steps = lengths(Step::Seconds(90 * 60), from, "2026-03-29T04:00:00Z");
                assert_eq!(steps, [60, 90, 90]);
            }
            // From 2:45 to 3:45.
            _ => {
                let steps = lengths(Step::HOUR, "2026-09-26T12:15:00Z", "2026-09-26T15:15:00Z");
                assert_eq!(steps, [60, 45, 15, 60]);
            }
        },
    );
}

#[test]
fn steps_that_are_asked_in_turn_are_cut_once() {
    let mut steps = Steps::new(Step::MINUTE, Zone::Utc);
    let days = ["2026-01-02T03:04:05Z", "2026-01-09T03:04:05Z"].map(utc);
    let found = days.map(|day| steps.of(day));
    assert_eq!(days.map(|day| steps.known_of(day)), found.map(Some));
}

#[test]
fn a_step_is_a_fraction_of_a_day_or_whole_days() {
    let of = |seconds| Step::of(Duration::from_secs(seconds));
    assert_eq!(of(300), Some(Step::Seconds(300)));
    assert_eq!(of(3600), Some(Step::HOUR));
    assert_eq!(of(86_400), Some(Step::DAY));
    assert_eq!(of(7 * 86_400), Some(Step::WEEK));
    for seconds in [0, 7, 86_399, 90_000, 50_000] {
        assert_eq!(of(seconds), None, "{seconds}");
    }
    assert_eq!(Step::of(Duration::from_millis(1500)), None);
}
