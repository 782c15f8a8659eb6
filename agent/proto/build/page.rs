//! Generates what people read: the table of docs/fields.md, and the columns of deploy/clickhouse/flows.sql.

use std::fmt::Write as _;

use crate::catalogue::{Catalogue, Column, Kind, Owner};

/// The table, with one row for each field; both ends share a row.
pub fn table(catalogue: &Catalogue) -> String {
    let mut out = String::from(
        "| column | type | OTLP attribute | IPFIX element | meaning |\n|---|---|---|---|---|\n",
    );
    let columns = &catalogue.columns;
    for (place, column) in columns.iter().enumerate() {
        let other = match column.owner {
            Owner::End(0, _) => Some(&columns[place + 1]),
            Owner::End(..) => continue,
            Owner::Record | Owner::Interface => None,
        };
        let both = || std::iter::once(column).chain(other);
        let names: Vec<_> = both().map(|one| format!("`{}`", one.name)).collect();
        let keys: Vec<_> = both()
            .flat_map(|one| &one.otlp)
            .map(|key| format!("`{key}`"))
            .collect();
        let meaning = meaning(column).replace('|', "\\|");
        writeln!(
            out,
            "| {} | {} | {} | {} | {meaning} |",
            names.join(", "),
            file_type(column),
            keys.join(", "),
            column.field.ipfix_text,
        )
        .expect("a string grows");
    }
    out
}

/// The first paragraph of the comment.
pub fn meaning(column: &Column) -> String {
    let field = &column.field;
    let first = field.meaning.split("\n-").next().unwrap_or_default();
    let mut meaning = first.trim().replace('\n', " ");
    if !field.enrich.is_empty() {
        let kinds = field.enrich.split(", ").map(|kind| format!("`{kind}`"));
        let kinds = kinds.collect::<Vec<_>>().join(" or ");
        write!(meaning, " With `--enrich` {kinds}.").expect("a string grows");
    }
    meaning
}

/// The type in a Parquet file.
fn file_type(column: &Column) -> String {
    match column.field.kind {
        Kind::Number => format!("UINT{}", column.bits()),
        Kind::Counter | Kind::Id => "UINT64".to_owned(),
        Kind::Flag => "BOOLEAN".to_owned(),
        Kind::Time => "TIMESTAMP".to_owned(),
        Kind::Numbers => "list of UINT16".to_owned(),
        Kind::Address | Kind::Digest | Kind::Text | Kind::Enum(_) => "STRING".to_owned(),
        Kind::Message(_) => unreachable!("a message is no column"),
    }
}

/// The columns of the table of flows in ClickHouse.
pub fn sql(catalogue: &Catalogue) -> String {
    let mut out = String::new();
    for column in &catalogue.columns {
        let is_optional = column.field.is_optional
            || matches!(column.owner, Owner::End(_, "cgroup" | "process" | "host"));
        let bare = match column.field.kind {
            Kind::Number => format!("UInt{}", column.bits()),
            Kind::Counter | Kind::Id => "UInt64".to_owned(),
            Kind::Flag => "Bool".to_owned(),
            Kind::Time => "DateTime64(9, 'UTC') CODEC(Delta, ZSTD)".to_owned(),
            Kind::Address if column.is_required() => "IPv6".to_owned(),
            Kind::Address => "Nullable(IPv6)".to_owned(),
            Kind::Digest => "String".to_owned(),
            Kind::Numbers => "Array(UInt16)".to_owned(),
            // Names of hosts are too many for a dictionary.
            Kind::Text if matches!(column.owner, Owner::End(_, "host")) => "String".to_owned(),
            // Not an Enum: an insert must not fail if a later agent sends a new value.
            Kind::Text | Kind::Enum(_) => "LowCardinality(String)".to_owned(),
            Kind::Message(_) => unreachable!("a message is no column"),
        };
        let of_type = match column.field.kind {
            Kind::Number | Kind::Id if is_optional => format!("Nullable({bare})"),
            _ => bare,
        };
        writeln!(out, "    {} {of_type},", column.name).expect("a string grows");
    }
    out
}
