//! What instances may be on this host, and what they do not see of the appliance.

use std::path::PathBuf;

use ::control::controllers::revision::policy::{InstanceRules, ProcessInstances};
use ::control::runtime::may_mount;

use crate::config::{Config, ProcessRule};

/// Where the API is on loopback, whoever writes a manifest is on this host, and is trusted with it as before. Elsewhere
/// manifests are other people's: their instances have no rights on this host that no role gives them.
pub(super) fn rules(config: &Config) -> InstanceRules {
    let guarded = config.kubeconfig.is_some() || config.api_authenticate || !config.api.ip().is_loopback();
    let processes = match config.process_instances {
        Some(ProcessRule::Deny) => ProcessInstances::Deny,
        Some(ProcessRule::AllowList) => ProcessInstances::AllowList,
        Some(ProcessRule::Allow) => ProcessInstances::Allow,
        // Without root an instance is the appliance's own user, which reads all that the appliance keeps.
        None if guarded && !may_mount() => ProcessInstances::AllowList,
        None => ProcessInstances::Allow,
    };
    InstanceRules { processes, user: config.instance_user.map(|rule| (rule.user, rule.group)), guarded }
}

/// The data folder, and what else says who somebody is or takes orders without asking.
pub(super) fn masked(config: &Config) -> Vec<PathBuf> {
    let files = [&config.api_socket, &config.api_tokens, &config.kubeconfig];
    let all = files.into_iter().flatten().chain([&config.data]);
    all.map(|path| std::path::absolute(path).unwrap_or_else(|_| path.clone())).collect()
}
