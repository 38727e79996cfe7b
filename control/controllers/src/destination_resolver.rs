//! Resolves destinations: from an object or a URL as written to the URL for events.
//!
//! An object that resolved a reference is reconciled again when the referenced object changes: a watch per kind
//! starts with the first reference to it, and `ReferenceTracker` records which object refers to which.

mod reference_tracker;
mod reference_watches;

use std::borrow::Cow;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use contract::host_address::parse_literal;
use contract::target_policy::TargetPolicy;
use kube::api::{ApiResource, DynamicObject};
use kube::core::GroupVersionKind;
use kube::{Api, Client};
use serde_json::Value;
use tokio::time::timeout;

use crate::api::Error;
use crate::api::is_not_found;
use crate::urls::{self, resolve_reference};
use crate::work_queue::{WorkItem, WorkQueue};
use runtime::dns::CLUSTER_DOMAIN;
use support::names::{is_dns_subdomain, is_dns1035_label, is_dns1123_label, is_path_segment};
use types::kind_registry::KindMeta;
use types::settings::{REFERENCE_BY_GROUP, REFERENCE_MAPPING, Settings};
use types::shared::{Destination, KReference};

use reference_tracker::{ReferenceTracker, TrackedReference};
use reference_watches::ReferenceWatches;

/// Timeout of one API request: far more than it needs, so that an unresponsive API does not block other objects.
const API_TIMEOUT: Duration = Duration::from_secs(10);

pub struct DestinationResolver {
    client: Client,
    settings: Arc<Mutex<Arc<Settings>>>,
    known_kinds: Vec<&'static KindMeta>,
    tracker: Arc<Mutex<ReferenceTracker>>,
    watches: ReferenceWatches,
    targets: Arc<TargetPolicy>,
}

/// Where a destination leads.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DestinationAddress {
    pub url: String,
    /// Audience of the tokens for it, if it authenticates senders.
    pub audience: Option<String>,
    /// Authorities that it needs trusted besides the system's (PEM), if it uses TLS.
    pub ca_certs: Option<String>,
}

impl From<&str> for DestinationAddress {
    fn from(url: &str) -> Self {
        Self { url: url.to_owned(), ..Self::default() }
    }
}

/// A destination that leads nowhere now; the text names the object and the cause.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResolveError(pub String);

impl DestinationResolver {
    #[must_use]
    pub fn new(
        client: Client,
        queue: Arc<WorkQueue>,
        settings: Arc<Mutex<Arc<Settings>>>,
        targets: Arc<TargetPolicy>,
    ) -> Self {
        let known = types::registry().entries.iter().map(|entry| entry.meta).collect();
        let interests: Arc<Mutex<ReferenceTracker>> = Arc::default();
        let watches = ReferenceWatches::new(client.clone(), queue, Arc::clone(&interests));
        Self { client, settings, known_kinds: known, tracker: interests, watches, targets }
    }

    /// Resolves the address of `destination` for `item`; a reference without a namespace means the namespace of
    /// `item`.
    pub async fn resolve(
        &self,
        item: &WorkItem,
        destination: &Destination,
    ) -> Result<Result<DestinationAddress, ResolveError>, Error> {
        let given = |text: &Option<String>| text.clone().filter(|text| !text.trim().is_empty());
        let (audience, ca_certs) = (given(&destination.audience), given(&destination.ca_certs));
        let Some(reference) = &destination.reference else {
            return Ok(match destination.uri.clone() {
                Some(url) => self.admitted(DestinationAddress { url, audience, ca_certs }),
                None => Err(ResolveError("destination has neither ref nor uri".into())),
            });
        };
        if let Err(unresolved) = check_name(item, reference) {
            return Ok(Err(unresolved));
        }
        let reference = match self.with_version(item, reference).await? {
            Ok(reference) => reference,
            Err(unresolved) => return Ok(Err(unresolved)),
        };
        let reference = &*reference;
        let by_tls = ca_certs.is_some();
        let found = match self.mapped_url(item, reference) {
            Some(url) => Ok(DestinationAddress { url, ..DestinationAddress::default() }),
            None => match self.read(item, reference).await? {
                Ok(object) => address_of(reference, by_tls, &describe(item, reference), &object),
                Err(unresolved) => Err(unresolved),
            },
        };
        let found = found.map(|found| {
            let url = match destination.uri.as_deref() {
                Some(uri) if !uri.is_empty() => resolve_reference(&found.url, uri),
                _ => found.url,
            };
            DestinationAddress { url, audience: audience.or(found.audience), ca_certs: ca_certs.or(found.ca_certs) }
        });
        Ok(found.and_then(|found| self.admitted(found)))
    }

