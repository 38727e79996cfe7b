//! Keeps a container from abstract Unix sockets of the host, which belong to the network namespace that they share.
//!
//! Landlock's scopes, from Linux 6.12. An older kernel has none, and the container's log says so. Signals need none: the pid
//! namespace keeps them. A process that enters the container later has a scope of its own, beside the container's: it reaches
//! neither the host's such sockets nor the container's, and does not trace the container's processes.

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
