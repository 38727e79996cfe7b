//! The state of the certificates of an object's hosts, and its condition: values in, values out.

use contract::tls::TlsIdentity;

use crate::service_backends::BackendResolveError;
use types::conditions::ConditionManager;
use types::networking::certificate::Http01Challenge;
use types::settings::HttpProtocol;
use types::shared::ConditionStatus;

pub const NOT_ENABLED: &str = "external-domain-tls is not enabled";
pub const NOT_FOR_LOCAL: &str = "TLS is not enabled for cluster-local";
const PROVIDED_EXTERNALLY: &str = "TLS certificate was provided externally";
/// The owner of a host is resolved first.
const NOT_REQUESTED: &str = "No certificate is requested before the owner of the hosts is known.";
const NO_LISTENER: &str = "There is no listener for TLS: start the appliance with --https ADDRESS.";

/// The TLS state of an object's hosts.
#[derive(Debug, Clone, Default, PartialEq)]
pub enum HostTls {
    /// None, for this reason.
    Disabled(&'static str),
    /// It is not known yet whether the hosts are the object's.
    #[default]
    NotRequested,
    /// It is wanted, and there is no listener for TLS.
    NoListener,
    /// The object names a certificate: its host and that, or what is wrong with it.
    Provided(String, Result<TlsIdentity, BackendResolveError>),
    /// Certificates were requested.
    Requested(Vec<HostCertificate>),
}

/// One certificate.
#[derive(Debug, Clone, PartialEq)]
pub struct HostCertificate {
    /// The Certificate's name.
    pub name: String,
    pub hosts: Vec<String>,
    pub state: CertificateState,
    /// The authority that clients need to trust it besides the system's (PEM), from its Secret.
    pub ca_certs: Option<String>,
    /// The ACME challenges that its issuer needs answered.
    pub challenges: Vec<Http01Challenge>,
}

impl HostCertificate {
    /// One of which nothing else is known.
    #[must_use]
    pub fn new(name: impl Into<String>, hosts: Vec<String>, standing: CertificateState) -> Self {
        Self { name: name.into(), hosts, state: standing, ca_certs: None, challenges: Vec::new() }
    }
}

#[derive(Debug, Clone, PartialEq)]
pub enum CertificateState {
    /// There is one; `None`: among the operator's own, which are shown anyway.
    Ready(Option<TlsIdentity>),
    /// Not yet, for this reason.
    Pending(String),
    /// Its issuer gave up, for this reason.
    Failed(String),
    /// A Certificate of that name exists and has another owner.
    NotOwned,
}

impl HostTls {
    /// The hosts that TLS listeners serve without a certificate of ours.
    #[must_use]
    pub fn no_listener() -> BackendResolveError {
        BackendResolveError { reason: "HTTPSNotEnabled", message: NO_LISTENER.to_owned() }
    }

    /// The certificates that clients are to be shown, by host.
    #[must_use]
    pub fn certificates(&self) -> Vec<(String, TlsIdentity)> {
        match self {
            Self::Provided(host, Ok(identity)) => vec![(host.clone(), identity.clone())],
            Self::Requested(all) => shown(all),
            _ => Vec::new(),
        }
    }

    /// The scheme of a host, where TLS decides it. Without a certificate that is plain HTTP, if the
    /// operator allows it.
    #[must_use]
    pub fn scheme(&self, host: &str, usual: HttpProtocol) -> Option<&'static str> {
        let downgraded = if usual == HttpProtocol::Enabled { "http" } else { "https" };
        match self {
            Self::Provided(_, Ok(_)) => Some("https"),
            Self::NoListener => Some(downgraded),
            Self::Requested(all) => {
                let held = all.iter().find(|held| held.hosts.iter().any(|known| known == host))?;
                Some(if matches!(held.state, CertificateState::Ready(_)) { "https" } else { downgraded })
            }
            _ => None,
        }
    }

    /// Marks the state in `condition`. The worst certificate decides; `usual` is the operator's setting, as upstream
    /// has it, and not that of an annotation.
    pub fn mark(&self, conditions: &mut ConditionManager<'_>, condition: &str, usual: HttpProtocol) {
        match self {
            Self::Disabled(why) => conditions.mark_true_with_reason(condition, "TLSNotEnabled", why),
            Self::NotRequested => conditions.mark_unknown(condition, "CertificateNotReady", NOT_REQUESTED),
            Self::NoListener if usual == HttpProtocol::Enabled => {
                conditions.mark_true_with_reason(condition, "HTTPDowngrade", NO_LISTENER);
            }
            Self::NoListener => conditions.mark_false(condition, Self::no_listener().reason, NO_LISTENER),
            Self::Provided(_, Ok(_)) => {
                conditions.mark_true_with_reason(condition, "CertificateExternallyProvided", PROVIDED_EXTERNALLY);
            }
            Self::Provided(_, Err(why)) => conditions.mark_false(condition, why.reason, &why.message),
            Self::Requested(all) => match worst(all) {
                None => conditions.mark_true(condition),
                Some(worst) => worst.mark(conditions, condition, usual),
            },
        }
    }

