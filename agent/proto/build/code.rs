//! Generates Rust from the catalogue: how a record is written, read and checked, and its columns.

use std::fmt::Write as _;

use crate::catalogue::{Catalogue, Column, Field, Kind, Owner, Source};

/// Types that read records, without the code that fills them: see `src/batch/reader.rs`.
pub fn reader(catalogue: &Catalogue) -> String {
    let mut out = String::new();
    for (message, fields) in messages(catalogue) {
        let arms = |of: &dyn Fn(&Field) -> Option<String>| -> String {
            let arms = fields.iter().filter_map(|field| {
                let value = of(field)?;
                Some(format!("            {} => {value},\n", field.number))
            });
            arms.collect()
        };
        let varints = arms(&|field| {
            let value = match field.kind {
                Kind::Number => "value as u32",
                Kind::Counter | Kind::Id => "value",
                Kind::Flag => "value != 0",
                Kind::Enum(_) => "(value as u32).cast_signed()",
                _ => return None,
            };
            let value = if field.is_optional {
                format!("Some({value})")
            } else {
                value.to_owned()
            };
            Some(format!("self.{} = {value}", field.name))
        });
        let times = arms(&|field| {
            (field.kind == Kind::Time).then(|| format!("self.{} = value", field.name))
        });
        let lengths = arms(&|field| {
            let name = &field.name;
            Some(match field.kind {
                Kind::Address | Kind::Digest => format!("self.{name} = bytes.slice(range)"),
                Kind::Numbers => format!("numbers(&bytes[range], &mut self.{name})?"),
                Kind::Message(_) => {
                    format!("read_message(bytes, range, self.{name}.get_or_insert_default())?")
                }
                _ => return None,
            })
        });
        let fixed64 = if times.is_empty() {
            "    fn fixed64(&mut self, _: u32, _: u64) -> Option<()> {\n        None\n    }\n"
                .to_owned()
        } else {
            format!(
                "    #[inline]\n    fn fixed64(&mut self, number: u32, value: u64) -> Option<()> {{\n        match number \
                 {{\n{times}            _ => return None,\n        }}\n        Some(())\n    }}\n"
            )
        };
        write!(
            out,
            "impl ReadFields for {message} {{\n    #[inline]\n    fn varint(&mut self, number: u32, value: u64) -> \
             Option<()> {{\n        match number {{\n{varints}            _ => return None,\n        }}\n        \
             Some(())\n    }}\n\n{fixed64}\n    #[inline]\n    fn length(&mut self, number: u32, bytes: &Bytes, range: \
             Range<usize>) -> Option<()> {{\n        match number {{\n{lengths}            _ => return None,\n        \
             }}\n        Some(())\n    }}\n}}\n\n"
        )
        .expect("a string grows");
    }
    out
}

