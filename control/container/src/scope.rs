//! Keeps a container from abstract Unix sockets of the host, whose network namespace it shares.
//!
//! Landlock's scopes, from Linux 6.12. On an older kernel the container's log says that they are missing. Signals need no scope: the pid
//! namespace isolates them. A process that enters the container later has its own scope, next to the container's: it reaches
//! neither the host's abstract sockets nor the container's, and does not trace the container's processes.

use landlock::{Ruleset, RulesetAttr, RulesetStatus, Scope};

/// From now on this process cannot connect to abstract Unix sockets of other containers and of the host.
pub(crate) fn restrict_self() {
    let restricted = Ruleset::default()
        .scope(Scope::AbstractUnixSocket)
        .and_then(|scoped| scoped.create())
        .and_then(|ruleset| ruleset.restrict_self());
    match restricted {
        Ok(status) if status.ruleset != RulesetStatus::NotEnforced => {}
        Ok(_) => eprintln!(
            "sluicegate: abstract Unix sockets of the host are reachable: they are not scoped before Linux 6.12"
        ),
        Err(why) => eprintln!("sluicegate: abstract Unix sockets of the host are reachable: {why}"),
    }
}
