//! Where a replay sends events instead of the subscriber: to a Revision, also one that no Route leads to, or to a URL.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use anyhow::{Context, Result, bail};
use control::controllers::destination_resolver::DestinationAddress;
use control::controllers::trust_store::TrustStore;
use control::publish::{HostRule, Publisher, WeightedBackend};
use dataplane::table::DeliveryTarget;

/// The destination as it is named in a request: `revision/NAME`, or an absolute URL.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum ReplayDestination {
    Revision(String),
    Url(String),
}

impl ReplayDestination {
    /// `namespace` is the subscriber's. A Revision of another one is refused: a user who may change a Trigger may not reach
    /// what its namespace cannot.
    pub(super) fn read(text: &str, namespace: &str) -> Result<Self> {
        if text.contains("://") {
            return Ok(Self::Url(text.to_owned()));
        }
        let parts: Vec<_> = text.split('/').collect();
        match parts[..] {
            _ if parts.contains(&"") => {}
            ["revision", name] => return Ok(Self::Revision(name.to_owned())),
            ["revision", other, name] if other == namespace => return Ok(Self::Revision(name.to_owned())),
            ["revision", other, _] => bail!(
                "a replay stays in the namespace of its Trigger, which is {namespace:?}; the Revision's is {other:?}"
            ),
            _ => {}
        }
        bail!("--to takes `revision NAME` or a URL, not {text:?}")
    }

    /// The target for deliveries. `path` is that of the subscriber, which a Revision gets as well.
    pub(super) async fn open(self, publisher: &Arc<Publisher>, namespace: &str, path: &str) -> Result<OpenDestination> {
        match self {
            Self::Url(url) => {
                let address = DestinationAddress::from(url.as_str());
                let target = TrustStore::default().target(&address).map_err(anyhow::Error::msg).context("--to")?;
                Ok(OpenDestination { target, route: None })
            }
            Self::Revision(name) => {
                let key = format!("{namespace}/{name}");
                if !publisher.has_endpoints(&key) {
                    bail!(
                        "there is no Revision {key} that can serve: `kubectl get revisions -n {namespace}` lists them, and \
                         why one is not Ready"
                    );
                }
                let route = TemporaryRoute::publish(publisher, &key).await?;
                let authority = format!("{name}.{namespace}.svc.cluster.local");
                let target = DeliveryTarget {
                    url: format!("http://{authority}{path}").into(),
                    authority: authority.into(),
                    host: route.host.as_str().into(),
                    port: 80,
                    path: path.into(),
                    is_stream: false,
                    access_token: None,
                    tls: None,
                };
                Ok(OpenDestination { target, route: Some(route) })
            }
        }
    }
}

/// A destination that can be sent to.
pub(super) struct OpenDestination {
    pub(super) target: DeliveryTarget,
    route: Option<TemporaryRoute>,
}

impl OpenDestination {
    /// Removes what was published for it.
    pub(super) async fn close(self) {
        if let Some(route) = self.route {
            let publisher = Arc::clone(&route.publisher);
            drop(route);
            publisher.flush().await;
        }
    }
}

/// A route to a Revision under a host that no client can guess, for as long as the replay runs.
struct TemporaryRoute {
    publisher: Arc<Publisher>,
    owner: String,
    host: String,
}

impl TemporaryRoute {
    async fn publish(publisher: &Arc<Publisher>, key: &str) -> Result<Self> {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let owner = format!("replay {}", NUMBER.fetch_add(1, Relaxed));
        let host = publisher.private_host(&owner);
        let rule = HostRule {
            hosts: vec![host.as_str().into()],
            splits: vec![WeightedBackend { backend: key.to_owned(), weight: 1, ..WeightedBackend::default() }],
            cluster_local: true,
            ..HostRule::default()
        };
        let taken = publisher.set_route(&owner, vec![rule]);
        taken.map_err(|conflict| anyhow::anyhow!("the host {} is {}'s", conflict.host, conflict.owner))?;
        let route = Self { publisher: Arc::clone(publisher), owner, host };
        publisher.flush().await;
        Ok(route)
    }
}

impl Drop for TemporaryRoute {
    fn drop(&mut self) {
        self.publisher.remove_route(&self.owner);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use control::publish::BackendSpec;
    use dataplane::table::{NoEndpointPolicy, Protocol, RequestTimeouts, RoutingTable};

    use super::*;

    #[test]
    fn destination_is_revision_of_namespace_or_url() {
        let revision = |name: &str| ReplayDestination::Revision(name.to_owned());
        for (text, destination) in [
            ("revision/app-2", revision("app-2")),
            ("revision/ns/app-2", revision("app-2")),
            ("http://h/x", ReplayDestination::Url("http://h/x".to_owned())),
        ] {
            assert_eq!(ReplayDestination::read(text, "ns").unwrap(), destination);
        }
        for (text, why) in [
            ("app-2", "revision NAME"),
            ("revision/", "revision NAME"),
            ("service/app", "revision NAME"),
            ("revision/other/app-2", "namespace of its Trigger"),
        ] {
            let refused = ReplayDestination::read(text, "ns").unwrap_err().to_string();
            assert!(refused.contains(why), "{text}: {refused}");
        }
    }

    #[tokio::test]
    async fn revision_is_routed_while_its_replay_runs() {
        let newest = Arc::new(Mutex::new(RoutingTable::default()));
        let swap = Arc::clone(&newest);
        let publisher = Arc::new(Publisher::new(Arc::new(move |table| *swap.lock().unwrap() = table)));
        publisher.start();
        let open = |name: &str| {
            let publisher = Arc::clone(&publisher);
            let name = name.to_owned();
            async move { ReplayDestination::Revision(name).open(&publisher, "ns", "/in").await }
        };
        assert!(open("app-2").await.err().unwrap().to_string().contains("ns/app-2"));

        let when_empty = NoEndpointPolicy::Wait { timeout: std::time::Duration::from_secs(1) };
        let spec =
            BackendSpec { concurrency_max: 0, when_empty, protocol: Protocol::Http1, timeouts: RequestTimeouts::NONE };
        publisher.set_backend("ns/app-2", spec);
        let destination = open("app-2").await.unwrap();
        let host = destination.target.host.clone();
        assert_eq!(&*destination.target.authority, "app-2.ns.svc.cluster.local");
        let backend = || newest.lock().unwrap().hosts.find(&host).map(|route| route.splits[0].backend.key.clone());
        assert_eq!(backend().as_deref(), Some("ns/app-2"));
        assert!(newest.lock().unwrap().hosts.find(&host).unwrap().cluster_local_only);
        destination.close().await;
        assert_eq!(backend(), None);
    }
}