fn messages(catalogue: &Catalogue) -> [(&'static str, &[Field]); 2] {
    [
        (crate::catalogue::RECORD, &catalogue.record),
        (crate::catalogue::ENDPOINT, &catalogue.endpoint),
    ]
}

/// The record before it is encoded, with a place for each value, and its writer: see `src/batch/record_buffer.rs`.
pub fn record(catalogue: &Catalogue) -> String {
    let mut out = String::new();
    for (message, fields) in messages(catalogue) {
        let name = plain_name(message);
        let doc = match name {
            "Fields" => "The fields of a record, each with a place for its value.",
            _ => "The fields of one end.",
        };
        writeln!(
            out,
            "/// {doc} `flow.proto` describes the fields of `{message}`.\n#[derive(Clone, Copy, Debug, Default, PartialEq, \
             Eq)]\npub struct {name} {{"
        )
        .expect("a string grows");
        for field in fields {
            let plain = plain_type(field);
            writeln!(out, "    pub {}: {plain},", field.name).expect("a string grows");
        }
        out.push_str("}\n\n");
    }
    out
}

/// An endpoint without a value.
pub fn no_end(catalogue: &Catalogue) -> String {
    let fields = catalogue.endpoint.iter().map(|field| {
        let value = match field.kind {
            _ if field.is_optional => "None",
            Kind::Flag => "false",
            Kind::Address | Kind::Digest => "Bytes::new()",
            Kind::Numbers => "Vec::new()",
            Kind::Message(_) | Kind::Text => unreachable!("an endpoint has neither"),
            _ => "0",
        };
        format!("    {}: {value},\n", field.name)
    });
    format!(
        "/// An end of a record that names none.\nstatic NO_END: Endpoint = Endpoint {{\n{}}};\n",
        fields.collect::<String>()
    )
}

/// The message that a record becomes, made without regard to speed.
pub fn message(catalogue: &Catalogue) -> String {
    let mut out = String::new();
    for (message, fields) in messages(catalogue) {
        let name = plain_name(message);
        let lines = fields.iter().map(|field| {
            let Field { name, .. } = field;
            let value = match field.kind {
                Kind::Address => format!("Bytes::copy_from_slice(fields.{name}.as_bytes())"),
                Kind::Digest if !field.enrich.is_empty() => format!(
                    "if fields.{name} == [0; 20] {{ Bytes::new() }} else {{ \
                     Bytes::copy_from_slice(&fields.{name}) }}"
                ),
                Kind::Digest => format!("Bytes::copy_from_slice(&fields.{name})"),
                Kind::Numbers => format!("fields.{name}.numbers().collect()"),
                Kind::Message(_) => format!("Some((&fields.{name}).into())"),
                Kind::Enum(_) if field.is_optional => format!("fields.{name}.map(Into::into)"),
                Kind::Enum(_) => format!("fields.{name}.into()"),
                _ => format!("fields.{name}"),
            };
            format!("            {name}: {value},\n")
        });
        write!(
            out,
            "impl From<&{name}> for crate::{message} {{\n    fn from(fields: &{name}) -> Self {{\n        Self {{\n{}        \
             }}\n    }}\n}}\n\n",
            lines.collect::<String>()
        )
        .expect("a string grows");
    }
    out
}

/// Writes the fields that most records have in the order of their numbers, then those of `--enrich`.
pub fn writer(catalogue: &Catalogue) -> String {
    let mut out = String::from("impl Writer<'_> {\n");
    for (message, fields) in messages(catalogue) {
        let mut fields: Vec<_> = fields.iter().collect();
        fields.sort_by_key(|field| field.number);
        let name = plain_name(message);
        let function = if name == "Fields" { "record" } else { "end" };
        let (usual, rare): (Vec<_>, Vec<_>) =
            fields.into_iter().partition(|one| one.enrich.is_empty());
        write!(
            out,
            "    #[inline(always)]\n    fn {function}(&mut self, fields: &{name}) {{\n{}        if is_{function}_annotated(fields) \
             {{\n            self.len = put_{function}_annotations(self.bytes, self.len, fields);\n        }}\n    }}\n\n",
            usual.iter().map(|field| put(field)).collect::<String>()
        )
        .expect("a string grows");
        write!(
            out,
            "    #[inline(always)]\n    fn {function}_annotations(&mut self, fields: &{name}) {{\n{}    }}\n\n",
            rare.iter().map(|field| put(field)).collect::<String>()
        )
        .expect("a string grows");
    }
    out.push_str("}\n\n");
    for (message, fields) in messages(catalogue) {
        let name = plain_name(message);
        let function = if name == "Fields" { "record" } else { "end" };
        let tests: Vec<_> = fields
            .iter()
            .filter(|field| !field.enrich.is_empty())
            .map(is_there)
            .map(|test| format!("({test})"))
            .collect();
        write!(
            out,
            "#[allow(clippy::needless_bitwise_bool, reason = \"most records have none of these, so \
             that all tests are made\")]\n#[inline(always)]\nfn is_{function}_annotated(fields: &{name}) -> bool {{\n    {}\n}}\n\n/// Writes what few \
             records have. Returns the offset behind it.\n#[cold]\nfn put_{function}_annotations(bytes: &mut Room, at: usize, \
             fields: &{name}) -> usize {{\n    let mut writer = Writer {{ bytes, len: at }};\n    \
             writer.{function}_annotations(fields);\n    writer.len\n}}\n\n",
            tests.join("\n        | ")
        )
        .expect("a string grows");
    }
    out
}

fn plain_name(message: &str) -> &'static str {
    if message == crate::catalogue::RECORD {
        "Fields"
    } else {
        "EndFields"
    }
}

