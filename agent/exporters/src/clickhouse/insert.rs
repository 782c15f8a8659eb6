//! An INSERT over HTTP: the statement and its settings go in the query string, the rows in the body.

use std::fmt::Write as _;

use anyhow::{Context as _, Result};
use bytes::Bytes;
use formats::parquet::Table;
use http_body_util::Full;
use hyper::{
    Request,
    header::{self, HeaderValue},
};
use tokio::{
    task::spawn_blocking,
    time::{Instant, timeout_at},
};

use super::{
    Settings,
    answer::{self, Fault},
};
use crate::transport::{Requests, USER_AGENT};

const USER: &str = "x-clickhouse-user";
const PASSWORD: &str = "x-clickhouse-key";

/// Set explicitly, because the user's profile may say otherwise.
const SETTINGS: [(&str, &str); 4] = [
    // Answer only when everything is stored, so that the status is reliable.
    ("wait_end_of_query", "1"),
    // Rows in the server's memory are not stored.
    ("async_insert", "0"),
    // Otherwise a Distributed table answers before a shard has the rows. The name is `distributed_foreground_insert`
    // since 23.12, but all versions know this one.
    ("insert_distributed_sync", "1"),
    // Texts that a flow lacks are stored as empty.
    ("input_format_null_as_default", "1"),
];

pub(super) struct Insert<'a> {
    pub settings: &'a Settings,
    pub table: Table,
    /// A Parquet file.
    pub rows: &'a Bytes,
}

impl Insert<'_> {
    /// Returns once ClickHouse has acknowledged the rows.
    pub(super) async fn send(
        &self,
        requests: &mut Requests,
        deadline: Instant,
    ) -> Result<(), Fault> {
        let address = requests.address();
        let failed = |why: String| Fault::Passing(format!("ClickHouse at {address} {why}").into());
        let password = timeout_at(deadline, self.password()).await;
        let password = password.map_err(|_| failed("waits for its password".to_owned()))??;
        let request = self.request(&address, password.as_deref())?;
        let answered = timeout_at(deadline, requests.send(request)).await;
        let late =
            |_| Fault::Tried(format!("ClickHouse at {address} has not answered in time").into());
        let answer = answered.map_err(late)?;
        let answer = answer.map_err(|error| failed(format!("cannot be reached: {error:#}")))?;
        answer::judged(
            self.settings,
            &address,
            &self.name(),
            password.as_deref(),
            &answer,
        )
    }

    /// The password, if the login has one.
    async fn password(&self) -> Result<Option<String>, Fault> {
        let login = self.settings.login.as_ref();
        let Some(file) = login.and_then(|login| login.password_file.clone()) else {
            return Ok(None);
        };
        // Reading a file may block.
        let read = spawn_blocking(move || file.read()).await;
        let read = read.map_err(|error| Fault::Passing(error.to_string().into()))?;
        read.map(Some)
            .map_err(|fault| Fault::Lasting(fault.to_string().into()))
    }

    fn request(
        &self,
        address: &str,
        password: Option<&str>,
    ) -> Result<Request<Full<Bytes>>, Fault> {
        let mut request = Request::post(self.path())
            .header(header::HOST, address)
            .header(header::USER_AGENT, USER_AGENT);
        if let Some(login) = &self.settings.login {
            let lasting = |why: String| Fault::Lasting(why.into());
            let user = header_value(&login.user).map_err(|_| {
                lasting("user has characters that a request cannot carry".to_owned())
            })?;
            request = request.header(USER, user);
            if let Some(password) = password {
                let password = header_value(password).map_err(|_| {
                    lasting("the password has characters that a request cannot carry".to_owned())
                })?;
                request = request.header(PASSWORD, password);
            }
        }
        let request = request.body(Full::new(self.rows.clone()));
        let request = request.context("make a request");
        request.map_err(|error| Fault::Lasting(format!("{error:#}").into()))
    }

    /// The full table name, for the statement and for messages.
    fn name(&self) -> String {
        let Settings {
            database, table, ..
        } = self.settings;
        match self.table {
            Table::Flows => format!("{database}.{table}"),
            Table::Batches => format!("{database}.{table}_batches"),
        }
    }

    fn path(&self) -> String {
        let columns = self.table.column_names().join(",");
        let statement = format!("INSERT INTO {} ({columns}) FORMAT Parquet", self.name());
        let mut path = format!("/?query={}", escaped(&statement));
        for (name, value) in SETTINGS {
            write!(path, "&{name}={value}").expect("a text takes every text");
        }
        path
    }
}

/// A header value that logs do not show.
fn header_value(text: &str) -> Result<HeaderValue, header::InvalidHeaderValue> {
    let mut value = HeaderValue::from_bytes(text.as_bytes())?;
    value.set_sensitive(true);
    Ok(value)
}

/// Percent-encodes a text for the query string of a URL.
fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(2 * text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"_.-".contains(&byte) {
            escaped.push(byte.into());
        } else {
            write!(escaped, "%{byte:02X}").expect("a text takes every text");
        }
    }
    escaped
}
