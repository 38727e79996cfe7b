//! How the keys of a docker configuration name registries: `ghcr.io`, `https://index.docker.io/v1/`, `*.azurecr.io`,
//! `registry.lan:5000/team`.

/// The name of Docker Hub in docker's configuration.
const DOCKER_HUB_SERVER: &str = "https://index.docker.io/v1/";
const DOCKER_HUB_NAMES: [&str; 3] = ["docker.io", "index.docker.io", "registry-1.docker.io"];

/// The key that `docker login` writes for a registry, and that credential helpers are asked for.
pub(super) fn server_name(registry: &str) -> String {
    if is_docker_hub(registry) { DOCKER_HUB_SERVER.into() } else { registry.into() }
}

fn is_docker_hub(registry: &str) -> bool {
    DOCKER_HUB_NAMES.contains(&registry)
}

/// One key, parsed: host, port and a prefix of the repository.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Pattern {
    host: String,
    port: Option<String>,
    path: String,
}

impl Pattern {
    pub(super) fn new(key: &str) -> Self {
        let rest = key.strip_prefix("https://").or_else(|| key.strip_prefix("http://")).unwrap_or(key);
        let (address, path) = rest.split_once('/').unwrap_or((rest, ""));
        let (host, port) = split_port(address);
        // The versions of the API that `docker login` appends are no part of a repository.
        let path = path.trim_matches('/');
        let path = if matches!(path, "v1" | "v2") { "" } else { path };
        Self { host: host.to_ascii_lowercase(), port: port.map(str::to_owned), path: path.to_owned() }
    }

    /// A longer path is more specific.
    pub(super) fn path_length(&self) -> usize {
        self.path.len()
    }

    /// As the kubelet matches: each label by itself, ports equal if given, and the path as a prefix.
    pub(super) fn matches(&self, registry: &str, repository: &str) -> bool {
        let (host, port) = split_port(registry);
        let host = host.to_ascii_lowercase();
        let hosts = match (is_docker_hub(&self.host), is_docker_hub(&host)) {
            (true, true) => true,
            _ => {
                let (wanted, offered): (Vec<_>, Vec<_>) = (self.host.split('.').collect(), host.split('.').collect());
                wanted.len() == offered.len()
                    && wanted.iter().zip(offered).all(|(glob, label)| matches_label(glob, label))
            }
        };
        hosts && self.port.as_deref() == port && has_prefix(repository, &self.path)
    }
}

fn has_prefix(repository: &str, path: &str) -> bool {
    path.is_empty() || repository.strip_prefix(path).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// `*` stands for any part of a label; there may be several.
fn matches_label(glob: &str, label: &str) -> bool {
    let mut parts = glob.split('*');
    let Some(rest) = parts.next().and_then(|first| label.strip_prefix(first)) else { return false };
    let parts: Vec<&str> = parts.collect();
    let Some((last, middle)) = parts.split_last() else { return rest.is_empty() };
    let mut rest = rest;
    for part in middle {
        let Some(at) = rest.find(part) else { return false };
        rest = &rest[at + part.len()..];
    }
    rest.ends_with(last)
}

fn split_port(address: &str) -> (&str, Option<&str>) {
    match address.rsplit_once(':') {
        Some((host, port)) if !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit()) => (host, Some(port)),
        _ => (address, None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_match_as_the_kubelet_matches() {
        for (key, registry, repository, matches) in [
            ("ghcr.io", "ghcr.io", "a/b", true),
            ("https://ghcr.io", "ghcr.io", "a/b", true),
            ("https://index.docker.io/v1/", "docker.io", "library/nginx", true),
            ("docker.io", "docker.io", "me/app", true),
            ("docker.io/me", "docker.io", "you/app", false),
            ("*.azurecr.io", "mine.azurecr.io", "app", true),
            ("*.azurecr.io", "a.b.azurecr.io", "app", false),
            ("*.azurecr.io", "azurecr.io", "app", false),
            ("r*y.lan", "registry.lan", "app", true),
            ("registry.lan:5000", "registry.lan:5000", "app", true),
            ("registry.lan", "registry.lan:5000", "app", false),
            ("registry.lan/team", "registry.lan", "team/app", true),
            ("registry.lan/team", "registry.lan", "teams/app", false),
            ("evilghcr.io", "ghcr.io", "a", false),
            ("ghcr.io", "ghcr.io.evil", "a", false),
        ] {
            assert_eq!(Pattern::new(key).matches(registry, repository), matches, "{key} for {registry}/{repository}");
        }
    }
}