    /// The same for a Route whose cluster-local hosts have certificates too. A missing one of those is reported
    /// whatever clients without TLS get, as upstream does.
    pub fn mark_with_cluster_local(
        &self,
        inside: &[HostCertificate],
        conditions: &mut ConditionManager<'_>,
        condition: &str,
        usual: HttpProtocol,
    ) {
        self.mark(conditions, condition, usual);
        let Some(worst) = worst(inside) else { return };
        let is_missing = !matches!(worst.state, CertificateState::Ready(_));
        if matches!(self, Self::Disabled(_)) || is_missing && conditions.status_of(condition) != ConditionStatus::False
        {
            worst.mark(conditions, condition, HttpProtocol::Disabled);
        }
    }
}

/// The certificates that clients are to be shown, by host.
#[must_use]
pub fn shown(all: &[HostCertificate]) -> Vec<(String, TlsIdentity)> {
    let each = all.iter().filter_map(|held| match &held.state {
        CertificateState::Ready(Some(identity)) => Some((&held.hosts, identity)),
        _ => None,
    });
    each.flat_map(|(hosts, identity)| hosts.iter().map(|host| (host.clone(), identity.clone()))).collect()
}

/// The one for a host, if it is there.
#[must_use]
pub fn ready_certificate<'a>(all: &'a [HostCertificate], host: &str) -> Option<&'a HostCertificate> {
    let is_for = |held: &&HostCertificate| held.hosts.iter().any(|known| known == host);
    all.iter().find(is_for).filter(|held| matches!(held.state, CertificateState::Ready(_)))
}

fn worst(all: &[HostCertificate]) -> Option<&HostCertificate> {
    all.iter().max_by_key(|held| held.state.severity())
}

impl CertificateState {
    fn severity(&self) -> u8 {
        match self {
            Self::Ready(_) => 0,
            Self::Pending(_) => 1,
            Self::Failed(_) => 2,
            Self::NotOwned => 3,
        }
    }
}