fn plain_type(field: &Field) -> String {
    let plain = match &field.kind {
        Kind::Number => "u32".to_owned(),
        Kind::Counter | Kind::Id | Kind::Time => "u64".to_owned(),
        Kind::Flag => "bool".to_owned(),
        Kind::Address => "Address".to_owned(),
        Kind::Digest => "[u8; 20]".to_owned(),
        Kind::Numbers => "VlanIds".to_owned(),
        Kind::Enum(name) => format!("crate::{name}"),
        Kind::Message(_) => "EndFields".to_owned(),
        Kind::Text => unreachable!("a record has no text"),
    };
    if field.is_optional {
        format!("Option<{plain}>")
    } else {
        plain
    }
}

/// Whether a field is written.
fn is_there(field: &Field) -> String {
    let name = &field.name;
    match &field.kind {
        _ if field.is_optional => format!("fields.{name}.is_some()"),
        Kind::Flag => format!("fields.{name}"),
        Kind::Address => format!("!fields.{name}.is_empty()"),
        Kind::Digest => format!("fields.{name} != [0; 20]"),
        Kind::Enum(of_type) => format!("fields.{name} != crate::{of_type}::Unspecified"),
        _ => format!("fields.{name} != 0"),
    }
}

fn put(field: &Field) -> String {
    let Field { name, number, .. } = field;
    let value = format!("fields.{name}");
    // Fields whose usual values take one byte.
    let is_short = match field.kind {
        Kind::Flag | Kind::Enum(_) => true,
        Kind::Number => field.limit.is_some_and(|limit| limit <= u8::MAX.into()),
        _ => false,
    };
    if field.is_optional && matches!(field.kind, Kind::Number | Kind::Id | Kind::Enum(_)) {
        let method = if is_short { "short_value" } else { "value" };
        let cast = match field.kind {
            Kind::Id => "",
            Kind::Number => ".into()",
            _ => " as u64",
        };
        return format!(
            "        if let Some(value) = {value} {{\n            self.{method}::<{number}>(value{cast});\n        }}\n"
        );
    }
    if field.kind == Kind::Digest && !field.enrich.is_empty() {
        return format!(
            "        if {} {{\n            self.bytes::<{number}>(&{value});\n        }}\n",
            is_there(field)
        );
    }
    let count = if is_short { "short_count" } else { "count" };
    let put = match &field.kind {
        Kind::Enum(_) => format!("{count}::<{number}>({value} as u64)"),
        Kind::Number | Kind::Flag => format!("{count}::<{number}>({value}.into())"),
        Kind::Counter | Kind::Id => format!("{count}::<{number}>({value})"),
        Kind::Time => format!("fixed64::<{number}>({value})"),
        Kind::Address => format!("address::<{number}>(&{value})"),
        Kind::Digest => format!("bytes::<{number}>(&{value})"),
        Kind::Numbers => format!("vlan_ids::<{number}>({value})"),
        Kind::Message(_) => format!("endpoint::<{number}>(&{value})"),
        Kind::Text => unreachable!("a record has no text"),
    };
    format!("        self.{put};\n")
}

/// The limits of fields as constants: see `src/limits.rs`.
pub fn limits(catalogue: &Catalogue) -> String {
    let all = [&catalogue.record, &catalogue.endpoint, &catalogue.referred];
    let limited = all
        .into_iter()
        .flatten()
        .filter_map(|field| Some((&field.name, field.limit?)));
    let constants = limited.map(|(name, limit)| {
        format!(
            "/// The highest `{name}`.\npub const MAX_{}: u64 = {};\n",
            name.to_uppercase(),
            separated(limit)
        )
    });
    constants.collect()
}

