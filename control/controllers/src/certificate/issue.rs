//! Issues certificates of our class: signs them, stores them in their Secrets, and renews them.

use contract::tls::TlsIdentity;
use jiff::Timestamp;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};

use super::authority::{self, RENEW_BEFORE_DAYS, VALIDITY_DAYS};
use crate::api::{Error, now};
use crate::context::ControllerContext;
use crate::host_certificates::desired::wildcard;
use crate::host_certificates::{self, public_domains};
use crate::names::domain_mapping_owner;
use crate::owned_child::owner_references;
use crate::tls_secrets::{CA_CERT_KEY, CERTIFICATE, KEY, secret_data};
use crate::work_queue::WorkItem;
use apiserver::access::signing::{CertificateKeyPair, DAY_SECONDS, expires_within, is_not_yet_valid, not_after, sign};
use types::networking::certificate::{CONDITIONS, Certificate, CertificateStatus, UID_LABEL};
use types::settings::SERVING;
use types::shared::{ConditionStatus, HasConditions as _, controller, is_controlled_by, label, namespace};

/// The result of issuing a Certificate.
#[derive(Debug, PartialEq)]
enum IssueOutcome {
    /// Its Secret holds one that ends then.
    Issued(Timestamp),
    Failed {
        reason: &'static str,
        message: String,
    },
}

pub(super) async fn reconcile(context: &ControllerContext, item: &WorkItem) -> Result<(), Error> {
    let certificate = context.caches.certificates.get(&item.namespace, &item.name);
    let Some(certificate) = certificate.filter(|certificate| certificate.is_ours()) else { return Ok(()) };
    if certificate.metadata.deletion_timestamp.is_some() {
        return Ok(());
    }
    context.leadership.check()?;
    // Namespaces are followed only while some are to have such.
    let of_namespace = controller(&certificate.metadata).is_some_and(|owner| owner.kind == "Namespace");
    if of_namespace && context.settings().network.namespace_wildcard_selector.is_none() {
        return host_certificates::delete(context, &item.namespace, &item.name).await;
    }
    let outcome = issue(context, &certificate, now()).await?;
    let mut after = (*certificate).clone();
    after.status = Some(status(&certificate, outcome, now()));
    context.set_status(&*certificate, &after).await
}

/// Whether a certificate may have to be issued again. One that expires later than any that we issue now may have been issued
/// while the clock was ahead, and not have begun.
pub(super) fn needs_renewal(certificate: &Certificate, now: Timestamp) -> bool {
    let ends = certificate.status.as_ref().and_then(|status| status.not_after.as_ref());
    let usual = RENEW_BEFORE_DAYS * DAY_SECONDS..=(VALIDITY_DAYS + 1) * DAY_SECONDS;
    let is_ready = certificate.ready().is_some_and(|ready| ready.status == ConditionStatus::True);
    let lasts = ends.is_some_and(|ends| usual.contains(&(ends.0.as_second() - now.as_second())));
    certificate.is_ours() && !(is_ready && lasts)
}

/// Validity of a certificate that is signed now: it does not outlive its authority.
fn validity_days(authority: &CertificateKeyPair, now: Timestamp) -> i64 {
    let left = not_after(authority.certificate.as_bytes()).map_or(0, |ends| ends.as_second() - now.as_second());
    VALIDITY_DAYS.min(left / DAY_SECONDS)
}