impl HostCertificate {
    fn mark(&self, conditions: &mut ConditionManager<'_>, condition: &str, usual: HttpProtocol) {
        let name = &self.name;
        match &self.state {
            CertificateState::Ready(_) => conditions.mark_true(condition),
            CertificateState::NotOwned => conditions.mark_false(
                condition,
                "CertificateNotOwned",
                &format!("There is an existing certificate {name} that we don't own."),
            ),
            CertificateState::Pending(_) | CertificateState::Failed(_) if usual == HttpProtocol::Enabled => conditions
                .mark_true_with_reason(
                    condition,
                    "HTTPDowngrade",
                    &format!("Certificate {name} is not ready downgrade HTTP."),
                ),
            CertificateState::Pending(why) => conditions.mark_unknown(
                condition,
                "CertificateNotReady",
                &format!("Certificate {name} is not ready: {why}"),
            ),
            CertificateState::Failed(why) => conditions.mark_false(
                condition,
                "CertificateProvisionFailed",
                &format!("Certificate {name} fails to be provisioned: {why}"),
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::*;
    use types::conditions::ConditionSet;

    const SET: ConditionSet = ConditionSet { dependents: &["C"] };

    fn held(name: &str, standing: CertificateState) -> HostCertificate {
        HostCertificate::new(name, vec![format!("{name}.test")], standing)
    }

    fn condition_of(tls: &HostTls, usual: HttpProtocol) -> (ConditionStatus, String, String) {
        let mut conditions = SET.manage(&[], Timestamp::UNIX_EPOCH);
        tls.mark(&mut conditions, "C", usual);
        let found = conditions.finish().into_iter().find(|c| c.kind == "C").unwrap();
        (found.status, found.reason, found.message)
    }

    /// X-RTE-07: upstream's reasons and messages.
    #[test]
    fn the_worst_certificate_speaks() {
        use ConditionStatus::{False, True, Unknown};
        use HttpProtocol::{Disabled, Enabled, Redirected};
        let ready = || held("r", CertificateState::Ready(None));
        let coming = || held("c", CertificateState::Pending("Pending".into()));
        let failed = || held("f", CertificateState::Failed("NotOwned".into()));
        let no_listener = || HostTls::Provided("a.test".into(), Err(HostTls::no_listener()));
        for (tls, usual, status, reason, message) in [
            (HostTls::Disabled(NOT_ENABLED), Enabled, True, "TLSNotEnabled", "external-domain-tls is not enabled"),
            (HostTls::NotRequested, Enabled, Unknown, "CertificateNotReady", NOT_REQUESTED),
            (HostTls::Requested(vec![ready(), ready()]), Redirected, True, "", ""),
            (
                HostTls::Requested(vec![coming(), ready()]),
                Enabled,
                True,
                "HTTPDowngrade",
                "Certificate c is not ready downgrade HTTP.",
            ),
            (
                HostTls::Requested(vec![ready(), coming()]),
                Redirected,
                Unknown,
                "CertificateNotReady",
                "Certificate c is not ready: Pending",
            ),
            (
                HostTls::Requested(vec![failed(), coming()]),
                Disabled,
                False,
                "CertificateProvisionFailed",
                "Certificate f fails to be provisioned: NotOwned",
            ),
            (
                HostTls::Requested(vec![held("n", CertificateState::NotOwned), failed()]),
                Enabled,
                False,
                "CertificateNotOwned",
                "There is an existing certificate n that we don't own.",
            ),
            (HostTls::NoListener, Enabled, True, "HTTPDowngrade", NO_LISTENER),
            (HostTls::NoListener, Redirected, False, "HTTPSNotEnabled", NO_LISTENER),
            (no_listener(), Enabled, False, "HTTPSNotEnabled", NO_LISTENER),
        ] {
            assert_eq!(condition_of(&tls, usual), (status, reason.to_owned(), message.to_owned()), "{tls:?}");
        }
    }

    /// X-RTE-07: a name inside without its certificate keeps a Route from Ready, unless something is worse.
    #[test]
    fn cluster_local_names_are_reported_after_public_ones() {
        use HttpProtocol::Enabled;
        let ready = || held("r", CertificateState::Ready(None));
        let coming = || held("c", CertificateState::Pending("Pending".into()));
        let off = || HostTls::Disabled(NOT_ENABLED);
        for (public, inside, status, reason) in [
            (off(), vec![], ConditionStatus::True, "TLSNotEnabled"),
            (off(), vec![ready()], ConditionStatus::True, ""),
            (off(), vec![ready(), coming()], ConditionStatus::Unknown, "CertificateNotReady"),
            (HostTls::Requested(vec![coming()]), vec![ready()], ConditionStatus::True, "HTTPDowngrade"),
            (HostTls::Requested(vec![coming()]), vec![coming()], ConditionStatus::Unknown, "CertificateNotReady"),
            (
                HostTls::Requested(vec![held("n", CertificateState::NotOwned)]),
                vec![coming()],
                ConditionStatus::False,
                "CertificateNotOwned",
            ),
            (
                HostTls::Requested(vec![ready()]),
                vec![held("f", CertificateState::Failed(String::new()))],
                ConditionStatus::False,
                "CertificateProvisionFailed",
            ),
        ] {
            let mut conditions = SET.manage(&[], Timestamp::UNIX_EPOCH);
            public.mark_with_cluster_local(&inside, &mut conditions, "C", Enabled);
            let found = conditions.finish().into_iter().find(|c| c.kind == "C").unwrap();
            assert_eq!((found.status, &*found.reason), (status, reason), "{public:?} and {inside:?}");
        }
    }

    /// X-RTE-06: https with a certificate, and http for want of one if there is http.
    #[test]
    fn each_host_has_the_scheme_that_its_certificate_allows() {
        let asked = HostTls::Requested(vec![
            held("a", CertificateState::Ready(None)),
            held("b", CertificateState::Pending(String::new())),
        ]);
        for (tls, host, usual, scheme) in [
            (&asked, "a.test", HttpProtocol::Enabled, Some("https")),
            (&asked, "b.test", HttpProtocol::Enabled, Some("http")),
            (&asked, "b.test", HttpProtocol::Redirected, Some("https")),
            (&asked, "c.test", HttpProtocol::Enabled, None),
            (&HostTls::NoListener, "a.test", HttpProtocol::Enabled, Some("http")),
            (&HostTls::Disabled(NOT_ENABLED), "a.test", HttpProtocol::Enabled, None),
        ] {
            assert_eq!(tls.scheme(host, usual), scheme, "{host} of {tls:?}");
        }
    }
}
