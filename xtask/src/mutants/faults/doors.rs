//! Faults in who is let in.

use super::{Fault, unit};

pub(super) const FAULTS: &[Fault] = &[
    Fault {
        name: "any token of the right length is ours",
        file: "agent/src/token.rs",
        from: "token.as_bytes().ct_eq(shown.as_bytes())",
        to: "token.len().ct_eq(&shown.len())",
        target: unit("token::tests::every_byte_of_a_token_counts"),
    },
    Fault {
        name: "a call without a token is admitted",
        file: "agent/src/token.rs",
        from: "headers.get(AUTHORIZATION).ok_or(Unknown::NotShown)?;",
        to: "headers.get(AUTHORIZATION); let Some(shown) = shown else { return Ok(()) };",
        target: unit(
            "token::tests::a_call_is_admitted_with_any_of_the_tokens_and_with_nothing_else",
        ),
    },
];