async fn issue(context: &ControllerContext, certificate: &Certificate, now: Timestamp) -> Result<IssueOutcome, Error> {
    let (ns, secret_name) = (namespace(&certificate.metadata), &certificate.spec.secret_name);
    let there = context.caches.secrets.get(ns, secret_name);
    let authority = match authority::load_or_create(context, now).await? {
        Ok(authority) => authority,
        Err(message) => {
            return Ok(not_issued(there.as_deref(), certificate, "AuthorityInvalid", message, now));
        }
    };
    match there.as_deref().map(|secret| inspect_secret(secret, certificate, &authority, now)) {
        Some(SecretContent::Valid(ends)) => return Ok(IssueOutcome::Issued(ends)),
        Some(SecretContent::Foreign) => {
            let message = format!("There is an existing Secret \"{secret_name}\" that we do not own.");
            return Ok(IssueOutcome::Failed { reason: "NotOwned", message });
        }
        Some(SecretContent::Outdated) | None => {}
    }
    if !is_allowed(context, certificate) {
        let message = "Its names are not those of the Route or DomainMapping that it belongs to.".to_owned();
        return Ok(IssueOutcome::Failed { reason: "HostNotOwned", message });
    }
    let failed = |message| Ok(not_issued(there.as_deref(), certificate, "SigningFailed", message, now));
    let made = match sign(&authority, &certificate.spec.dns_names, validity_days(&authority, now), now) {
        Ok(made) => made,
        Err(why) => return failed(why.to_string()),
    };
    let mut secret = secret(certificate, &made, &authority);
    if let Some(there) = &there {
        secret = Secret { data: secret.data, ..(**there).clone() };
    }
    // What we would not keep is not written: its Secret's change would bring us here again, and so on.
    let SecretContent::Valid(ends) = inspect_secret(&secret, certificate, &authority, now) else {
        return failed("Signed by this authority it would not be good for all its names.".to_owned());
    };
    match there {
        None => drop(context.create(&secret).await?),
        Some(_) => drop(context.replace(&secret).await?),
    }
    Ok(IssueOutcome::Issued(ends))
}

/// Nothing can be signed. What was signed before serves to its end.
fn not_issued(
    there: Option<&Secret>,
    certificate: &Certificate,
    reason: &'static str,
    message: String,
    now: Timestamp,
) -> IssueOutcome {
    let Some(ends) = there.and_then(|secret| valid_until(secret, certificate, now)) else {
        return IssueOutcome::Failed { reason, message };
    };
    let (namespace, secret) = (namespace(&certificate.metadata), &certificate.spec.secret_name);
    tracing::warn!(namespace, secret, reason, message, "a certificate cannot be renewed");
    IssueOutcome::Issued(ends)
}

/// Whether the owner of the Certificate has the hosts of all its names: otherwise a developer could get a certificate
/// for another's hosts. The operator's own namespace may request any name.
fn is_allowed(context: &ControllerContext, certificate: &Certificate) -> bool {
    let (ns, names) = (namespace(&certificate.metadata), &certificate.spec.dns_names);
    let owner = controller(&certificate.metadata);
    let has_all = |owner: &str| names.iter().all(|host| context.publisher.owns_host(owner, host));
    match owner.map(|owner| (owner.kind.as_str(), owner.name.as_str())) {
        _ if ns == SERVING => true,
        Some(("Route", name)) => has_all(&format!("{ns}/{name}")),
        Some(("DomainMapping", name)) => has_all(&domain_mapping_owner(ns, name)),
        // A developer may request names of the own namespace.
        Some(("Namespace", name)) if name == ns => {
            let settings = context.settings();
            let stands = |domain: &str| wildcard(ns, domain, &settings.network);
            let known: Vec<_> = public_domains(context, &settings).into_iter().filter_map(stands).collect();
            settings.network.namespace_wildcard_selector.is_some() && names.iter().all(|name| known.contains(name))
        }
        _ => false,
    }
}

/// The content of a certificate's Secret.
#[derive(Debug, PartialEq)]
enum SecretContent {
    /// That, until then.
    Valid(Timestamp),
    /// One that must be issued again.
    Outdated,
    /// A certificate or other data that we did not issue.
    Foreign,
}

