//! Settings from a file, the environment and options: which is in force, what is told about a bad one, and what
//! a running agent takes over.

mod full_load;
mod layers;
mod reload;
