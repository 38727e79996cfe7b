//! Sending to a queue.

use std::path::PathBuf;

use adapter::tls::Tls;
use adapter::{Context, Error, Event, SecretFile, SendError};
use serde::Deserialize;
use tokio::sync::OnceCell;

use super::message::{SqsBody, input_of};
use super::queue::{SqsQueue, SqsQueueConfig};
use crate::aws::CredentialFiles;

#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Config {
    arn: String,
    region: Option<String>,
    uri_endpoint_override: Option<String>,
    access_key: Option<SecretFile>,
    secret_key: Option<SecretFile>,
    session_token: Option<SecretFile>,
    secret: Option<PathBuf>,
    tls: Option<Tls>,
    #[serde(default)]
    auto_create_queue: bool,
    #[serde(default)]
    body: SqsBody,
}

impl Config {
    fn queue(&self) -> SqsQueueConfig {
        SqsQueueConfig {
            arn: self.arn.clone(),
            region: self.region.clone(),
            endpoint: self.uri_endpoint_override.clone(),
            credentials: CredentialFiles {
                secret: self.secret.clone(),
                access_key: self.access_key.clone(),
                secret_key: self.secret_key.clone(),
                session_token: self.session_token.clone(),
            },
            tls: self.tls.clone(),
            creates: self.auto_create_queue,
        }
    }
}

pub(crate) struct SqsSender {
    queue: SqsQueue,
    body: SqsBody,
    url: OnceCell<String>,
}

impl adapter::Sender for SqsSender {
    type Config = Config;

    fn new(config: Config, _: &Context) -> Result<Self, Error> {
        let queue = SqsQueue::new(config.queue(), "ADAPTER_SENDER")?;
        Ok(SqsSender { queue, body: config.body, url: OnceCell::new() })
    }

    async fn connect(&self) -> Result<(), Error> {
        self.url.get_or_try_init(|| self.queue.url()).await.map(|_| ())
    }

    async fn send(&self, event: &Event) -> Result<(), SendError> {
        let url = self.url.get_or_try_init(|| self.queue.url()).await;
        let url = url.map_err(|error| SendError::unavailable(error.message))?;
        self.queue.send(&input_of(event, url, self.body, self.queue.is_fifo())?).await
    }
}
