//! The privileges of instances on this host, and the paths that are hidden from them.

use std::path::PathBuf;

use ::control::controllers::revision::policy::{InstanceRules, ProcessInstances};
use ::control::runtime::may_mount;

use crate::config::{ProcessRule, RunConfig};

/// Where the API is on loopback, authors of manifests are on this host, and are trusted as before.
/// Elsewhere manifests come from other users: their instances have no rights on this host that no role
/// grants.
pub(super) fn rules(config: &RunConfig) -> InstanceRules {
    let guarded = config.kubeconfig.is_some() || config.api_authenticate || !config.api.ip().is_loopback();
    let processes = match config.process_instances {
        Some(ProcessRule::Deny) => ProcessInstances::Deny,
        Some(ProcessRule::AllowList) => ProcessInstances::AllowList,
        Some(ProcessRule::Allow) => ProcessInstances::Allow,
        // Without root an instance runs as the appliance's own user, which can read all of its files.
        None if guarded && !may_mount() => ProcessInstances::AllowList,
        None => ProcessInstances::Allow,
    };
    InstanceRules { processes, user: config.instance_user.map(|rule| (rule.user, rule.group)), guarded }
}

/// The data folder, and everything else that contains credentials or accepts unauthenticated commands.
pub(super) fn masked(config: &RunConfig) -> Vec<PathBuf> {
    let files = [&config.api_socket, &config.api_tokens, &config.kubeconfig];
    let all = files.into_iter().flatten().chain([&config.data]);
    all.map(|path| std::path::absolute(path).unwrap_or_else(|_| path.clone())).collect()
}
