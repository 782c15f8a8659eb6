//! Interprets a response: stored, worth a retry, or a fault that an operator must fix.

use std::sync::Arc;

use formats::harmless::one_line;
use hyper::{StatusCode, header::HeaderMap};
use thiserror::Error;

use super::Settings;
use crate::transport::Answer;

/// Prefix of headers that every ClickHouse response has, such as `X-ClickHouse-Query-Id`. Without one the response came
/// from something else, and nothing was stored.
const OF_CLICKHOUSE: &str = "x-clickhouse-";
const EXCEPTION: &str = "x-clickhouse-exception-code";

/// Replaces the password, since some servers echo request headers.
const MASK: &str = "***";

/// ClickHouse's exception codes (src/Common/ErrorCodes.cpp). They are more reliable than the status, which may be 200:
/// a failure after the response has started is reported in its body.
const NO_TABLE: [u32; 2] = [60, 81];
const NO_COLUMN: [u32; 3] = [8, 10, 16];
const NO_LOGIN: [u32; 4] = [192, 193, 194, 516];
const NOT_ALLOWED: [u32; 2] = [164, 497];
/// The user's profile forbids changing a setting.
const FIXED_SETTING: [u32; 1] = [452];
/// A CHECK or an Enum of the table rejects a value (status 500).
const NO_SUCH_VALUE: [u32; 2] = [469, 691];
/// This ClickHouse does not know a statement, format or setting.
const NOT_UNDERSTOOD: [u32; 4] = [48, 62, 73, 115];

/// Why rows were not stored.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub(super) enum Fault {
    /// A retry may succeed.
    #[error("{0}")]
    Passing(Arc<str>),
    /// ClickHouse tried, and failed or timed out. A retry may succeed, or fewer or other rows: a materialized view, a
    /// partition or the memory limit may fail for these.
    #[error("{0}")]
    Tried(Arc<str>),
    /// An operator must fix something.
    #[error("{0}")]
    Lasting(Arc<str>),
    /// ClickHouse rejects these rows. It may accept others.
    #[error("{0}")]
    OfTheRows(Arc<str>),
}

impl Fault {
    /// Whether fewer rows may succeed. If no time is left that includes an unreachable server, since the INSERT may
    /// have crashed it.
    pub(super) fn may_be_of_the_rows(&self, has_time: bool) -> bool {
        match self {
            Self::Passing(_) => !has_time,
            Self::Lasting(_) => false,
            Self::Tried(_) | Self::OfTheRows(_) => true,
        }
    }
}

/// Fails unless ClickHouse says that the rows are in the table of this name. The password is masked in its message.
pub(super) fn judged(
    settings: &Settings,
    address: &str,
    table: &str,
    password: Option<&str>,
    answer: &Answer,
) -> Result<(), Fault> {
    let Answer {
        status,
        headers,
        body,
    } = answer;
    let said = String::from_utf8_lossy(body);
    let code = code(headers, &one_line(&said));
    let said = match password {
        // Mask before truncating for the log, so that no part of the password is left at the cut.
        Some(password) if !password.is_empty() => one_line(&said.replace(password, MASK)),
        Some(_) | None => one_line(&said),
    };
    if code.is_none()
        && !headers
            .keys()
            .any(|name| name.as_str().starts_with(OF_CLICKHOUSE))
    {
        return Err(of_a_stranger(address, *status, &said));
    }
    if *status == StatusCode::OK && code.is_none() && said.is_empty() {
        return Ok(());
    }
    let said = if said.is_empty() {
        code.map_or_else(|| format!("HTTP {status}"), |code| format!("code {code}"))
    } else {
        said
    };
    let lasting = |why: String| Fault::Lasting(format!("{why}: ClickHouse says: {said}").into());
    let user = settings
        .login
        .as_ref()
        .map_or("default", |login| &login.user);
    let is_one = |codes: &[u32]| code.is_some_and(|code| codes.contains(&code));
    let is_refused = [StatusCode::UNAUTHORIZED, StatusCode::FORBIDDEN].contains(status);
    Err(if is_one(&NOT_ALLOWED) {
        lasting(format!(
            "user {user} may not insert into {table} (GRANT INSERT ON {table} TO {user})"
        ))
    } else if is_one(&NO_LOGIN) || code.is_none() && is_refused {
        lasting(format!(
            "{address} refuses the login of user {user}, check user and password_file"
        ))
    } else if is_one(&NO_TABLE) {
        lasting(format!(
            "there is no table {table}, create it with flows.sql"
        ))
    } else if is_one(&NO_COLUMN) {
        lasting(format!(
            "table {table} lacks columns of this version, compare it with flows.sql"
        ))
    } else if is_one(&FIXED_SETTING) {
        lasting(format!(
            "the profile of user {user} does not let it insert as a collector has to"
        ))
    } else if is_one(&NOT_UNDERSTOOD) {
        lasting(format!(
            "ClickHouse at {address} does not understand how a collector inserts"
        ))
    } else if is_one(&NO_SUCH_VALUE) || status.is_client_error() && !may_pass(*status) {
        Fault::OfTheRows(
            format!("table {table} does not take a batch: ClickHouse says: {said}").into(),
        )
    } else {
        Fault::Tried(format!("ClickHouse at {address} cannot store in {table}: {said}").into())
    })
}

fn may_pass(status: StatusCode) -> bool {
    matches!(
        status,
        StatusCode::REQUEST_TIMEOUT
            | StatusCode::TOO_MANY_REQUESTS
            | StatusCode::BAD_GATEWAY
            | StatusCode::SERVICE_UNAVAILABLE
            | StatusCode::GATEWAY_TIMEOUT
    )
}

