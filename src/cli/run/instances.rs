//! What instances may do on this host, what is hidden from them, and how they end with the appliance.

use std::path::PathBuf;
use std::time::Duration;

use ::control::autoscaler::Autoscaler;
use ::control::controllers::revision::policy::{InstanceRules, ProcessInstances};
use ::control::controllers::workloads::WorkloadConfig;
use ::control::controllers::workloads::pod_runner::PodRunner;
use ::control::runtime::may_mount;

use crate::config::{ProcessRule, RunConfig, WorkloadRule};

/// Maximum grace period of instances from SIGTERM on when the appliance itself ends: their requests were
/// waited for before, and the operator waits for the end. Remaining ones are killed with their parent.
const INSTANCES_END_MAX: Duration = Duration::from_secs(30);

/// Where the API is on loopback, authors of manifests are on this host, and are trusted as before.
/// Elsewhere manifests come from other users: their instances have no rights on this host that no role
/// grants.
pub(super) fn rules(config: &RunConfig) -> InstanceRules {
    let guarded = config.kubeconfig.is_some() || config.api_authenticate || !config.api.ip().is_loopback();
    let processes = process_instances(config.process_instances, guarded, may_mount());
    InstanceRules { processes, user: config.instance_user.map(|rule| (rule.user, rule.group)), guarded }
}

/// `hides_data`: instances cannot read the data folder.
fn process_instances(rule: Option<ProcessRule>, guarded: bool, hides_data: bool) -> ProcessInstances {
    match rule {
        Some(ProcessRule::Deny) => ProcessInstances::Deny,
        Some(ProcessRule::AllowList) => ProcessInstances::AllowList,
        Some(ProcessRule::Allow) => ProcessInstances::Allow,
        // Without root an instance runs as the appliance's own user, which can read all of its files.
        None if guarded && !hides_data => ProcessInstances::AllowList,
        None => ProcessInstances::Allow,
    }
}

/// The data folder, and everything else that contains credentials or accepts unauthenticated commands.
pub(super) fn masked(config: &RunConfig) -> Vec<PathBuf> {
    let files = [&config.api_socket, &config.api_tokens, &config.kubeconfig];
    let all = files.into_iter().flatten().chain([&config.data]);
    all.map(|path| std::path::absolute(path).unwrap_or_else(|_| path.clone())).collect()
}

/// What runs Pods that clients write.
pub(super) fn workloads(config: &RunConfig, runner: &PodRunner) -> WorkloadConfig {
    WorkloadConfig { runner: runner.clone(), enabled: config.workloads == WorkloadRule::All }
}

/// Ends all instances.
pub(super) async fn end(autoscaler: &Autoscaler, pods: &PodRunner) {
    let ended = async { tokio::join!(autoscaler.shutdown(), pods.shutdown()) };
    if tokio::time::timeout(INSTANCES_END_MAX, ended).await.is_err() {
        tracing::warn!(?INSTANCES_END_MAX, "instances that have not ended by now are killed");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn process_rule_without_root_and_with_callers_is_allow_list() {
        for (guarded, hides_data, wanted) in [
            (true, false, ProcessInstances::AllowList),
            (true, true, ProcessInstances::Allow),
            (false, false, ProcessInstances::Allow),
            (false, true, ProcessInstances::Allow),
        ] {
            assert_eq!(process_instances(None, guarded, hides_data), wanted);
            assert_eq!(process_instances(Some(ProcessRule::Deny), guarded, hides_data), ProcessInstances::Deny);
            assert_eq!(process_instances(Some(ProcessRule::Allow), guarded, hides_data), ProcessInstances::Allow);
        }
    }
}
