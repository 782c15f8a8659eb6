//! The messages of flow.proto and the agent's client, as tonic generates them.

pub mod flow {
    #![allow(
        clippy::all,
        clippy::pedantic,
        clippy::allow_attributes_without_reason,
        unused_qualifications,
        reason = "generated from flow.proto"
    )]
    tonic::include_proto!("flow.v1");
}
