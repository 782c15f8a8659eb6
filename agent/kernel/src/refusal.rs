//! Explains in one line why the kernel refused a program and what to do. The whole verifier log goes to our log at
//! level debug.

use std::io;

use anyhow::anyhow;
use aya::programs::ProgramError;

use super::capabilities::{CAP_BPF, CAP_NET_ADMIN, CAP_PERFMON, Capabilities};

/// Why the program `name` could not be loaded.
pub fn explain(name: &str, error: ProgramError) -> anyhow::Error {
    let ProgramError::LoadError {
        io_error,
        verifier_log,
    } = error
    else {
        return anyhow!(error).context(format!("load the program {name}"));
    };
    explain_log(name, io_error, &verifier_log.to_string())
}

/// Explains an error that comes with the verifier's log.
pub fn explain_log(name: &str, error: io::Error, log: &str) -> anyhow::Error {
    tracing::debug!(program = name, log, "the verifier's log");
    let error = anyhow!(error);
    let capabilities = Capabilities::of_this_process();
    let Some(reason) = reason(log) else {
        let what = format!("load the program {name}{}", hardened());
        let lacking = capabilities.map_or_else(|_| Vec::new(), lacking);
        return if lacking.is_empty() {
            error.context(what)
        } else {
            error.context(what).context(format!(
                "this process lacks {}: run as root, or with the capabilities CAP_BPF, CAP_NET_ADMIN and CAP_PERFMON",
                lacking.join(" and ")
            ))
        };
    };
    if capabilities.is_ok_and(|capabilities| !capabilities.has_or_is_admin(CAP_PERFMON)) {
        return error.context(format!(
            "the kernel's verifier refuses the program {name} to a process without CAP_PERFMON: run \
             as root, or with the capabilities CAP_BPF, CAP_NET_ADMIN and CAP_PERFMON ({reason})"
        ));
    }
    error.context(format!(
        "the kernel's verifier refuses the program {name}: {reason} (FLOW_AGENT_LOG=debug shows its whole \
         log; please report it with the kernel's version)"
    ))
}

/// A hint if the kernel's JIT compiler, which has no log, may have refused a program.
fn hardened() -> &'static str {
    let harden = std::fs::read_to_string("/proc/sys/net/core/bpf_jit_harden");
    // With 1 the kernel hardens only programs that other users load.
    if harden.is_ok_and(|value| value.trim() == "2") {
        " (net.core.bpf_jit_harden is 2: if the JIT compiler refuses it for that, set the sysctl to 1)"
    } else {
        ""
    }
}

fn lacking(capabilities: Capabilities) -> Vec<&'static str> {
    let needed = [
        (CAP_BPF, "CAP_BPF"),
        (CAP_NET_ADMIN, "CAP_NET_ADMIN"),
        (CAP_PERFMON, "CAP_PERFMON"),
    ];
    let lacks = |&(capability, _): &(u32, _)| !capabilities.has_or_is_admin(capability);
    let lacking = needed.into_iter().filter(lacks);
    lacking.map(|(_, name)| name).collect()
}

/// The last line of the log that is neither statistics nor of a function that the verifier accepts.
fn reason(log: &str) -> Option<&str> {
    const OTHERS: [&str; 6] = [
        "verification time",
        "stack depth",
        "processed",
        // From 7.3 on, or earlier, for each subprogram.
        "subprog ",
        // For each global function (`do_check_subprogs`, from 6.8 on).
        "Validating ",
        "Func#",
    ];
    log.lines()
        .map(str::trim)
        .rfind(|line| !line.is_empty() && !OTHERS.iter().any(|start| line.starts_with(start)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reason_is_the_line_before_the_statistics() {
        let log = "1: (bf) r2 = r0\nR2 pointer -= pointer prohibited\nverification time 9 usec\n\
                   stack depth 192+0\nprocessed 297 insns (limit 1000000)\n";
        assert_eq!(reason(log), Some("R2 pointer -= pointer prohibited"));
        let later = "BPF program is too large. Processed 1000001 insn\nverification time 9 usec\n\
                     stack depth 192+0\n\
                     subprog 7 (closure) static insns_self 0 insns_total 0 stack 0\n\
                     processed 1000001 insns (limit 1000000)\n";
        let too_large = "BPF program is too large. Processed 1000001 insn";
        assert_eq!(reason(later), Some(too_large));
        assert_eq!(reason(""), None);
    }

    #[test]
    fn what_the_verifier_accepts_is_no_reason() {
        let accepted = "Validating count() func#1...\nFunc#1 ('count') is safe for any args that match its prototype\n\
                        verification time 9 usec\nstack depth 192+0\nprocessed 297 insns (limit 1000000)\n";
        assert_eq!(reason(accepted), None);
        let later =
            format!("{accepted}Validating fill() func#2...\nR1 invalid mem access 'scalar'\n");
        assert_eq!(reason(&later), Some("R1 invalid mem access 'scalar'"));
    }
}