    /// Checks a URL with an IP address against the target policy, so that the status reports it. A name is resolved
    /// when the connection is opened, and checked there.
    fn admitted(&self, found: DestinationAddress) -> Result<DestinationAddress, ResolveError> {
        let Ok((_, target)) = urls::parse_target(&found.url) else { return Ok(found) };
        let Some(ip) = parse_literal(&target.host) else { return Ok(found) };
        match self.targets.check_delivery(SocketAddr::new(ip, target.port), &target.path) {
            Ok(()) => Ok(found),
            Err(refused) => Err(ResolveError(format!("{}: {refused}", target.url))),
        }
    }

    /// The operator's address for all objects of the kind (X-FEA-02).
    fn mapped_url(&self, item: &WorkItem, reference: &KReference) -> Option<String> {
        let settings = self.settings();
        let is_on = settings.event_features.is_enabled(REFERENCE_MAPPING);
        is_on.then(|| settings.mappings.url(reference, namespace_of(item, reference))).flatten()
    }

    /// A reference that names a group alone means the version in which that is served (X-FEA-01).
    async fn with_version<'r>(
        &self,
        item: &WorkItem,
        reference: &'r KReference,
    ) -> Result<Result<Cow<'r, KReference>, ResolveError>, Error> {
        let Some(group) = reference.explicit_group() else { return Ok(Ok(Cow::Borrowed(reference))) };
        let what = describe(item, reference);
        if !self.settings().event_features.is_enabled(REFERENCE_BY_GROUP) {
            return Ok(Err(ResolveError(format!("{what}: feature {REFERENCE_BY_GROUP} is off"))));
        }
        let known = self.known_kinds.iter().find(|meta| meta.group == group && meta.kind == reference.kind);
        let api_version = match known {
            Some(meta) => Some(meta.api_version()),
            None => {
                self.track(item, group, reference);
                self.watches.watch_definitions();
                self.served_version(group, &reference.kind).await?
            }
        };
        Ok(api_version
            .map(|api_version| Cow::Owned(KReference { api_version, ..reference.clone() }))
            .ok_or_else(|| ResolveError(format!("{what}: no such kind is served by group {group}"))))
    }

    /// The version that the API recommends for a kind that we do not know.
    async fn served_version(&self, group: &str, kind: &str) -> Result<Option<String>, Error> {
        match with_timeout(kube::discovery::oneshot::group(&self.client, group)).await? {
            Ok(group) => Ok(group.recommended_kind(kind).map(|(resource, _)| resource.api_version)),
            Err(kube::Error::Discovery(_)) => Ok(None),
            Err(why) if is_not_found(&why) => Ok(None),
            Err(why) => Err(why.into()),
        }
    }

    fn settings(&self) -> Arc<Settings> {
        Arc::clone(&self.settings.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Reads the object that `item` refers to; `item` is reconciled again when it changes.
    pub async fn read(&self, item: &WorkItem, reference: &KReference) -> Result<Result<Value, ResolveError>, Error> {
        if let Err(unresolved) = check_name(item, reference) {
            return Ok(Err(unresolved));
        }
        let (group, version) = group_and_version(reference);
        let gvk = GroupVersionKind::gvk(group, version, &reference.kind);
        // First the reference, then the watch, then the read, so that no change is missed. The reference is recorded
        // for a kind that is not served, too: it may be defined later.
        self.track(item, group, reference);
        let Some(resource) = self.resource(&gvk).await? else {
            return Ok(Err(ResolveError(format!("{}: no such kind is served", describe(item, reference)))));
        };
        self.watches.watch_kind(&resource);
        let namespace = namespace_of(item, reference);
        let api: Api<DynamicObject> = Api::namespaced_with(self.client.clone(), namespace, &resource);
        Ok(match with_timeout(api.get_opt(&reference.name)).await?? {
            Some(object) => serde_json::to_value(object).map_err(|why| ResolveError(why.to_string())),
            None => Err(ResolveError(format!("{} not found", describe(item, reference)))),
        })
    }

    /// Forgets the references of `item`; the next reconcile records them again.
    pub fn forget(&self, item: &WorkItem) {
        self.tracker().forget(item);
    }

    /// A Knative kind is known in every version that a reference names (AMB-60): an old version refers to the same
    /// kind.
    fn known_kind(&self, gvk: &GroupVersionKind) -> Option<ApiResource> {
        let mut named = self.known_kinds.iter().filter(|meta| meta.group == gvk.group && meta.kind == gvk.kind);
        let meta = named.clone().find(|meta| meta.version == gvk.version);
        let meta = meta.or_else(|| named.next().filter(|meta| meta.is_of_knative()))?;
        let gvk = GroupVersionKind::gvk(meta.group, meta.version, meta.kind);
        Some(ApiResource::from_gvk_with_plural(&gvk, meta.plural))
    }

    /// `item` is reconciled again when the object that it refers to changes.
    fn track(&self, item: &WorkItem, group: &str, reference: &KReference) {
        let referent = TrackedReference {
            group: group.to_owned(),
            kind: reference.kind.clone(),
            namespace: namespace_of(item, reference).to_owned(),
            name: reference.name.clone(),
        };
        self.tracker().add(item, referent);
    }

    async fn resource(&self, gvk: &GroupVersionKind) -> Result<Option<ApiResource>, Error> {
        if let Some(known) = self.known_kind(gvk) {
            return Ok(Some(known));
        }
        self.watches.watch_definitions();
        match with_timeout(kube::discovery::oneshot::pinned_kind(&self.client, gvk)).await? {
            Ok((resource, _)) => Ok(Some(resource)),
            Err(kube::Error::Discovery(_)) => Ok(None),
            Err(why) if is_not_found(&why) => Ok(None),
            Err(why) => Err(why.into()),
        }
    }

    /// A kind as the API serves it, and whether its objects are in namespaces.
    pub(crate) async fn served_kind(
        &self,
        api_version: &str,
        kind: &str,
    ) -> Result<Option<(ApiResource, bool)>, Error> {
        let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
        let gvk = GroupVersionKind::gvk(group, version, kind);
        let known =
            self.known_kinds.iter().find(|meta| (meta.group, meta.version, meta.kind) == (group, version, kind));
        if let Some(meta) = known {
            return Ok(Some((ApiResource::from_gvk_with_plural(&gvk, meta.plural), meta.namespaced)));
        }
        match with_timeout(kube::discovery::oneshot::pinned_kind(&self.client, &gvk)).await? {
            Ok((resource, found)) => Ok(Some((resource, found.scope == kube::discovery::Scope::Namespaced))),
            Err(kube::Error::Discovery(_)) => Ok(None),
            Err(why) if is_not_found(&why) => Ok(None),
            Err(why) => Err(why.into()),
        }
    }

    fn tracker(&self) -> MutexGuard<'_, ReferenceTracker> {
        lock(&self.tracker)
    }
}

