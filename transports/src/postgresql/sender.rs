//! NOTIFY on a channel, or INSERT of the event as JSON into a table.

use adapter::tls::Tls;
use adapter::{Context, Error, Event, SecretFile, SendError, to_json};
use serde::Deserialize;
use tokio::sync::Mutex;
use tokio_postgres::Client;

use super::connection::{PostgresqlConnection, quote_identifier};

/// PostgreSQL takes payloads of fewer bytes than this.
const NOTIFICATION_BYTES_MAX: usize = 8000;

#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Config {
    host: String,
    port: Option<u16>,
    database: String,
    user: String,
    password: Option<SecretFile>,
    tls: Option<Tls>,
    channel: Option<String>,
    /// A table with a column `event` of type text, json or jsonb.
    table: Option<String>,
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

pub(crate) struct PostgresqlSender {
    config: Config,
    statement: String,
    client: Mutex<Option<std::rc::Rc<Client>>>,
}

impl adapter::Sender for PostgresqlSender {
    type Config = Config;

    fn new(config: Config, _: &Context) -> Result<Self, Error> {
        let statement = match (&config.channel, &config.table) {
            (Some(_), None) => "SELECT pg_notify($1, $2)".to_owned(),
            (None, Some(table)) => {
                let table: Vec<String> = table.split('.').map(quote_identifier).collect();
                let table = table.join(".");
                // jsonb_populate_record casts the text to the type of the column, whatever it is.
                format!(
                    "INSERT INTO {table} (event) SELECT event FROM jsonb_populate_record(NULL::{table}, jsonb_build_object('event', $1::text::jsonb))"
                )
            }
            _ => return Err(Error::config("ADAPTER_SENDER: give either channel or table")),
        };
        Ok(PostgresqlSender { config, statement, client: Mutex::new(None) })
    }

    async fn connect(&self) -> Result<(), Error> {
        self.client().await.map(|_| ())
    }

    async fn send(&self, event: &Event) -> Result<(), SendError> {
        if event.opaque.is_some() {
            return Err(SendError::rejected("the event has a format that is not JSON"));
        }
        let json = String::from_utf8(to_json(event)).map_err(SendError::rejected)?;
        let client = self.client().await.map_err(SendError::unavailable)?;
        let done = match &self.config.channel {
            Some(_) if json.len() >= NOTIFICATION_BYTES_MAX => {
                let message =
                    format!("the event has {} bytes, limit of a notification {NOTIFICATION_BYTES_MAX}", json.len());
                return Err(SendError::rejected(message));
            }
            Some(channel) => client.execute(&self.statement, &[channel, &json]).await,
            None => client.execute(&self.statement, &[&json]).await,
        };
        match done {
            Ok(_) => Ok(()),
            Err(error) if error.is_closed() => {
                self.client.lock().await.take();
                Err(SendError::unavailable(error))
            }
            // Class 22 is a data exception: the server will never take this event, for example jsonb with \u0000.
            Err(error) if error.code().is_some_and(|state| state.code().starts_with("22")) => {
                Err(SendError::rejected(super::connection::failed(error).message))
            }
            Err(error) => Err(SendError::unavailable(super::connection::failed(error).message)),
        }
    }
}

impl PostgresqlSender {
    async fn client(&self) -> Result<std::rc::Rc<Client>, Error> {
        let mut client = self.client.lock().await;
        if let Some(client) = client.as_ref().filter(|client| !client.is_closed()) {
            return Ok(client.clone());
        }
        let opened = std::rc::Rc::new(self.config.connection().open(None).await?);
        Ok(client.insert(opened).clone())
    }
}
