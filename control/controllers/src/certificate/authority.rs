//! The authority that signs certificates of our class. It is stored in a Secret, so that all appliances that follow one
//! API share it, and an operator can replace it. A ConfigMap publishes its certificate without the key.

use contract::tls::TlsIdentity;
use jiff::Timestamp;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use crate::api::Error;
use crate::context::ControllerContext;
use crate::tls_secrets::{AUTHORITY, CA_CERT_KEY, CERTIFICATE, KEY, secret_data};
use crate::trust_store::BUNDLE_LABEL;
use apiserver::access::signing::{
    CertificateKeyPair, check_authority, create_authority, expires_within, has_common_name, is_not_yet_valid,
};
use types::settings::SERVING;
use types::shared::annotation;

const COMMON_NAME: &str = "Sluicegate domain authority";
/// Validity of a certificate in days: short enough that a stolen key is of use for a limited time.
pub(super) const VALIDITY_DAYS: i64 = 90;

/// Days before its expiry that it is renewed; an operator has this long to fix a failing renewal.
pub(super) const RENEW_BEFORE_DAYS: i64 = 30;
/// An annotation of the Secrets that we created, and so may replace.
const SELF_SIGNED: &str = "sluicegate.dev/self-made";
/// Validity of an authority in days. Long, because every client that trusts it has to install its successor.
const AUTHORITY_DAYS: i64 = 3_650;

/// The current authority; created if there is none or ours expires soon. The inner error names the problem of an
/// operator's authority, which is never overwritten: the operator may be in the middle of a change.
pub(super) async fn load_or_create(
    context: &ControllerContext,
    now: Timestamp,
) -> Result<Result<CertificateKeyPair, String>, Error> {
    let there = context.caches.secrets.get(SERVING, AUTHORITY);
    if let Some(secret) = &there {
        let text = |key: &str| String::from_utf8_lossy(secret_data(secret, key)).into_owned();
        let known = CertificateKeyPair { certificate: text(CERTIFICATE), key: text(KEY) };
        // The annotation alone stays when `kubectl apply` puts another's into our Secret.
        let is_ours = annotation(&secret.metadata, SELF_SIGNED).is_some()
            && has_common_name(known.certificate.as_bytes(), COMMON_NAME);
        // Clients need time to install its successor. An operator's authority signs until it expires.
        let days = if is_ours { VALIDITY_DAYS + RENEW_BEFORE_DAYS } else { 1 };
        match validate(&known, days, now) {
            Ok(()) => {
                publish(context, &known).await?;
                return Ok(Ok(known));
            }
            Err(AuthorityFault::Expiring) if is_ours => {}
            Err(fault) => return Ok(Err(format!("Secret \"{SERVING}/{AUTHORITY}\": {fault}."))),
        }
    }
    let made = match create_authority(COMMON_NAME, AUTHORITY_DAYS, now) {
        Ok(made) => made,
        Err(why) => return Ok(Err(why.to_string())),
    };
    let mut secret = there.map(|there| (*there).clone()).unwrap_or_else(|| Secret {
        metadata: ObjectMeta { annotations: Some([(SELF_SIGNED.to_owned(), "true".to_owned())].into()), ..metadata() },
        type_: Some("kubernetes.io/tls".into()),
        ..Secret::default()
    });
    let data = [(CERTIFICATE, &made.certificate), (KEY, &made.key)];
    secret.data = Some(data.map(|(key, text)| (key.to_owned(), ByteString(text.clone().into_bytes()))).into());
    match &secret.metadata.resource_version {
        None => drop(context.create(&secret).await?),
        Some(_) => drop(context.replace(&secret).await?),
    }
    publish(context, &made).await?;
    Ok(Ok(made))
}

/// Why nothing is signed by what is there.
#[derive(Debug, PartialEq, thiserror::Error)]
enum AuthorityFault {
    #[error("{CERTIFICATE} ends too soon")]
    Expiring,
    /// Our own is not renewed either: if the local clock is slow, clients would be left with an authority that no
    /// longer exists.
    #[error("{CERTIFICATE} has not begun by the clock here")]
    NotYetValid,
    /// Clients would reject all that it signs, while the Secret would look valid.
    #[error("{CERTIFICATE} and {KEY}: {0}")]
    Invalid(String),
}

fn validate(authority: &CertificateKeyPair, days: i64, now: Timestamp) -> Result<(), AuthorityFault> {
    let (certificate, key) = (authority.certificate.as_bytes(), authority.key.as_bytes());
    TlsIdentity::from_pem(certificate, key).map_err(|why| AuthorityFault::Invalid(why.to_string()))?;
    check_authority(authority).map_err(|why| AuthorityFault::Invalid(why.to_string()))?;
    match () {
        () if expires_within(certificate, days, now) => Err(AuthorityFault::Expiring),
        () if is_not_yet_valid(certificate, now) => Err(AuthorityFault::NotYetValid),
        () => Ok(()),
    }
}

/// Publishes the authority's certificate.
async fn publish(context: &ControllerContext, authority: &CertificateKeyPair) -> Result<(), Error> {
    let data = Some([(CA_CERT_KEY.to_owned(), authority.certificate.clone())].into());
    let there = context.config_maps.get(SERVING, AUTHORITY);
    let mut map = match &there {
        Some(there) => ConfigMap { data, ..(**there).clone() },
        None => ConfigMap { metadata: metadata(), data, ..ConfigMap::default() },
    };
    map.metadata.labels.get_or_insert_default().insert(BUNDLE_LABEL.to_owned(), "true".to_owned());
    match there {
        Some(there) if *there == map => Ok(()),
        Some(_) => context.replace(&map).await.map(drop),
        None => context.create(&map).await.map(drop),
    }
}

fn metadata() -> ObjectMeta {
    ObjectMeta { namespace: Some(SERVING.into()), name: Some(AUTHORITY.into()), ..ObjectMeta::default() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use apiserver::access::signing::sign;

    /// X-RTE-07: a certificate with another one's key signs nothing, and one that lasts a day still does.
    #[test]
    fn an_authority_has_its_own_key_and_time_left() {
        let now = Timestamp::from_second(1_800_000_000).unwrap();
        let [one, other] = ["one", "other"].map(|name| create_authority(name, 10, now).unwrap());
        assert_eq!(validate(&one, 1, now), Ok(()));
        assert_eq!(validate(&one, 11, now), Err(AuthorityFault::Expiring));
        let before = Timestamp::from_second(1_700_000_000).unwrap();
        assert_eq!(validate(&one, 1, before), Err(AuthorityFault::NotYetValid));
        let leaf = sign(&one, &["a.test".to_owned()], 10, now).unwrap();
        assert!(matches!(validate(&leaf, 1, now), Err(AuthorityFault::Invalid(_))));
        let torn = CertificateKeyPair { key: other.key, ..one.clone() };
        assert!(matches!(validate(&torn, 1, now), Err(AuthorityFault::Invalid(_))));
        let keyless = CertificateKeyPair { key: String::new(), ..one };
        assert!(matches!(validate(&keyless, 1, now), Err(AuthorityFault::Invalid(_))));
        let nothing = CertificateKeyPair { certificate: String::new(), key: String::new() };
        assert!(matches!(validate(&nothing, 1, now), Err(AuthorityFault::Invalid(_))), "and ours is not overwritten");
    }
}