fn lock(interests: &Mutex<ReferenceTracker>) -> MutexGuard<'_, ReferenceTracker> {
    interests.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn with_timeout<T>(answer: impl Future<Output = T>) -> Result<T, Error> {
    timeout(API_TIMEOUT, answer).await.map_err(|_| Error::ApiTimeout(API_TIMEOUT))
}

/// An invalid object name is not found, without a request: in a request's path it would be more than a name.
fn check_name(item: &WorkItem, reference: &KReference) -> Result<(), ResolveError> {
    let (what, namespace) = (describe(item, reference), namespace_of(item, reference));
    let (group, is_version) = match reference.explicit_group() {
        Some(group) => (group, true),
        None => {
            let (group, version) = group_and_version(reference);
            (group, is_dns1035_label(version))
        }
    };
    if !is_version || !(group.is_empty() || is_dns_subdomain(group)) {
        return Err(ResolveError(format!("{what}: no such kind is served")));
    }
    if !is_dns1123_label(namespace) {
        return Err(ResolveError(format!("{what} not found: no namespace is called \"{namespace}\"")));
    }
    if !is_path_segment(&reference.name) {
        return Err(ResolveError(format!("{what} not found: no object is called \"{}\"", reference.name)));
    }
    Ok(())
}

fn group_and_version(reference: &KReference) -> (&str, &str) {
    reference.api_version.split_once('/').unwrap_or(("", &reference.api_version))
}

fn namespace_of<'a>(item: &'a WorkItem, reference: &'a KReference) -> &'a str {
    reference.explicit_namespace().unwrap_or(&item.namespace)
}

/// Describes an object that `item` refers to, in words that a person can search for.
pub(crate) fn describe(item: &WorkItem, reference: &KReference) -> String {
    format!("{} {}/{}", reference.kind, namespace_of(item, reference), reference.name)
}

