//! Faults in a collector's external stores.

use super::{Fault, unit};

pub(super) const FAULTS: &[Fault] = &[
    Fault {
        name: "kafka: what a broker does not mention is stored",
        file: "agent/exporters/src/kafka/produce.rs",
        from: "                Some(None) => Answer::Stored,",
        to: "                Some(None) => Answer::Stored,\n                None if leader != i32::MIN => Answer::Stored,",
        target: unit(
            "exporters",
            "kafka::produce::tests::only_what_a_leader_says_that_all_replicas_have_is_stored",
        ),
    },
    Fault {
        name: "kafka: an error of a partition is no error",
        file: "agent/exporters/src/kafka/produce.rs",
        from: "Some(Some(error)) => self.answer(partition, *error),",
        to: "Some(Some(_)) => Answer::Stored,",
        target: unit(
            "exporters",
            "kafka::produce::tests::only_what_a_leader_says_that_all_replicas_have_is_stored",
        ),
    },
    Fault {
        name: "kafka: one replica is enough",
        file: "agent/exporters/src/kafka/produce.rs",
        from: "acks: Int16(ACKS_ALL),",
        to: "acks: Int16(-ACKS_ALL),",
        target: unit(
            "exporters",
            "kafka::produce::tests::only_what_a_leader_says_that_all_replicas_have_is_stored",
        ),
    },
    Fault {
        name: "kafka: what follows one that is too long goes on",
        file: "agent/exporters/src/kafka/group.rs",
        from: "if is_behind && state.waits() {",
        to: "if is_behind && later.stream_seq == record.stream_seq {",
        target: unit(
            "exporters",
            "kafka::group::tests::one_that_is_too_long_holds_up_its_own_stream_alone",
        ),
    },
    Fault {
        name: "kafka: a short batch overtakes a long one",
        file: "agent/exporters/src/kafka/group.rs",
        from: "next.is_full = true;\n                continue;",
        to: "continue;",
        target: unit(
            "exporters",
            "kafka::group::tests::what_goes_at_once_is_in_order_and_not_too_long",
        ),
    },
    Fault {
        name: "kafka: what is given up is stored",
        file: "agent/exporters/src/kafka/group.rs",
        from: "            State::NotStored(why) => Err(why),",
        to: "            State::NotStored(why) => Ok(drop(why)),",
        target: unit(
            "exporters",
            "kafka::group::tests::what_is_given_up_is_not_stored",
        ),
    },
    Fault {
        name: "kafka: batches of an agent go by their stream",
        file: "agent/exporters/src/kafka/group.rs",
        from: "if self.agent_id.is_empty() {",
        to: "if self.stream_id != 0 {",
        target: unit(
            "exporters",
            "kafka::group::tests::agents_are_apart_and_one_without_a_name_goes_by_its_stream",
        ),
    },
    Fault {
        name: "clickhouse: half an answer says that all is stored",
        file: "agent/exporters/src/clickhouse/answer.rs",
        from: "code.is_none() && said.is_empty() {",
        to: "code.is_none() {",
        target: unit(
            "exporters",
            "clickhouse::answer::tests::only_an_empty_answer_of_clickhouse_says_that_rows_are_stored",
        ),
    },
    Fault {
        name: "clickhouse: whoever answers is ClickHouse",
        file: "agent/exporters/src/clickhouse/answer.rs",
        from: "return Err(of_a_stranger(address, *status, &said));",
        to: "drop(of_a_stranger(address, *status, &said));",
        target: unit(
            "exporters",
            "clickhouse::answer::tests::only_an_empty_answer_of_clickhouse_says_that_rows_are_stored",
        ),
    },
    Fault {
        name: "clickhouse: an answer comes before rows are stored",
        file: "agent/exporters/src/clickhouse/insert.rs",
        from: "(\"wait_end_of_query\", \"1\")",
        to: "(\"wait_end_of_query\", \"0\")",
        target: unit(
            "exporters",
            "clickhouse::tests::records_come_before_their_batches_and_a_login_in_headers",
        ),
    },
    Fault {
        name: "clickhouse: rows wait in the server's memory",
        file: "agent/exporters/src/clickhouse/insert.rs",
        from: "(\"async_insert\", \"0\")",
        to: "(\"async_insert\", \"1\")",
        target: unit(
            "exporters",
            "clickhouse::tests::records_come_before_their_batches_and_a_login_in_headers",
        ),
    },
    Fault {
        name: "clickhouse: a batch is there before its records",
        file: "agent/exporters/src/clickhouse.rs",
        from: "for table in flows.into_iter().chain([Table::Batches]) {",
        to: "for table in [Table::Batches].into_iter().chain(flows) {",
        target: unit(
            "exporters",
            "clickhouse::tests::records_come_before_their_batches_and_a_login_in_headers",
        ),
    },
    Fault {
        name: "clickhouse: a batch that is refused alone is stored",
        file: "agent/exporters/src/clickhouse.rs",
        from: "refused += 1;\n                    fates[start] = Err(why);",
        to: "refused += 1;\n                    fates[start] = Ok(drop(why));",
        target: unit(
            "exporters",
            "clickhouse::tests::batches_that_are_refused_are_refused_alone",
        ),
    },
];
