//! Settings from a file, the environment and options: precedence, errors, and reloads by a running agent.

mod full_load;
mod layers;
mod reload;