/// The address of an object, whatever its kind (EV-ADR-01); a core Service by its name (EV-ADR-02), over TLS if the
/// reference names authorities (`by_tls`).
fn address_of(
    reference: &KReference,
    by_tls: bool,
    what: &str,
    object: &Value,
) -> Result<DestinationAddress, ResolveError> {
    if reference.api_version == "v1" && reference.kind == "Service" {
        let field = |name: &str| object["metadata"][name].as_str().unwrap_or_default();
        let scheme = if by_tls { "https" } else { "http" };
        let url = format!("{scheme}://{}.{}.svc.{CLUSTER_DOMAIN}", field("name"), field("namespace"));
        return Ok(DestinationAddress { url, ..DestinationAddress::default() });
    }
    let status = &object["status"];
    let listed = status["addresses"].as_array().map(Vec::as_slice).unwrap_or_default();
    let chosen = match reference.address.as_deref().filter(|name| !name.is_empty()) {
        Some(name) => listed
            .iter()
            .find(|entry| entry["name"] == name)
            .ok_or_else(|| ResolveError(format!("{what} has no address named \"{name}\"")))?,
        None => listed.first().unwrap_or(&status["address"]),
    };
    let url = chosen["url"].as_str().unwrap_or_default();
    // The parser reads a single word as a host, without a scheme.
    let parsed = url.parse::<http::Uri>().ok().filter(|uri| uri.scheme().is_some());
    match parsed.as_ref().and_then(|uri| uri.host()) {
        Some(host) if !host.is_empty() => {
            let text = |field: &str| chosen[field].as_str().filter(|text| !text.is_empty()).map(str::to_owned);
            Ok(DestinationAddress { url: url.to_owned(), audience: text("audience"), ca_certs: text("CACerts") })
        }
        _ if url.is_empty() => Err(ResolveError(format!("{what} is not addressable: address not set"))),
        _ => Err(ResolveError(format!("{what} is not addressable: \"{url}\" is not a URL with a host"))),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::work_queue::ControllerKind;

    fn reference(json: Value) -> KReference {
        serde_json::from_value(json).unwrap()
    }

    /// EV-ADR-01, EV-ADR-05, EV-OBJ-54: an address counts whatever the kind, and only if it is one.
    #[test]
    fn any_object_with_an_address_is_addressable() {
        let plain = reference(json!({"apiVersion": "x/v1", "kind": "X", "name": "x"}));
        let of = |object: Value| address_of(&plain, false, "X ns/x", &object);
        assert_eq!(of(json!({"status": {"address": {"url": "http://a/"}}})), Ok("http://a/".into()));
        assert_eq!(
            of(json!({"status": {"address": {"url": "http://a/"}, "addresses": [{"url": "http://b/"}]}})),
            Ok("http://b/".into())
        );
        let asks = json!({"status": {"address": {"url": "https://a/", "audience": "x", "CACerts": "pem"}}});
        let whole =
            DestinationAddress { url: "https://a/".into(), audience: Some("x".into()), ca_certs: Some("pem".into()) };
        assert_eq!(of(asks), Ok(whole));
        for nothing in
            [json!({}), json!({"status": {}}), json!({"status": {"address": {}}}), json!({"data": {"a": "b"}})]
        {
            assert!(of(nothing).unwrap_err().0.contains("X ns/x"));
        }
        for no_url in ["/x", "foo", "foo:80", "http://", "a b"] {
            let why = of(json!({"status": {"address": {"url": no_url}}})).unwrap_err().0;
            assert_eq!(why, format!("X ns/x is not addressable: \"{no_url}\" is not a URL with a host"));
        }

        let named = reference(json!({"apiVersion": "x/v1", "kind": "X", "name": "x", "address": "two"}));
        let object = json!({"status": {"addresses": [{"name": "one", "url": "http://1/"}, {"name": "two", "url": "http://2/"}]}});
        assert_eq!(address_of(&named, false, "", &object), Ok("http://2/".into()));
        assert!(address_of(&named, false, "", &json!({"status": {"address": {"url": "http://a/"}}})).is_err());
    }

    /// EV-ADR-02 (AMB-23): upstream's form, without a trailing slash.
    #[test]
    fn a_core_service_is_addressed_by_its_name() {
        let service = reference(json!({"apiVersion": "v1", "kind": "Service", "name": "test"}));
        let object = json!({"metadata": {"name": "test", "namespace": "ns"}});
        assert_eq!(address_of(&service, false, "", &object), Ok("http://test.ns.svc.cluster.local".into()));
        assert_eq!(address_of(&service, true, "", &object), Ok("https://test.ns.svc.cluster.local".into()));
    }

    /// A lookup has a timeout, also if the request is stuck.
    #[tokio::test(start_paused = true)]
    async fn an_api_that_never_answers_holds_nobody_up() {
        let unresponsive = axum::Router::new().fallback(std::future::pending::<http::StatusCode>);
        let resolver =
            DestinationResolver::new(Client::new(unresponsive, "ns"), Arc::default(), Arc::default(), Arc::default());
        let item = WorkItem::new(ControllerKind::new("Trigger"), "ns", "t");
        for api_version in ["v1", "x.example/v1"] {
            let reference = reference(json!({"apiVersion": api_version, "kind": "Service", "name": "a"}));
            let found = resolver.read(&item, &reference).await;
            assert!(matches!(found, Err(Error::ApiTimeout(API_TIMEOUT))), "{found:?}");
        }
        let grouped = reference(json!({"group": "x.example", "kind": "X", "name": "a"}));
        let found = resolver.served_version("x.example", &grouped.kind).await;
        assert!(matches!(found, Err(Error::ApiTimeout(API_TIMEOUT))), "{found:?}");
    }
}
