//! The authority that signs certificates of our class: in a Secret, so that all appliances that follow one API have the
//! same, and so that an operator may put his own in its place. Its certificate alone is in a ConfigMap for everybody.

use dataplane::tls::Identity;
use jiff::Timestamp;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::issue::{CERTIFICATE, KEY, LIFE_DAYS, RENEW_DAYS, part};
use crate::access::signing::{Signed, begins_after, check, ends_within, is_called, make_authority};
use crate::controllers::trusts::BUNDLE_LABEL;
use crate::controllers::world::{Error, World};
use crate::kinds::settings::SERVING;
use crate::kinds::shared::annotation;

/// Of the Secret, and of the ConfigMap.
const NAME: &str = "sluicegate-domain-authority";
const COMMON_NAME: &str = "Sluicegate domain authority";
/// Where the certificate stands that everybody may read.
pub(super) const CA: &str = "ca.crt";
/// On one that we made, and so may make anew.
const SELF_MADE: &str = "sluicegate.dev/self-made";
/// An authority lives this many days: whoever believes it has to be told of the next one.
const AUTHORITY_DAYS: i64 = 3_650;

/// Whether that Secret or ConfigMap is the authority's.
pub(in crate::controllers) fn is_it(ns: &str, name: &str) -> bool {
    (ns, name) == (SERVING, NAME)
}

/// The authority as it is; made, if there is none or ours is about to end. The inner error is what is wrong with it,
/// which is the operator's to mend and never overwritten: he may be half way through.
pub(super) async fn open(world: &World, now: Timestamp) -> Result<Result<Signed, String>, Error> {
    let there = world.ingress.secrets.get(SERVING, NAME);
    if let Some(secret) = &there {
        let text = |key: &str| String::from_utf8_lossy(part(secret, key)).into_owned();
        let known = Signed { certificate: text(CERTIFICATE), key: text(KEY) };
        // The annotation alone stays when `kubectl apply` puts another's into our Secret.
        let is_ours = annotation(&secret.metadata, SELF_MADE).is_some()
            && is_called(known.certificate.as_bytes(), COMMON_NAME);
        // Clients have to hear of the next one in time. Another's signs for as long as it lasts.
        let days = if is_ours { LIFE_DAYS + RENEW_DAYS } else { 1 };
        match judge(&known, days, now) {
            Ok(()) => {
                publish(world, &known).await?;
                return Ok(Ok(known));
            }
            Err(Fault::Ends) if is_ours => {}
            Err(fault) => return Ok(Err(format!("Secret \"{SERVING}/{NAME}\": {fault}."))),
        }
    }
    let made = match make_authority(COMMON_NAME, AUTHORITY_DAYS, now) {
        Ok(made) => made,
        Err(why) => return Ok(Err(why.to_string())),
    };
    let mut secret = there.map(|there| (*there).clone()).unwrap_or_else(|| Secret {
        metadata: ObjectMeta {
            annotations: Some([(SELF_MADE.to_owned(), "true".to_owned())].into()),
            ..home()
        },
        type_: Some("kubernetes.io/tls".into()),
        ..Secret::default()
    });
    let data = [(CERTIFICATE, &made.certificate), (KEY, &made.key)];
    secret.data =
        Some(data.map(|(key, text)| (key.to_owned(), ByteString(text.clone().into_bytes()))).into());
    match &secret.metadata.resource_version {
        None => drop(world.create(&secret).await?),
        Some(_) => drop(world.replace(&secret).await?),
    }
    publish(world, &made).await?;
    Ok(Ok(made))
}

/// Why nothing is signed by what is there.
#[derive(Debug, PartialEq, thiserror::Error)]
enum Fault {
    #[error("{CERTIFICATE} ends too soon")]
    Ends,
    /// Ours is not made anew either: if it is the clock that is behind, clients would be left with one that is gone.
    #[error("{CERTIFICATE} has not begun by the clock here")]
    Early,
    /// What it signed would be good for nobody, and its Secret would look well.
    #[error("{CERTIFICATE} and {KEY}: {0}")]
    Unfit(String),
}

fn judge(authority: &Signed, days: i64, now: Timestamp) -> Result<(), Fault> {
    let (certificate, key) = (authority.certificate.as_bytes(), authority.key.as_bytes());
    Identity::from_pem(certificate, key).map_err(|why| Fault::Unfit(why.to_string()))?;
    check(authority).map_err(|why| Fault::Unfit(why.to_string()))?;
    match () {
        () if ends_within(certificate, days, now) => Err(Fault::Ends),
        () if begins_after(certificate, now) => Err(Fault::Early),
        () => Ok(()),
    }
}

/// Tells everybody whom to believe.
async fn publish(world: &World, authority: &Signed) -> Result<(), Error> {
    let data = Some([(CA.to_owned(), authority.certificate.clone())].into());
    let there = world.maps.get(SERVING, NAME);
    let mut map = match &there {
        Some(there) => ConfigMap { data, ..(**there).clone() },
        None => ConfigMap { metadata: home(), data, ..ConfigMap::default() },
    };
    map.metadata.labels.get_or_insert_default().insert(BUNDLE_LABEL.to_owned(), "true".to_owned());
    match there {
        Some(there) if *there == map => Ok(()),
        Some(_) => world.replace(&map).await.map(drop),
        None => world.create(&map).await.map(drop),
    }
}

fn home() -> ObjectMeta {
    ObjectMeta { namespace: Some(SERVING.into()), name: Some(NAME.into()), ..ObjectMeta::default() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access::signing::sign;

    /// X-RTE-07: a certificate beside another one's key signs nothing, and one that lasts a day still does.
    #[test]
    fn an_authority_has_its_own_key_and_time_left() {
        let now = Timestamp::from_second(1_800_000_000).unwrap();
        let [one, other] = ["one", "other"].map(|name| make_authority(name, 10, now).unwrap());
        assert_eq!(judge(&one, 1, now), Ok(()));
        assert_eq!(judge(&one, 11, now), Err(Fault::Ends));
        let before = Timestamp::from_second(1_700_000_000).unwrap();
        assert_eq!(judge(&one, 1, before), Err(Fault::Early));
        let leaf = sign(&one, &["a.test".to_owned()], 10, now).unwrap();
        assert!(matches!(judge(&leaf, 1, now), Err(Fault::Unfit(_))));
        let torn = Signed { key: other.key, ..one.clone() };
        assert!(matches!(judge(&torn, 1, now), Err(Fault::Unfit(_))));
        let keyless = Signed { key: String::new(), ..one };
        assert!(matches!(judge(&keyless, 1, now), Err(Fault::Unfit(_))));
        let nothing = Signed { certificate: String::new(), key: String::new() };
        assert!(matches!(judge(&nothing, 1, now), Err(Fault::Unfit(_))), "and ours is not overwritten");
    }
}
