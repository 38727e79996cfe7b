//! The groups and versions of the kinds in a registry, and the paths that they are served under.

use types::crd::versions::version_order;
use types::kind_registry::{KindEntry, KindMeta, KindRegistry};

/// The kinds' named groups, each once, in the registry's order.
pub(super) fn groups(registry: &KindRegistry) -> Vec<&'static str> {
    let mut groups = Vec::new();
    for entry in &registry.entries {
        if !entry.meta.group.is_empty() && !groups.contains(&entry.meta.group) {
            groups.push(entry.meta.group);
        }
    }
    groups
}

/// A group's versions, each once, in the order of their rank; the first one is preferred.
pub(super) fn versions(registry: &KindRegistry, group: &str) -> Vec<&'static str> {
    let mut versions = Vec::new();
    for entry in registry.entries.iter().filter(|entry| entry.meta.group == group) {
        if !versions.contains(&entry.meta.version) {
            versions.push(entry.meta.version);
        }
    }
    versions.sort_by_key(|version| version_order(version));
    versions
}

pub(super) fn kinds<'a>(
    registry: &'a KindRegistry,
    group: &'a str,
    version: &'a str,
) -> impl Iterator<Item = &'a KindEntry> + 'a {
    let wanted = move |entry: &&KindEntry| entry.meta.group == group && entry.meta.version == version;
    registry.entries.iter().filter(wanted)
}

/// `apis/GROUP/VERSION`, or `api/v1`: where a kind's version lives.
pub(super) fn root(meta: &KindMeta) -> String {
    let at = if meta.group.is_empty() { "api" } else { "apis" };
    format!("{at}/{}", meta.api_version())
}
