//! How far the certificates of an object's hosts are, and what its status says of that: values in, values out.

use dataplane::tls::Identity;

use crate::controllers::ingress::backends::Unresolved;
use crate::kinds::conditions::Conditions;
use crate::kinds::networking::certificate::Http01Challenge;
use crate::kinds::settings::HttpProtocol;
use crate::kinds::shared::Verdict;

pub const NOT_ENABLED: &str = "external-domain-tls is not enabled";
pub const NOT_FOR_LOCAL: &str = "TLS is not enabled for cluster-local";
const PROVIDED_OUTSIDE: &str = "TLS certificate was provided externally";
/// Who has a host is asked first.
const NOT_ASKED: &str = "No certificate is asked for before it is known whose the hosts are.";
const NO_LISTENER: &str = "There is no listener for TLS: start the appliance with --https ADDRESS.";

/// What TLS there is for an object's hosts.
#[derive(Debug, Clone, Default, PartialEq)]
pub enum Tls {
    /// None, for this reason.
    Off(&'static str),
    /// It is not known yet whether the hosts are the object's.
    #[default]
    Unasked,
    /// It is wanted, and nobody listens.
    NoListener,
    /// The object names a certificate: its host and that, or what is wrong with it.
    Given(String, Result<Identity, Unresolved>),
    /// Certificates were asked for.
    Asked(Vec<Held>),
}

/// One certificate.
#[derive(Debug, Clone, PartialEq)]
pub struct Held {
    /// The Certificate's name.
    pub name: String,
    pub hosts: Vec<String>,
    pub standing: Standing,
    /// By whom it is believed beside the system's authorities (PEM), as its Secret says.
    pub ca_certs: Option<String>,
    /// What whoever provides it has to be answered.
    pub challenges: Vec<Http01Challenge>,
}

impl Held {
    /// One of which nothing else is known.
    #[must_use]
    pub fn new(name: impl Into<String>, hosts: Vec<String>, standing: Standing) -> Self {
        Self { name: name.into(), hosts, standing, ca_certs: None, challenges: Vec::new() }
    }
}

#[derive(Debug, Clone, PartialEq)]
pub enum Standing {
    /// There is one; `None`: among the operator's own, which are shown anyway.
    Ready(Option<Identity>),
    /// Not yet, for this reason.
    Coming(String),
    /// Whoever provides it gave up, for this reason.
    Failed(String),
    /// There is a Certificate of that name which somebody else made.
    NotOwned,
}

impl Tls {
    /// What a listener for TLS takes for nothing.
    #[must_use]
    pub fn unheard() -> Unresolved {
        Unresolved { reason: "HTTPSNotEnabled", message: NO_LISTENER.to_owned() }
    }

    /// The certificates that clients are to be shown, by host.
    #[must_use]
    pub fn shown(&self) -> Vec<(String, Identity)> {
        match self {
            Self::Given(host, Ok(identity)) => vec![(host.clone(), identity.clone())],
            Self::Asked(all) => shown(all),
            _ => Vec::new(),
        }
    }

    /// By which scheme a host is reached, where TLS decides it. Without a certificate that is plain HTTP, if the
    /// operator allows it.
    #[must_use]
    pub fn scheme(&self, host: &str, usual: HttpProtocol) -> Option<&'static str> {
        let downgraded = if usual == HttpProtocol::Enabled { "http" } else { "https" };
        match self {
            Self::Given(_, Ok(_)) => Some("https"),
            Self::NoListener => Some(downgraded),
            Self::Asked(all) => {
                let held = all.iter().find(|held| held.hosts.iter().any(|known| known == host))?;
                Some(if matches!(held.standing, Standing::Ready(_)) { "https" } else { downgraded })
            }
            _ => None,
        }
    }

