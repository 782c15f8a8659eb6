//! The project's chores, one subcommand each.

mod apt;
mod bench;
mod clients;
mod consumers;
mod count;
mod demo;
mod deny;
mod dist;
#[path = "../../agent/kernel/build/ebpf_toolchain.rs"]
mod ebpf_toolchain;
mod fuzz;
mod kernels;
mod linker;
mod mutants;
mod run;
mod service;
mod setup;
mod soak;
mod test;
mod workspace;

use std::process::ExitCode;

use clap::Parser;

#[derive(Parser)]
#[command(bin_name = "cargo xtask", about = "The project's chores")]
enum Task {
    /// Install what is missing to build, run and test.
    Setup,
    /// Set up, build and run the agent, showing live flows as a table.
    Run(run::Arguments),
    /// Set up, check format, lints and documentation, run every test; the last line counts.
    Test(test::Arguments),
    /// Look for frames that break the parser, or that the kernel reads differently.
    Fuzz(fuzz::Arguments),
    /// Run the tests that need a kernel on other kernels, in virtual machines.
    TestKernels(kernels::Arguments),
    /// Run the tests against foreign programs whose set-up takes minutes, such as an OpenTelemetry Collector.
    TestConsumers(consumers::Arguments),
    /// Kill fifty agents, two collectors and a broker of Kafka at random: nothing is missing afterwards
    TestDelivery,
    /// Install the Debian package under a systemd of its own, and see that the service holds.
    TestService(service::Arguments),
    /// Put faults into the sources, one at a time, and see that a test fails.
    Mutants(mutants::Arguments),
    /// Look at the dependencies: licences, duplicate versions, sources.
    Deny,
    /// Put the agent under every load at once for some minutes: nothing may grow or be left behind.
    Soak(soak::Arguments),
    /// Show the agent at work on traffic between two network namespaces.
    Demo(demo::Arguments),
    /// Build the Debian package and the tarball, with checksums, into target/dist.
    Dist,
    /// Measure what the agent costs on real packets; `bench --help` says what there is.
    Bench(bench::Arguments),
    /// Make the pages and plots about overhead from the result files.
    Report,
}

fn main() -> ExitCode {
    let outcome = match Task::parse() {
        Task::Setup => setup::report(),
        Task::Run(arguments) => run::run(&arguments),
        Task::Test(arguments) => Ok(test::test(&arguments)),
        Task::Fuzz(arguments) => fuzz::fuzz(&arguments),
        Task::TestKernels(arguments) => kernels::test(&arguments),
        Task::TestConsumers(arguments) => consumers::test(&arguments),
        Task::TestDelivery => consumers::test_delivery(),
        Task::TestService(arguments) => service::test(&arguments),
        Task::Mutants(arguments) => mutants::mutants(&arguments),
        Task::Deny => deny::deny(),
        Task::Soak(arguments) => soak::soak(&arguments),
        Task::Demo(arguments) => demo::demo(&arguments),
        Task::Dist => dist::dist(),
        Task::Bench(arguments) => bench::bench(&arguments),
        Task::Report => bench::report(),
    };
    outcome.unwrap_or_else(|error| {
        eprintln!("error: {error:#}");
        ExitCode::FAILURE
    })
}
