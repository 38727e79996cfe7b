//! Provides certificates of our class: signs them, keeps them in their Secrets, and renews them.

use dataplane::tls::Identity;
use jiff::Timestamp;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};

use super::authority;
use super::wanted::wildcard;
use crate::access::signing::{DAY_SECONDS, Signed, begins_after, ends, ends_within, sign};
use crate::controllers::domain_mapping;
use crate::controllers::queue::{Item, Kind};
use crate::controllers::service::children::owner;
use crate::controllers::world::{Error, World, now};
use crate::kinds::networking::certificate::{CONDITIONS, Certificate, CertificateStatus, UID_LABEL};
use crate::kinds::settings::SERVING;
use crate::kinds::shared::{HasConditions as _, Verdict, controller, is_controlled_by, label, namespace};

pub(super) const CERTIFICATE: &str = "tls.crt";
pub(super) const KEY: &str = "tls.key";
/// A certificate lives this many days: short enough that one who got hold of its key does not have it for long.
pub(super) const LIFE_DAYS: i64 = 90;
/// Days before its end that it is made anew; so many are left to find out why that fails.
pub(super) const RENEW_DAYS: i64 = 30;

/// How it went with a Certificate.
#[derive(Debug, PartialEq)]
enum Outcome {
    /// Its Secret holds one that ends then.
    Provided(Timestamp),
    Failed {
        reason: &'static str,
        message: String,
    },
}

pub async fn reconcile(world: &World, item: &Item) -> Result<(), Error> {
    let certificate = world.certificates.get(&item.namespace, &item.name);
    let Some(certificate) = certificate.filter(|certificate| certificate.is_ours()) else { return Ok(()) };
    if certificate.metadata.deletion_timestamp.is_some() {
        return Ok(());
    }
    world.duty.check()?;
    // Namespaces are followed only while some are to have such.
    let of_namespace = controller(&certificate.metadata).is_some_and(|owner| owner.kind == "Namespace");
    if of_namespace && world.settings().network.wildcards_for.is_none() {
        return super::delete(world, &item.namespace, &item.name).await;
    }
    let outcome = provide(world, &certificate, now()).await?;
    let mut after = (*certificate).clone();
    after.status = Some(status(&certificate, outcome, now()));
    world.set_status(&*certificate, &after).await
}

/// Whether a certificate may have to be made anew. One that ends later than any that we make now may have been made
/// while the clock was ahead, and not have begun.
pub(super) fn is_due(certificate: &Certificate, now: Timestamp) -> bool {
    let ends = certificate.status.as_ref().and_then(|status| status.not_after.as_ref());
    let usual = RENEW_DAYS * DAY_SECONDS..=(LIFE_DAYS + 1) * DAY_SECONDS;
    let is_ready = certificate.ready().is_some_and(|ready| ready.status == Verdict::True);
    let lasts = ends.is_some_and(|ends| usual.contains(&(ends.0.as_second() - now.as_second())));
    certificate.is_ours() && !(is_ready && lasts)
}

/// How long a certificate lives that is signed now: none is good for longer than its authority.
fn life_days(authority: &Signed, now: Timestamp) -> i64 {
    let left = ends(authority.certificate.as_bytes()).map_or(0, |ends| ends.as_second() - now.as_second());
    LIFE_DAYS.min(left / DAY_SECONDS)
}

async fn provide(world: &World, certificate: &Certificate, now: Timestamp) -> Result<Outcome, Error> {
    let (ns, secret_name) = (namespace(&certificate.metadata), &certificate.spec.secret_name);
    let there = world.ingress.secrets.get(ns, secret_name);
    let authority = match authority::open(world, now).await? {
        Ok(authority) => authority,
        Err(message) => return Ok(without(there.as_deref(), certificate, "AuthorityInvalid", message, now)),
    };
    match there.as_deref().map(|secret| judge(secret, certificate, &authority, now)) {
        Some(Found::Good(ends)) => return Ok(Outcome::Provided(ends)),
        Some(Found::Foreign) => {
            let message = format!("There is an existing Secret \"{secret_name}\" that we do not own.");
            return Ok(Outcome::Failed { reason: "NotOwned", message });
        }
        Some(Found::Outdated) | None => {}
    }
    if !is_wanted(world, certificate) {
        let message = "Its names are not those of the Route or DomainMapping that it belongs to.".to_owned();
        return Ok(Outcome::Failed { reason: "NotWanted", message });
    }
    let failed = |message| Ok(without(there.as_deref(), certificate, "SigningFailed", message, now));
    let made = match sign(&authority, &certificate.spec.dns_names, life_days(&authority, now), now) {
        Ok(made) => made,
        Err(why) => return failed(why.to_string()),
    };
    let mut secret = secret(certificate, &made, &authority);
    if let Some(there) = &there {
        secret = Secret { data: secret.data, ..(**there).clone() };
    }
    // What we would not keep is not written: its Secret's change would bring us here again, and so on.
    let Found::Good(ends) = judge(&secret, certificate, &authority, now) else {
        return failed("Signed by this authority it would not be good for all its names.".to_owned());
    };
    match there {
        None => drop(world.create(&secret).await?),
        Some(_) => drop(world.replace(&secret).await?),
    }
    Ok(Outcome::Provided(ends))
}

