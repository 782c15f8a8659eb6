//! Faults in authentication and authorization.

use super::{Fault, agent, unit};

pub(super) const FAULTS: &[Fault] = &[
    Fault {
        name: "any token is ours",
        file: "agent/tls/src/token/known.rs",
        from: "let (known, grant) = self.all.get_key_value(hash)?;",
        to: "let (known, grant) = self.all.iter().next()?; let hash = known;",
        target: unit("tls", "token::known::tests::every_byte_of_a_token_counts"),
    },
    Fault {
        name: "a call without a token is admitted",
        file: "agent/tls/src/token/known.rs",
        from: "headers.get(AUTHORIZATION).ok_or(Unknown::NotShown)?;",
        to: "headers.get(AUTHORIZATION); let Some(shown) = shown else { \
             let all = Arc::clone(&self.state().contents.all); let (hash, grant) = all.iter().next().ok_or(Unknown::NotShown)?; \
             return Ok(Shown { hash: *hash, grant: grant.clone() }) };",
        target: unit(
            "tls",
            "token::known::tests::a_token_is_known_by_its_hash_alone_with_its_name_and_roles",
        ),
    },
    Fault {
        name: "a token that is withdrawn goes on",
        file: "agent/tls/src/token/known.rs",
        from: "state.contents.find(&shown.hash) != Some(&shown.grant)",
        to: "state.contents.all.is_empty() && shown.hash[0] == 0",
        target: unit(
            "tls",
            "token::known::tests::tokens_that_change_are_in_force_and_those_that_cannot_be_used_are_told_and_not",
        ),
    },
    Fault {
        name: "a credential sends for any host",
        file: "agent/collector/src/claims.rs",
        from: "if !hostname.is_empty() && !identity.may_be_host(hostname) {",
        to: "if hostname.is_empty() && !identity.may_be_host(hostname) && agent_id.is_empty() {",
        target: unit(
            "collector",
            "claims::tests::a_machine_is_that_of_the_credential_that_had_it_first",
        ),
    },
    Fault {
        name: "a credential sends as another's machine",
        file: "agent/collector/src/claims.rs",
        from: "&& owner != identity",
        to: "&& owner != identity && owner == identity",
        target: unit(
            "collector",
            "claims::tests::a_machine_is_that_of_the_credential_that_had_it_first",
        ),
    },
    Fault {
        name: "a stream is that of all who name it",
        file: "agent/collector/src/incoming.rs",
        from: "(self.sender.clone(), self.batch.stream_id)",
        to: "(Identity::User(0), self.batch.stream_id)",
        target: unit(
            "collector",
            "streams::tests::a_batch_is_known_by_its_number_and_its_digest_with_the_stores_that_have_it",
        ),
    },
    Fault {
        name: "whoever may call reads the status",
        file: "agent/collector/src/serving.rs",
        from: "require(Role::Status)?;",
        to: "",
        target: agent(
            "collect::identities::a_token_sends_for_its_own_host_alone_and_hides_and_shows_nothing_of_others",
        ),
    },
    Fault {
        name: "a credential may leave any number of answers unread",
        file: "agent/server/src/limits.rs",
        from: "Self::Answers => 2,",
        to: "Self::Answers => UNREAD_ANSWERS,",
        target: agent(
            "collect::attacks::memory::streams_and_unread_statuses_of_a_few_leave_room_for_those_of_others",
        ),
    },
    Fault {
        name: "a credential may have all streams",
        file: "agent/server/src/limits.rs",
        from: "Self::Connections | Self::Streams => 16,",
        to: "Self::Connections | Self::Streams => 1000,",
        target: agent(
            "collect::attacks::memory::whoever_watches_the_health_leaves_room_for_those_who_observe",
        ),
    },
    Fault {
        name: "a credential may have all connections",
        file: "agent/server/src/calls.rs",
        from: "caller.belongs_to(grant, admission).await?;",
        to: "let _ = (grant, Caller::belongs_to);",
        target: agent("collect::attacks::memory::a_credential_has_a_share_of_the_connections"),
    },
    Fault {
        name: "whoever does not read how a call ended keeps the connection",
        file: "agent/collector/src/serving.rs",
        from: "caller.unread(None, Instant::now() + UNREAD_END);",
        to: "caller.unread(None, Instant::now() + 1000 * UNREAD_END);",
        target: agent(
            "collect::attacks::memory::a_call_whose_acknowledgements_nobody_reads_gives_its_place_back",
        ),
    },
    Fault {
        name: "who may only send takes the place of one who observes",
        file: "agent/server/src/calls.rs",
        from: "require_reader(grant, caller, admission)?;",
        to: "let _ = (grant, require_reader);",
        target: agent(
            "collect::identities::a_token_sends_for_its_own_host_alone_and_hides_and_shows_nothing_of_others",
        ),
    },
    Fault {
        name: "a token is shown in any way",
        file: "agent/tls/src/token/known.rs",
        from: "if !scheme.eq_ignore_ascii_case(SCHEME) {",
        to: "if scheme.eq_ignore_ascii_case(token) {",
        target: unit(
            "tls",
            "token::known::tests::a_token_is_known_by_its_hash_alone_with_its_name_and_roles",
        ),
    },
    Fault {
        name: "a token that was taken out of the file stays in force",
        file: "agent/tls/src/reload.rs",
        from: "                    state.contents = contents;\n",
        to: "                    drop(contents);\n",
        target: unit(
            "tls",
            "token::known::tests::tokens_that_change_are_in_force_and_those_that_cannot_be_used_are_told_and_not",
        ),
    },
    Fault {
        name: "clients need no certificate",
        file: "agent/tls/src/server.rs",
        from: "builder.with_client_cert_verifier(verifier)",
        to: "{\n                    drop(verifier);\n                    builder.with_no_client_auth()\n                }",
        target: unit(
            "tls",
            "client::tests::a_client_is_served_if_its_certificate_is_of_the_ca_that_is_asked_for",
        ),
    },
    Fault {
        name: "a connection is resumed without a look at the certificate",
        file: "agent/tls/src/server.rs",
        from: "config.session_storage = Arc::new(NoServerSessionStorage {});\n        config.send_tls13_tickets = 0;",
        to: "",
        target: unit(
            "tls",
            "server::tests::no_connection_is_resumed_without_a_look_at_the_clients_certificate",
        ),
    },
    Fault {
        name: "a server is trusted by the system's CAs beside the file's",
        file: "agent/tls/src/client.rs",
        from: "Some(path) => pem::roots(path)?,",
        to: "Some(path) => pem::roots(path).and_then(|_| of_the_system())?,",
        target: unit(
            "tls",
            "client::tests::a_server_is_trusted_by_its_ca_and_its_name",
        ),
    },
    Fault {
        name: "a silent connection keeps its place",
        file: "agent/server/src/guarded.rs",
        from: "(self.caller.ends_at(), Refusal::Silent),",
        to: "(self.caller.ends_at().filter(|_| false), Refusal::Silent),",
        target: unit(
            "server",
            "guarded::tests::an_idle_connection_ends_whatever_is_polled_and_is_counted_once",
        ),
    },
    Fault {
        name: "no idle connection gives way",
        file: "agent/server/src/caller.rs",
        from: "if activity.open > 0 || activity.place.take().is_none() {",
        to: "if activity.place.is_none() || activity.place.is_some() {",
        target: unit(
            "server",
            "caller::tests::a_connection_gives_way_unless_something_is_open_and_the_one_that_never_asked_is_first",
        ),
    },
    Fault {
        name: "an answer that nobody reads keeps its place",
        file: "agent/server/src/guarded.rs",
        from: "(self.caller.unread_until(), Refusal::Unread),",
        to: "(self.caller.unread_until().filter(|_| false), Refusal::Unread),",
        target: unit(
            "server",
            "guarded::tests::a_connection_with_an_answer_that_is_not_read_ends",
        ),
    },
    Fault {
        name: "a connection has a request more than it may",
        file: "agent/server/src/caller.rs",
        from: "if activity.open < most {",
        to: "if activity.open <= most {",
        target: unit(
            "server",
            "caller::tests::a_connection_has_as_many_open_requests_as_it_may_and_no_more",
        ),
    },
    Fault {
        name: "metrics are told to whoever asks by whatever name",
        file: "agent/server/src/metrics/http.rs",
        from: "if let Some(name) = names::foreign(request) {",
        to: "if let Some(name) = names::foreign(request).filter(|_| false) {",
        target: agent("metrics::a_name_that_is_not_this_hosts_is_refused"),
    },
    Fault {
        name: "a link in the place of a file of the spool is followed",
        file: "agent/sys/src/own_file.rs",
        from: "options.custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK);",
        to: "options.custom_flags(libc::O_NONBLOCK);",
        target: unit(
            "exporters",
            "delivery::spool::tests::no_link_in_a_spool_is_followed_and_its_files_are_its_users_alone",
        ),
    },
    Fault {
        name: "a spreadsheet takes a name for a formula",
        file: "agent/src/commands/query/show.rs",
        from: "Some(text) => csv_cell(text),",
        to: "Some(text) => text.to_owned(),",
        target: unit(
            "agent",
            "commands::query::show::tests::csv_holds_no_formula_and_nothing_that_acts_on_a_terminal",
        ),
    },
];
