//! Which program an adapter is.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::field_errors::{FieldErrors, MISSING};

/// The transports of `sluicegate-adapters`.
pub const TRANSPORTS: [&str; 12] =
    ["amqp", "amqp10", "file", "http", "kafka", "mqtt", "nats", "postgresql", "redis", "s3", "sqs", "timer"];

/// What else that program runs: kinds of their own configure it.
const INTERNAL: [&str; 2] = ["github", "jsonata"];

/// Whether `sluicegate-adapters` runs this.
#[must_use]
pub fn is_built_in(transport: &str) -> bool {
    TRANSPORTS.contains(&transport) || INTERNAL.contains(&transport)
}

/// Whether that transport applies a changed configuration on SIGHUP.
#[must_use]
pub fn is_live(transport: &str) -> bool {
    TRANSPORTS.contains(&transport)
}

/// The program of an adapter: one of the two.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct AdapterProgram {
    /// A built-in transport.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub transport: Option<String>,
    /// An image, or what `--image` maps to a command.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
}

impl AdapterProgram {
    #[must_use]
    pub fn transport(name: &str) -> AdapterProgram {
        AdapterProgram { transport: Some(name.to_owned()), image: None }
    }

    pub(crate) fn validate(&self, at: &str, problems: &mut FieldErrors) {
        match (&self.transport, &self.image) {
            (Some(transport), None) if TRANSPORTS.contains(&transport.as_str()) => {}
            (Some(transport), None) => {
                let why = format!("invalid value: {transport}: use one of {}", TRANSPORTS.join(", "));
                problems.add(format!("{at}.transport"), why);
            }
            (None, Some(image)) if !image.is_empty() => {}
            (Some(_), Some(_)) => problems.add(at, "expected exactly one, got both: image, transport"),
            _ => problems.add(at, MISSING),
        }
    }
}