/// Nothing can be signed. What was signed before serves to its end.
fn without(
    there: Option<&Secret>,
    certificate: &Certificate,
    reason: &'static str,
    message: String,
    now: Timestamp,
) -> Outcome {
    let Some(ends) = there.and_then(|secret| good_until(secret, certificate, now)) else {
        return Outcome::Failed { reason, message };
    };
    let (namespace, secret) = (namespace(&certificate.metadata), &certificate.spec.secret_name);
    tracing::warn!(namespace, secret, reason, message, "a certificate cannot be renewed");
    Outcome::Provided(ends)
}

/// Whether the names are of hosts that whoever asks really has: or else a developer could have a certificate for the
/// hosts of another. In the operator's own namespace everything may be asked for.
fn is_wanted(world: &World, certificate: &Certificate) -> bool {
    let (ns, names) = (namespace(&certificate.metadata), &certificate.spec.dns_names);
    let owner = controller(&certificate.metadata);
    let has_all = |owner: &str| names.iter().all(|host| world.publisher.has_host(owner, host));
    match owner.map(|owner| (owner.kind.as_str(), owner.name.as_str())) {
        _ if ns == SERVING => true,
        Some(("Route", name)) => has_all(&format!("{ns}/{name}")),
        Some(("DomainMapping", name)) => {
            has_all(&domain_mapping::owner(&Item::new(Kind::DomainMapping, ns, name)))
        }
        // A developer's own namespace is his.
        Some(("Namespace", name)) if name == ns => {
            let settings = world.settings();
            let stands = |domain: &str| wildcard(ns, domain, &settings.network);
            let known: Vec<_> = super::domains(world, &settings).into_iter().filter_map(stands).collect();
            settings.network.wildcards_for.is_some() && names.iter().all(|name| known.contains(name))
        }
        _ => false,
    }
}

/// What is in a Secret where a certificate should be.
#[derive(Debug, PartialEq)]
enum Found {
    /// That, until then.
    Good(Timestamp),
    /// One that is to be made anew.
    Outdated,
    /// Something of somebody else.
    Foreign,
}

/// Somebody else's is good too, if it is for all the names: the operator put it there.
fn judge(secret: &Secret, certificate: &Certificate, authority: &Signed, now: Timestamp) -> Found {
    let chain = part(secret, CERTIFICATE);
    let is_for_all = is_for_all(secret, certificate);
    let is_ours = is_controlled_by(&secret.metadata, &certificate.metadata)
        || label(&secret.metadata, UID_LABEL) == certificate.metadata.uid.as_deref();
    let lasts = |days: i64| !ends_within(chain, days, now);
    // As long as it could be, if its authority ends soon.
    let lasts_long = lasts(RENEW_DAYS.min(life_days(authority, now) - 1)) && !begins_after(chain, now);
    let is_of_authority = || part(secret, authority::CA) == authority.certificate.as_bytes();
    match ends(chain) {
        Some(ends) if is_for_all && is_ours && lasts_long && is_of_authority() => Found::Good(ends),
        _ if is_ours => Found::Outdated,
        Some(ends) if is_for_all && lasts(0) => Found::Good(ends),
        _ => Found::Foreign,
    }
}

fn is_for_all(secret: &Secret, certificate: &Certificate) -> bool {
    Identity::from_pem(part(secret, CERTIFICATE), part(secret, KEY))
        .is_ok_and(|identity| certificate.spec.dns_names.iter().all(|name| identity.is_for(name)))
}

/// When what is there ends, if it is good for its names, whoever put it there. Whether it has begun does not count: it
/// may be the clock that is behind.
fn good_until(secret: &Secret, certificate: &Certificate, now: Timestamp) -> Option<Timestamp> {
    ends(part(secret, CERTIFICATE)).filter(|ends| *ends > now && is_for_all(secret, certificate))
}

fn secret(certificate: &Certificate, made: &Signed, authority: &Signed) -> Secret {
    let meta = &certificate.metadata;
    let data = [(CERTIFICATE, &made.certificate), (KEY, &made.key), (authority::CA, &authority.certificate)];
    Secret {
        metadata: ObjectMeta {
            name: Some(certificate.spec.secret_name.clone()),
            namespace: meta.namespace.clone(),
            labels: meta.uid.clone().map(|uid| [(UID_LABEL.to_owned(), uid)].into()),
            owner_references: owner(certificate),
            ..ObjectMeta::default()
        },
        type_: Some("kubernetes.io/tls".into()),
        data: Some(data.map(|(key, text)| (key.to_owned(), ByteString(text.clone().into_bytes()))).into()),
        ..Secret::default()
    }
}

/// What a Secret has under a key; nothing if it has none.
pub(super) fn part<'a>(secret: &'a Secret, key: &str) -> &'a [u8] {
    secret.data.as_ref().and_then(|data| data.get(key)).map(|bytes| &bytes.0[..]).unwrap_or_default()
}

