//! PostgreSQL: logical replication or LISTEN as receiver, NOTIFY or INSERT as sender.
//!
//! Replication confirms a transaction after the sink accepted its events. LISTEN has no acknowledgement, so its quality of
//! service is 0; an INSERT is confirmed by its commit.

use adapter::tls::Tls;
use adapter::{Context, Error, Event, Intake, SecretFile, from_json};
use serde::Deserialize;
use tokio::sync::mpsc;

mod connection;
mod replication;
mod sender;

use connection::{PostgresqlConnection, quote_identifier};
use replication::Replication;
pub(crate) use sender::PostgresqlSender;

#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Config {
    host: String,
    port: Option<u16>,
    database: String,
    user: String,
    password: Option<SecretFile>,
    tls: Option<Tls>,
    /// LISTEN on these; or `replication`.
    #[serde(default)]
    channels: Vec<String>,
    replication: Option<Replication>,
}

impl Config {
    fn connection(&self) -> PostgresqlConnection {
        PostgresqlConnection {
            host: self.host.clone(),
            port: self.port,
            database: self.database.clone(),
            user: self.user.clone(),
            password: self.password.clone(),
            tls: self.tls.clone(),
        }
    }
}

pub(crate) struct PostgresqlReceiver {
    config: Config,
    source: String,
    /// The slot was used by this process.
    has_run: bool,
}

impl adapter::Receiver for PostgresqlReceiver {
    type Config = Config;
    /// The number of a replicated event.
    type Token = u64;

    fn new(config: Config, _: &Context) -> Result<Self, Error> {
        match &config.replication {
            Some(replication) if config.channels.is_empty() => replication.check()?,
            None if !config.channels.is_empty() => {}
            _ => return Err(Error::config("ADAPTER_RECEIVER: give either channels, at least one, or replication")),
        }
        let source = config.connection().source();
        Ok(PostgresqlReceiver { config, source, has_run: false })
    }

    /// The position of a replicated change is the same at each delivery.
    fn qos_max(&self) -> u8 {
        if self.config.replication.is_some() { 2 } else { 0 }
    }

    async fn receive(&mut self, intake: &mut Intake<u64>) -> Result<(), Error> {
        if let Some(replication) = &self.config.replication {
            return replication.receive(&self.config.connection(), &mut self.has_run, intake).await;
        }
        let (sender, mut notifications) = mpsc::unbounded_channel();
        let client = self.config.connection().open(Some(sender)).await?;
        for channel in &self.config.channels {
            let statement = format!("LISTEN {}", quote_identifier(channel));
            client.batch_execute(&statement).await.map_err(connection::failed)?;
        }
        intake.ready();
        let mut stop = intake.stop();
        while !intake.finished() {
            let stopping = intake.stopping();
            tokio::select! {
                _ = intake.settled() => {}
                notification = notifications.recv() => {
                    let Some(notification) = notification else {
                        return Err(Error::connection("PostgreSQL: the connection was lost"));
                    };
                    if !intake.has_room() {
                        tracing::warn!(channel = notification.channel(), "a notification was dropped, because the sink is slow");
                        continue;
                    }
                    let event = event_of(notification.channel(), notification.payload(), &self.source);
                    intake.push(event, Some(notification.channel()), 0);
                }
                () = stop.wait(), if !stopping => {}
            }
        }
        Ok(())
    }
}

/// A payload that is a structured event stays it; any other becomes the data of one.
fn event_of(channel: &str, payload: &str, source: &str) -> Event {
    if let Ok(event) = from_json(payload.as_bytes()) {
        return event;
    }
    let is_json = serde_json::from_str::<serde::de::IgnoredAny>(payload).is_ok();
    let content_type = if is_json { "application/json" } else { "text/plain" };
    Event::new("dev.sluicegate.postgresql.notification", source, uuid::Uuid::new_v4().to_string())
        .with("subject", channel)
        .with_data(content_type, payload.to_owned())
}