/// A certificate from another issuer is valid too, if it covers all the names: the operator put it there.
fn inspect_secret(
    secret: &Secret,
    certificate: &Certificate,
    authority: &CertificateKeyPair,
    now: Timestamp,
) -> SecretContent {
    let chain = secret_data(secret, CERTIFICATE);
    let is_for_all = covers_names(secret, certificate);
    let is_ours = is_controlled_by(&secret.metadata, &certificate.metadata)
        || label(&secret.metadata, UID_LABEL) == certificate.metadata.uid.as_deref();
    let lasts = |days: i64| !expires_within(chain, days, now);
    // As long as it could be, if its authority ends soon.
    let lasts_long = lasts(RENEW_BEFORE_DAYS.min(validity_days(authority, now) - 1)) && !is_not_yet_valid(chain, now);
    let is_of_authority = || secret_data(secret, CA_CERT_KEY) == authority.certificate.as_bytes();
    match not_after(chain) {
        Some(ends) if is_for_all && is_ours && lasts_long && is_of_authority() => SecretContent::Valid(ends),
        _ if is_ours => SecretContent::Outdated,
        Some(ends) if is_for_all && lasts(0) => SecretContent::Valid(ends),
        _ => SecretContent::Foreign,
    }
}

fn covers_names(secret: &Secret, certificate: &Certificate) -> bool {
    TlsIdentity::from_pem(secret_data(secret, CERTIFICATE), secret_data(secret, KEY))
        .is_ok_and(|identity| certificate.spec.dns_names.iter().all(|name| identity.is_for(name)))
}

/// When the existing certificate expires, if it covers the names, whichever issuer it comes from. A start of validity
/// in the future is ignored: the local clock may be slow.
fn valid_until(secret: &Secret, certificate: &Certificate, now: Timestamp) -> Option<Timestamp> {
    not_after(secret_data(secret, CERTIFICATE)).filter(|ends| *ends > now && covers_names(secret, certificate))
}

fn secret(certificate: &Certificate, made: &CertificateKeyPair, authority: &CertificateKeyPair) -> Secret {
    let meta = &certificate.metadata;
    let data = [(CERTIFICATE, &made.certificate), (KEY, &made.key), (CA_CERT_KEY, &authority.certificate)];
    Secret {
        metadata: ObjectMeta {
            name: Some(certificate.spec.secret_name.clone()),
            namespace: meta.namespace.clone(),
            labels: meta.uid.clone().map(|uid| [(UID_LABEL.to_owned(), uid)].into()),
            owner_references: owner_references(certificate),
            ..ObjectMeta::default()
        },
        type_: Some("kubernetes.io/tls".into()),
        data: Some(data.map(|(key, text)| (key.to_owned(), ByteString(text.clone().into_bytes()))).into()),
        ..Secret::default()
    }
}

fn status(certificate: &Certificate, outcome: IssueOutcome, now: Timestamp) -> CertificateStatus {
    let mut status = certificate.status.clone().unwrap_or_default();
    let before = std::mem::take(&mut status.base.conditions);
    let mut conditions = CONDITIONS.manage(&before, now);
    match outcome {
        IssueOutcome::Issued(ends) => {
            conditions.mark_true("Ready");
            status.not_after = Some(Time(ends));
        }
        IssueOutcome::Failed { reason, message } => conditions.mark_false("Ready", reason, &message),
    }
    conditions.finish_into(&mut status.base, certificate.metadata.generation);
    status
}

#[cfg(test)]
mod tests {
    use super::*;
    use apiserver::access::signing::create_authority;
    use types::classes::{CERTIFICATE, CERTIFICATE_ANNOTATIONS};
    use types::networking::certificate::CertificateSpec;

    fn days(days: i64) -> Timestamp {
        Timestamp::from_second(1_800_000_000 + days * DAY_SECONDS).unwrap()
    }

    fn certificate(host: &str) -> Certificate {
        let spec = CertificateSpec { dns_names: vec![host.to_owned()], secret_name: "s".into(), domain: String::new() };
        let mut made = Certificate::new("ns", "s", spec);
        made.metadata.uid = Some("u".into());
        made.metadata.annotations = Some([(CERTIFICATE_ANNOTATIONS[0].to_owned(), CERTIFICATE.to_owned())].into());
        made
    }