fn status(certificate: &Certificate, outcome: Outcome, now: Timestamp) -> CertificateStatus {
    let mut status = certificate.status.clone().unwrap_or_default();
    let before = std::mem::take(&mut status.base.conditions);
    let mut conditions = CONDITIONS.manage(&before, now);
    match outcome {
        Outcome::Provided(ends) => {
            conditions.mark_true("Ready");
            status.not_after = Some(Time(ends));
        }
        Outcome::Failed { reason, message } => conditions.mark_false("Ready", reason, &message),
    }
    conditions.conclude(&mut status.base, certificate.metadata.generation);
    status
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access::signing::make_authority;
    use crate::kinds::networking::certificate::{CLASS, CLASS_ANNOTATIONS, CertificateSpec};

    fn days(days: i64) -> Timestamp {
        Timestamp::from_second(1_800_000_000 + days * DAY_SECONDS).unwrap()
    }

    fn certificate(host: &str) -> Certificate {
        let spec = CertificateSpec {
            dns_names: vec![host.to_owned()],
            secret_name: "s".into(),
            domain: String::new(),
        };
        let mut made = Certificate::new("ns", "s", spec);
        made.metadata.uid = Some("u".into());
        made.metadata.annotations = Some([(CLASS_ANNOTATIONS[0].to_owned(), CLASS.to_owned())].into());
        made
    }

    /// X-RTE-07: what is in the Secret decides, whoever put it there.
    #[test]
    fn a_secret_is_kept_renewed_or_left_to_its_owner() {
        let [own, other] = ["own", "other"].map(|name| make_authority(name, 1_000, days(0)).unwrap());
        let (asked, elsewhere) = (certificate("a.test"), certificate("b.test"));
        let made = sign(&own, &asked.spec.dns_names, LIFE_DAYS, days(0)).unwrap();
        let ours = secret(&asked, &made, &own);
        let Found::Good(ends) = judge(&ours, &asked, &own, days(0)) else { panic!("{ours:?}") };
        assert!(ends >= days(LIFE_DAYS - 1));
        let mut theirs = ours.clone();
        (theirs.metadata.owner_references, theirs.metadata.labels) = (None, None);
        let renewal = days(LIFE_DAYS - RENEW_DAYS + 1);
        for (secret, asked, authority, now, found) in [
            (&ours, &asked, &own, renewal, Found::Outdated),
            (&ours, &asked, &own, days(-200), Found::Outdated),
            (&ours, &asked, &other, days(0), Found::Outdated),
            (&ours, &elsewhere, &own, days(0), Found::Outdated),
            (&Secret::default(), &asked, &own, days(0), Found::Foreign),
            (&theirs, &asked, &other, renewal, Found::Good(ends)),
            (&theirs, &elsewhere, &own, days(0), Found::Foreign),
            (&theirs, &asked, &own, days(LIFE_DAYS + 1), Found::Foreign),
        ] {
            assert_eq!(judge(secret, asked, authority, now), found, "{asked:?} at {now}");
        }
    }

    /// X-RTE-07: an authority that ends soon signs for as long as it lasts, once and not every hour.
    #[test]
    fn a_certificate_ends_with_its_authority() {
        let (short, asked) = (make_authority("short", 20, days(0)).unwrap(), certificate("a.test"));
        assert_eq!(life_days(&short, days(0)), 19);
        let made = sign(&short, &asked.spec.dns_names, life_days(&short, days(0)), days(0)).unwrap();
        let secret = secret(&asked, &made, &short);
        let Found::Good(ends) = judge(&secret, &asked, &short, days(1)) else { panic!("made anew") };
        assert_eq!(good_until(&secret, &asked, days(1)), Some(ends));
        assert_eq!(good_until(&secret, &asked, days(21)), None);
        assert_eq!(good_until(&secret, &asked, days(-3)), Some(ends), "the clock is behind");
        assert_eq!(good_until(&secret, &certificate("b.test"), days(1)), None);
    }

    #[test]
    fn the_status_says_when_it_ends_and_when_it_is_due() {
        let mut asked = certificate("a.test");
        assert!(is_due(&asked, days(0)), "there is none yet");
        asked.status = Some(status(&asked, Outcome::Provided(days(LIFE_DAYS)), days(0)));
        assert!(!is_due(&asked, days(LIFE_DAYS - RENEW_DAYS - 1)));
        assert!(is_due(&asked, days(LIFE_DAYS - RENEW_DAYS + 1)));
        assert!(is_due(&asked, days(-2)), "the clock was ahead");
        let failed = Outcome::Failed { reason: "NotOwned", message: "why".to_owned() };
        asked.status = Some(status(&asked, failed, days(1)));
        assert!(is_due(&asked, days(1)), "looked at again until it is there");
        let told = asked.status.as_mut().unwrap().base.conditions.remove(0);
        assert_eq!(
            (told.kind.as_str(), told.status, told.reason.as_str()),
            ("Ready", Verdict::False, "NotOwned")
        );
        asked.metadata.annotations = None;
        assert!(!is_due(&asked, days(LIFE_DAYS)), "another's");
    }
}