/// The exception code, if there is one.
fn code(headers: &HeaderMap, said: &str) -> Option<u32> {
    let told = headers.get(EXCEPTION).and_then(|code| code.to_str().ok());
    let number = |text: &str| text.parse().ok().filter(|&code| code != 0);
    told.and_then(number).or_else(|| {
        let (_, behind) = said.split_once("Code: ")?;
        let (code, _) = behind.split_once('.')?;
        number(code)
    })
}

/// The response of something else at this address. A proxy whose server is down is a passing failure.
fn of_a_stranger(address: &str, status: StatusCode, said: &str) -> Fault {
    let separator = if said.is_empty() { "" } else { ": " };
    let told = format!("HTTP {status}{separator}{said}");
    if may_pass(status) {
        Fault::Passing(format!("a server in front of ClickHouse at {address} says {told}").into())
    } else {
        Fault::Lasting(format!("the server at {address} is not ClickHouse, and says {told}").into())
    }
}

#[cfg(test)]
mod tests {
    use hyper::header::{HeaderName, HeaderValue};

    use super::*;
    use crate::settings::HostPort;

    fn judge(
        status: u16,
        headers: &[(&'static str, &'static str)],
        body: &'static str,
    ) -> Result<(), Fault> {
        let settings = Settings {
            to: HostPort {
                host: "a".to_owned(),
                port: 1,
            },
            database: "d".to_owned(),
            table: "t".to_owned(),
            login: None,
            insert_every: std::time::Duration::ZERO,
        };
        let headers = headers.iter().map(|&(name, value)| {
            (
                HeaderName::from_static(name),
                HeaderValue::from_static(value),
            )
        });
        let answer = Answer {
            status: StatusCode::from_u16(status).unwrap(),
            headers: headers.collect(),
            body: body.into(),
        };
        judged(&settings, "a:1", "d.t", Some(PASSWORD), &answer)
    }

    const PASSWORD: &str = "open sesame";
    const QUERY: (&str, &str) = ("x-clickhouse-query-id", "1");

    fn exception(code: &'static str) -> [(&'static str, &'static str); 2] {
        [QUERY, (EXCEPTION, code)]
    }

    #[test]
    fn only_an_empty_answer_of_clickhouse_says_that_rows_are_stored() {
        assert_eq!(judge(200, &[QUERY], ""), Ok(()));
        assert_eq!(judge(200, &[QUERY], "\n"), Ok(()));
        let passing = |answer| matches!(answer, Err(Fault::Passing(_)));
        let tried = |answer| matches!(answer, Err(Fault::Tried(_)));
        assert!(tried(judge(
            200,
            &[QUERY],
            "Code: 241. DB::Exception: Memory"
        )));
        assert!(tried(judge(200, &[QUERY], "__exception__")));
        assert!(tried(judge(200, &exception("241"), "")));
        assert!(tried(judge(500, &exception("241"), "")));
        assert!(passing(judge(503, &[], "<html>")));
        assert!(tried(judge(429, &[QUERY], "")));
        for status in [200, 204, 302, 404] {
            let answer = judge(status, &[], "");
            assert!(matches!(answer, Err(Fault::Lasting(_))), "{status}");
        }
        assert!(!matches!(judge(204, &[QUERY], ""), Ok(())));
    }

    #[test]
    fn an_exception_is_known_by_its_code_whatever_the_status_is() {
        for (code, told) in [
            ("60", "there is no table d.t"),
            ("81", "there is no table d.t"),
            ("16", "lacks columns of this version"),
            ("516", "a:1 refuses the login of user default"),
            (
                "497",
                "user default may not insert into d.t (GRANT INSERT ON d.t TO default)",
            ),
            ("452", "the profile of user default"),
        ] {
            for status in [200, 400, 403, 404, 500] {
                let Err(Fault::Lasting(why)) = judge(status, &exception(code), "") else {
                    panic!("{code} {status}");
                };
                assert!(why.contains(told), "{why}");
                assert!(
                    why.ends_with(&format!("ClickHouse says: code {code}")),
                    "{why}"
                );
            }
        }
        // Without the header, like older servers.
        let by_text = judge(
            500,
            &[QUERY],
            "Code: 60. DB::Exception: Table d.t does not exist",
        );
        assert!(matches!(by_text, Err(Fault::Lasting(_))));
        for (status, code) in [(400, "117"), (500, "469"), (413, "1")] {
            let answer = judge(status, &exception(code), "");
            assert!(matches!(answer, Err(Fault::OfTheRows(_))), "{code}");
        }
        let refused = judge(401, &[QUERY], "");
        assert!(matches!(refused, Err(Fault::Lasting(_))));
    }

    #[test]
    fn a_password_that_comes_back_is_not_told() {
        const ECHO: &str = "X-ClickHouse-Key: open sesame, X-ClickHouse-User: me";
        for (status, headers) in [(200, &[][..]), (503, &[]), (500, &[QUERY])] {
            let why = judge(status, headers, ECHO).unwrap_err().to_string();
            assert!(
                why.ends_with("X-ClickHouse-Key: ***, X-ClickHouse-User: me"),
                "{why}"
            );
        }
        // The password is where a long answer is truncated.
        let long: &'static str = format!("{}{PASSWORD}", "a".repeat(195)).leak();
        let why = judge(200, &[], long).unwrap_err().to_string();
        assert!(!why.contains("open"), "{why}");
    }
}