    /// Says in `condition` how it is. The worst certificate speaks; `usual` is the operator's word, as upstream has it,
    /// and not that of an annotation.
    pub fn tell(&self, conditions: &mut Conditions<'_>, condition: &str, usual: HttpProtocol) {
        match self {
            Self::Off(why) => conditions.mark_true_because(condition, "TLSNotEnabled", why),
            Self::Unasked => conditions.mark_unknown(condition, "CertificateNotReady", NOT_ASKED),
            Self::NoListener if usual == HttpProtocol::Enabled => {
                conditions.mark_true_because(condition, "HTTPDowngrade", NO_LISTENER);
            }
            Self::NoListener => conditions.mark_false(condition, Self::unheard().reason, NO_LISTENER),
            Self::Given(_, Ok(_)) => {
                conditions.mark_true_because(condition, "CertificateExternallyProvided", PROVIDED_OUTSIDE);
            }
            Self::Given(_, Err(why)) => conditions.mark_false(condition, why.reason, &why.message),
            Self::Asked(all) => match worst(all) {
                None => conditions.mark_true(condition),
                Some(worst) => worst.tell(conditions, condition, usual),
            },
        }
    }

    /// The same of a Route whose names inside have certificates too. A missing one of those is told whatever clients
    /// without TLS are answered, as upstream does.
    pub fn tell_with(
        &self,
        inside: &[Held],
        conditions: &mut Conditions<'_>,
        condition: &str,
        usual: HttpProtocol,
    ) {
        self.tell(conditions, condition, usual);
        let Some(worst) = worst(inside) else { return };
        let is_missing = !matches!(worst.standing, Standing::Ready(_));
        if matches!(self, Self::Off(_)) || is_missing && conditions.verdict(condition) != Verdict::False {
            worst.tell(conditions, condition, HttpProtocol::Disabled);
        }
    }
}

/// The certificates that clients are to be shown, by host.
#[must_use]
pub fn shown(all: &[Held]) -> Vec<(String, Identity)> {
    let each = all.iter().filter_map(|held| match &held.standing {
        Standing::Ready(Some(identity)) => Some((&held.hosts, identity)),
        _ => None,
    });
    each.flat_map(|(hosts, identity)| hosts.iter().map(|host| (host.clone(), identity.clone()))).collect()
}

/// The one for a host, if it is there.
#[must_use]
pub fn ready<'a>(all: &'a [Held], host: &str) -> Option<&'a Held> {
    let is_for = |held: &&Held| held.hosts.iter().any(|known| known == host);
    all.iter().find(is_for).filter(|held| matches!(held.standing, Standing::Ready(_)))
}

fn worst(all: &[Held]) -> Option<&Held> {
    all.iter().max_by_key(|held| held.standing.badness())
}

impl Standing {
    fn badness(&self) -> u8 {
        match self {
            Self::Ready(_) => 0,
            Self::Coming(_) => 1,
            Self::Failed(_) => 2,
            Self::NotOwned => 3,
        }
    }
}

