//! Criterion benches over the flow path; each is a file of its own under `benches/`.
