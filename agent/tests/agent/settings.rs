//! Settings from a file, the environment and options: which is in force, and what is told about a bad
//! one.

mod layers;