impl Held {
    fn tell(&self, conditions: &mut Conditions<'_>, condition: &str, usual: HttpProtocol) {
        let name = &self.name;
        match &self.standing {
            Standing::Ready(_) => conditions.mark_true(condition),
            Standing::NotOwned => conditions.mark_false(
                condition,
                "CertificateNotOwned",
                &format!("There is an existing certificate {name} that we don't own."),
            ),
            Standing::Coming(_) | Standing::Failed(_) if usual == HttpProtocol::Enabled => conditions
                .mark_true_because(
                    condition,
                    "HTTPDowngrade",
                    &format!("Certificate {name} is not ready downgrade HTTP."),
                ),
            Standing::Coming(why) => conditions.mark_unknown(
                condition,
                "CertificateNotReady",
                &format!("Certificate {name} is not ready: {why}"),
            ),
            Standing::Failed(why) => conditions.mark_false(
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
    use crate::kinds::conditions::ConditionSet;

    const SET: ConditionSet = ConditionSet { dependents: &["C"] };

    fn held(name: &str, standing: Standing) -> Held {
        Held::new(name, vec![format!("{name}.test")], standing)
    }

    fn told(tls: &Tls, usual: HttpProtocol) -> (Verdict, String, String) {
        let mut conditions = SET.manage(&[], Timestamp::UNIX_EPOCH);
        tls.tell(&mut conditions, "C", usual);
        let found = conditions.finish().into_iter().find(|c| c.kind == "C").unwrap();
        (found.status, found.reason, found.message)
    }

    /// X-RTE-07: upstream's reasons and messages.
    #[test]
    fn the_worst_certificate_speaks() {
        use HttpProtocol::{Disabled, Enabled, Redirected};
        use Verdict::{False, True, Unknown};
        let ready = || held("r", Standing::Ready(None));
        let coming = || held("c", Standing::Coming("Pending".into()));
        let failed = || held("f", Standing::Failed("NotOwned".into()));
        let no_listener = || Tls::Given("a.test".into(), Err(Tls::unheard()));
        for (tls, usual, status, reason, message) in [
            (Tls::Off(NOT_ENABLED), Enabled, True, "TLSNotEnabled", "external-domain-tls is not enabled"),
            (Tls::Unasked, Enabled, Unknown, "CertificateNotReady", NOT_ASKED),
            (Tls::Asked(vec![ready(), ready()]), Redirected, True, "", ""),
            (
                Tls::Asked(vec![coming(), ready()]),
                Enabled,
                True,
                "HTTPDowngrade",
                "Certificate c is not ready downgrade HTTP.",
            ),
            (
                Tls::Asked(vec![ready(), coming()]),
                Redirected,
                Unknown,
                "CertificateNotReady",
                "Certificate c is not ready: Pending",
            ),
            (
                Tls::Asked(vec![failed(), coming()]),
                Disabled,
                False,
                "CertificateProvisionFailed",
                "Certificate f fails to be provisioned: NotOwned",
            ),
            (
                Tls::Asked(vec![held("n", Standing::NotOwned), failed()]),
                Enabled,
                False,
                "CertificateNotOwned",
                "There is an existing certificate n that we don't own.",
            ),
            (Tls::NoListener, Enabled, True, "HTTPDowngrade", NO_LISTENER),
            (Tls::NoListener, Redirected, False, "HTTPSNotEnabled", NO_LISTENER),
            (no_listener(), Enabled, False, "HTTPSNotEnabled", NO_LISTENER),
        ] {
            assert_eq!(told(&tls, usual), (status, reason.to_owned(), message.to_owned()), "{tls:?}");
        }
    }

    /// X-RTE-07: a name inside without its certificate keeps a Route from Ready, unless something is worse.
    #[test]
    fn names_inside_are_told_of_after_those_outside() {
        use HttpProtocol::Enabled;
        let ready = || held("r", Standing::Ready(None));
        let coming = || held("c", Standing::Coming("Pending".into()));
        let off = || Tls::Off(NOT_ENABLED);
        for (public, inside, status, reason) in [
            (off(), vec![], Verdict::True, "TLSNotEnabled"),
            (off(), vec![ready()], Verdict::True, ""),
            (off(), vec![ready(), coming()], Verdict::Unknown, "CertificateNotReady"),
            (Tls::Asked(vec![coming()]), vec![ready()], Verdict::True, "HTTPDowngrade"),
            (Tls::Asked(vec![coming()]), vec![coming()], Verdict::Unknown, "CertificateNotReady"),
            (
                Tls::Asked(vec![held("n", Standing::NotOwned)]),
                vec![coming()],
                Verdict::False,
                "CertificateNotOwned",
            ),
            (
                Tls::Asked(vec![ready()]),
                vec![held("f", Standing::Failed(String::new()))],
                Verdict::False,
                "CertificateProvisionFailed",
            ),
        ] {
            let mut conditions = SET.manage(&[], Timestamp::UNIX_EPOCH);
            public.tell_with(&inside, &mut conditions, "C", Enabled);
            let found = conditions.finish().into_iter().find(|c| c.kind == "C").unwrap();
            assert_eq!((found.status, &*found.reason), (status, reason), "{public:?} and {inside:?}");
        }
    }

    /// X-RTE-06: https with a certificate, and http for want of one if there is http.
    #[test]
    fn each_host_has_the_scheme_that_its_certificate_allows() {
        let asked =
            Tls::Asked(vec![held("a", Standing::Ready(None)), held("b", Standing::Coming(String::new()))]);
        for (tls, host, usual, scheme) in [
            (&asked, "a.test", HttpProtocol::Enabled, Some("https")),
            (&asked, "b.test", HttpProtocol::Enabled, Some("http")),
            (&asked, "b.test", HttpProtocol::Redirected, Some("https")),
            (&asked, "c.test", HttpProtocol::Enabled, None),
            (&Tls::NoListener, "a.test", HttpProtocol::Enabled, Some("http")),
            (&Tls::Off(NOT_ENABLED), "a.test", HttpProtocol::Enabled, None),
        ] {
            assert_eq!(tls.scheme(host, usual), scheme, "{host} of {tls:?}");
        }
    }
}
