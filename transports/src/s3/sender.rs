//! PUT of an object an event.

use std::path::PathBuf;

use adapter::tls::Tls;
use adapter::{Context, Error, Event, MessageMode, SecretFile, SendError};
use serde::Deserialize;

use super::bucket::{S3Bucket, S3BucketConfig};
use super::object::{key_of, object_of};
use crate::aws::CredentialFiles;

#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Config {
    arn: String,
    region: Option<String>,
    uri_endpoint_override: Option<String>,
    force_path_style: Option<bool>,
    access_key: Option<SecretFile>,
    secret_key: Option<SecretFile>,
    session_token: Option<SecretFile>,
    secret: Option<PathBuf>,
    tls: Option<Tls>,
    #[serde(default)]
    auto_create_bucket: bool,
    /// Before each key.
    #[serde(default)]
    prefix: String,
    /// One object that each event replaces. Default: the extension attribute `s3key`, `key` or `file`, else source and id.
    key_name: Option<String>,
    #[serde(default)]
    content_mode: MessageMode,
}

impl Config {
    fn bucket(&self) -> S3BucketConfig {
        S3BucketConfig {
            arn: self.arn.clone(),
            region: self.region.clone(),
            endpoint: self.uri_endpoint_override.clone(),
            path_style: self.force_path_style,
            credentials: CredentialFiles {
                secret: self.secret.clone(),
                access_key: self.access_key.clone(),
                secret_key: self.secret_key.clone(),
                session_token: self.session_token.clone(),
            },
            tls: self.tls.clone(),
            creates: self.auto_create_bucket,
        }
    }
}

pub(crate) struct S3Sender {
    config: Config,
    bucket: S3Bucket,
}

impl adapter::Sender for S3Sender {
    type Config = Config;

    fn new(config: Config, _: &Context) -> Result<Self, Error> {
        let bucket = S3Bucket::new(config.bucket(), "ADAPTER_SENDER")?;
        Ok(S3Sender { config, bucket })
    }

    async fn connect(&self) -> Result<(), Error> {
        self.bucket.check().await
    }

    async fn send(&self, event: &Event) -> Result<(), SendError> {
        let key = match &event.opaque {
            // Its attributes are not read.
            Some(_) => format!("{}{}", self.config.prefix, uuid::Uuid::new_v4()),
            None => key_of(event, &self.config.prefix, self.config.key_name.as_deref()),
        };
        let (headers, body) = object_of(event, self.config.content_mode)?;
        self.bucket.put(&key, headers, body).await
    }
}