/// Checks that every number is within its limit: see `src/batch/validity.rs`.
pub fn checks(catalogue: &Catalogue) -> String {
    let mut out = String::new();
    for (message, fields) in messages(catalogue) {
        let function = if message == crate::catalogue::RECORD {
            "check_record_numbers"
        } else {
            "check_end_numbers"
        };
        write!(
            out,
            "#[inline]\nfn {function}(fields: &{message}, place: Place<'_>) -> Result<(), Invalid> {{\n"
        )
        .expect("a string grows");
        for field in fields {
            let name = &field.name;
            let limit = match (field.limit, &field.kind) {
                (Some(_), _) => format!("limits::MAX_{}", name.to_uppercase()),
                (None, Kind::Counter) => "limits::MAX_COUNTER".to_owned(),
                (None, _) => continue,
            };
            let line = match field.kind {
                Kind::Number if field.is_optional => {
                    format!(
                        "place.at_most(\"{name}\", fields.{name}.unwrap_or_default().into(), {limit})?"
                    )
                }
                Kind::Numbers => format!("place.numbers(\"{name}\", &fields.{name}, {limit})?"),
                Kind::Counter => format!("place.at_most(\"{name}\", fields.{name}, {limit})?"),
                _ => format!("place.at_most(\"{name}\", fields.{name}.into(), {limit})?"),
            };
            writeln!(out, "    {line};").expect("a string grows");
        }
        out.push_str("    Ok(())\n}\n\n");
    }
    out
}

/// A number with its digits in groups.
fn separated(number: u64) -> String {
    let digits = number.to_string();
    let places = digits.char_indices().map(|(place, digit)| {
        let is_group = place > 0 && (digits.len() - place).is_multiple_of(3);
        let separator = if is_group && digits.len() > 4 {
            "_"
        } else {
            ""
        };
        format!("{separator}{digit}")
    });
    places.collect()
}

/// The table of columns, and the visit of a row's values.
pub fn columns(catalogue: &Catalogue) -> String {
    let mut out = String::new();
    for (name, values) in &catalogue.enums {
        let prefix = format!("{}_", shouted(name));
        let arms = values.iter().map(|value| {
            let short = value.strip_prefix(&prefix).unwrap_or(value);
            let text = match short {
                "UNSPECIFIED" => "unknown".to_owned(),
                _ => short.to_lowercase(),
            };
            format!("            Self::{} => \"{text}\",\n", camel(short))
        });
        write!(
            out,
            "impl crate::{name} {{\n    /// The name for people and programs.\n    pub const fn name(self) -> &'static str \
             {{\n        match self {{\n{}        }}\n    }}\n}}\n\n",
            arms.collect::<String>()
        )
        .expect("a string grows");
    }
    let columns = &catalogue.columns;
    let mut table = String::new();
    let mut visits = String::new();
    for (number, column) in columns.iter().enumerate() {
        let (kind, result, value) = of_column(column);
        writeln!(
            out,
            "#[inline]\nfn column_{number}{}) -> {result} {{\n    {value}\n}}\n",
            if result.contains("'a") {
                "<'a>(row: &Row<'a>"
            } else {
                "(row: &Row<'_>"
            },
        )
        .expect("a string grows");
        let Column { field, name, .. } = column;
        let end = match column.owner {
            Owner::End(end, _) => format!("Some({end})"),
            Owner::Record | Owner::Interface => "None".to_owned(),
        };
        let values = match column.field.kind {
            Kind::Number => format!(
                "Values::Number {{ bits: {}, is_required: {}, of: column_{number} }}",
                column.bits(),
                column.is_required()
            ),
            Kind::Address => format!(
                "Values::Address {{ is_required: {}, of: column_{number} }}",
                column.is_required()
            ),
            _ => format!("Values::{kind}(column_{number})"),
        };
        writeln!(
            table,
            "    Column {{\n        name: \"{name}\",\n        json_key: \",\\\"{}\\\":\",\n        otlp: &{:?},\n        \
             element: {:?},\n        end: {end},\n        is_left_out: {},\n        is_enriched: {},\n        values: {values},\n    }},",
            name,
            column.otlp,
            column.element,
            field.is_left_out,
            !field.enrich.is_empty(),
        )
        .expect("a string grows");
        let visit = match column.field.kind {
            Kind::Number => "number",
            Kind::Counter => "counter",
            Kind::Id => "id",
            Kind::Flag => "flag",
            Kind::Time => "time",
            Kind::Address => "address",
            Kind::Digest => "digest",
            Kind::Numbers => "numbers",
            Kind::Text | Kind::Enum(_) => "text",
            Kind::Message(_) => unreachable!("a message is no column"),
        };
        writeln!(visits, "    out.{visit}::<{number}>(column_{number}(row));")
            .expect("a string grows");
    }
    write!(
        out,
        "/// The columns of a flow, in the order of `flow.proto`.\npub static COLUMNS: [Column; {}] = [\n{table}];\n\n/// \
         Calls `out` with every value of a row, in the order of [`COLUMNS`].\n#[allow(clippy::too_many_lines, reason = \"a line for each column\")]\n#[inline]\npub fn visit<'a>(row: &Row<'a>, out: \
         &mut impl Visitor<'a>) {{\n{visits}}}\n",
        columns.len()
    )
    .expect("a string grows");
    out
}