    /// X-RTE-07: the content of the Secret decides, whichever issuer it comes from.
    #[test]
    fn a_secret_is_kept_renewed_or_left_to_its_owner() {
        let [own, other] = ["own", "other"].map(|name| create_authority(name, 1_000, days(0)).unwrap());
        let (asked, elsewhere) = (certificate("a.test"), certificate("b.test"));
        let made = sign(&own, &asked.spec.dns_names, VALIDITY_DAYS, days(0)).unwrap();
        let ours = secret(&asked, &made, &own);
        let SecretContent::Valid(ends) = inspect_secret(&ours, &asked, &own, days(0)) else { panic!("{ours:?}") };
        assert!(ends >= days(VALIDITY_DAYS - 1));
        let mut theirs = ours.clone();
        (theirs.metadata.owner_references, theirs.metadata.labels) = (None, None);
        let renewal = days(VALIDITY_DAYS - RENEW_BEFORE_DAYS + 1);
        for (secret, asked, authority, now, found) in [
            (&ours, &asked, &own, renewal, SecretContent::Outdated),
            (&ours, &asked, &own, days(-200), SecretContent::Outdated),
            (&ours, &asked, &other, days(0), SecretContent::Outdated),
            (&ours, &elsewhere, &own, days(0), SecretContent::Outdated),
            (&Secret::default(), &asked, &own, days(0), SecretContent::Foreign),
            (&theirs, &asked, &other, renewal, SecretContent::Valid(ends)),
            (&theirs, &elsewhere, &own, days(0), SecretContent::Foreign),
            (&theirs, &asked, &own, days(VALIDITY_DAYS + 1), SecretContent::Foreign),
        ] {
            assert_eq!(inspect_secret(secret, asked, authority, now), found, "{asked:?} at {now}");
        }
    }

    /// X-RTE-07: an authority that ends soon signs for as long as it lasts, once and not every hour.
    #[test]
    fn a_certificate_ends_with_its_authority() {
        let (short, asked) = (create_authority("short", 20, days(0)).unwrap(), certificate("a.test"));
        assert_eq!(validity_days(&short, days(0)), 19);
        let made = sign(&short, &asked.spec.dns_names, validity_days(&short, days(0)), days(0)).unwrap();
        let secret = secret(&asked, &made, &short);
        let SecretContent::Valid(ends) = inspect_secret(&secret, &asked, &short, days(1)) else { panic!("made anew") };
        assert_eq!(valid_until(&secret, &asked, days(1)), Some(ends));
        assert_eq!(valid_until(&secret, &asked, days(21)), None);
        assert_eq!(valid_until(&secret, &asked, days(-3)), Some(ends), "the clock is behind");
        assert_eq!(valid_until(&secret, &certificate("b.test"), days(1)), None);
    }

    #[test]
    fn the_status_says_when_it_ends_and_when_it_is_due() {
        let mut asked = certificate("a.test");
        assert!(needs_renewal(&asked, days(0)), "there is none yet");
        asked.status = Some(status(&asked, IssueOutcome::Issued(days(VALIDITY_DAYS)), days(0)));
        assert!(!needs_renewal(&asked, days(VALIDITY_DAYS - RENEW_BEFORE_DAYS - 1)));
        assert!(needs_renewal(&asked, days(VALIDITY_DAYS - RENEW_BEFORE_DAYS + 1)));
        assert!(needs_renewal(&asked, days(-2)), "the clock was ahead");
        let failed = IssueOutcome::Failed { reason: "NotOwned", message: "why".to_owned() };
        asked.status = Some(status(&asked, failed, days(1)));
        assert!(needs_renewal(&asked, days(1)), "looked at again until it is there");
        let reported = asked.status.as_mut().unwrap().base.conditions.remove(0);
        assert_eq!(
            (reported.kind.as_str(), reported.status, reported.reason.as_str()),
            ("Ready", ConditionStatus::False, "NotOwned")
        );
        asked.metadata.annotations = None;
        assert!(!needs_renewal(&asked, days(VALIDITY_DAYS)), "another's");
    }
}
