//! The authority that signs certificates of our class: in a Secret, so that all appliances that follow one API have the
//! same, and so that an operator may put his own in its place. Its certificate alone is in a ConfigMap for everybody.

use jiff::Timestamp;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::issue::{CERTIFICATE, KEY, LIFE_DAYS, RENEW_DAYS, part};
use crate::access::signing::{Signed, ends_within, make_authority};
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

/// The authority as it is; made, if there is none or ours is about to end. The inner error is what is wrong with the
/// operator's.
pub(super) async fn open(world: &World, now: Timestamp) -> Result<Result<Signed, String>, Error> {
    let there = world.ingress.secrets.get(SERVING, NAME);
    if let Some(secret) = &there {
        let text = |key: &str| String::from_utf8_lossy(part(secret, key)).into_owned();
        let known = Signed { certificate: text(CERTIFICATE), key: text(KEY) };
        // It has to outlive what it signs.
        let lasts = !ends_within(known.certificate.as_bytes(), LIFE_DAYS + RENEW_DAYS, now);
        if lasts {
            publish(world, &known).await?;
            return Ok(Ok(known));
        }
        if annotation(&secret.metadata, SELF_MADE).is_none() {
            let why =
                format!("Secret \"{SERVING}/{NAME}\": {CERTIFICATE} is no certificate, or ends too soon.");
            return Ok(Err(why));
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