/// The variant of `Values`, and the type and value of a column's function.
fn of_column(column: &Column) -> (&'static str, &'static str, String) {
    let Field {
        name,
        kind,
        is_optional,
        ..
    } = &column.field;
    let (end, owner) = match column.owner {
        Owner::Record => (String::new(), "row.record".to_owned()),
        Owner::Interface => (String::new(), "row.interface".to_owned()),
        Owner::End(end, owner) => {
            let end = format!("row.ends[{end}]");
            (end.clone(), format!("{end}.{owner}"))
        }
    };
    let is_sure = matches!(column.owner, Owner::Record | Owner::End(_, "end"));
    let value = format!("{owner}.{name}");
    match kind {
        Kind::Number if column.source == Source::Key => {
            ("Number", "Option<u32>", format!("{end}.{name}()"))
        }
        Kind::Number if !is_sure && *is_optional => {
            ("Number", "Option<u32>", format!("{owner}?.{name}"))
        }
        Kind::Number if !is_sure => ("Number", "Option<u32>", format!("Some({owner}?.{name})")),
        Kind::Number if *is_optional => ("Number", "Option<u32>", value),
        Kind::Number => ("Number", "Option<u32>", format!("Some({value})")),
        Kind::Counter => ("Counter", "u64", value),
        Kind::Id => ("Id", "Option<u64>", value),
        Kind::Flag => ("Flag", "bool", value),
        Kind::Time => ("Time", "u64", value),
        Kind::Address => ("Address", "&'a [u8]", format!("&{value}")),
        Kind::Digest => ("Digest", "&'a [u8]", format!("&{value}")),
        Kind::Numbers => ("Numbers", "&'a [u32]", format!("&{value}")),
        Kind::Text => (
            "Text",
            "Option<&'a str>",
            format!("Some({owner}?.{name}.as_str()).filter(|text| !text.is_empty())"),
        ),
        Kind::Enum(kind) if *is_optional => (
            "Text",
            "Option<&'a str>",
            format!("Some(crate::{kind}::try_from({value}?).unwrap_or_default().name())"),
        ),
        Kind::Enum(kind) => {
            let known = format!("crate::{kind}::try_from({value}).unwrap_or_default()");
            let text = match column.source {
                Source::With(other) => format!("{end}.{other}.map(|_| {known}.name())"),
                Source::Field | Source::Key => format!(
                    "Some({known})\n        .filter(|one| *one != crate::{kind}::Unspecified)\n        \
                     .map(crate::{kind}::name)"
                ),
            };
            ("Text", "Option<&'a str>", text)
        }
        Kind::Message(_) => unreachable!("a message is no column"),
    }
}

/// `END_REASON` for `EndReason`.
pub fn shouted(name: &str) -> String {
    let mut shouted = String::new();
    for (place, letter) in name.char_indices() {
        if place > 0 && letter.is_uppercase() {
            shouted.push('_');
        }
        shouted.push(letter.to_ascii_uppercase());
    }
    shouted
}

/// `IpInIp` for `IP_IN_IP`.
fn camel(name: &str) -> String {
    let words = name.split('_').map(|word| {
        let (first, rest) = word.split_at(1);
        format!("{first}{}", rest.to_lowercase())
    });
    words.collect()
}
