//! The admin listener of a running appliance, for the verbs that query it.

use std::net::SocketAddr;

use anyhow::{Context, Result, anyhow};
use serde_json::Value;
use ureq::Body;
use ureq::http::Response;

use crate::config::address;

#[derive(Debug, Clone, clap::Args)]
pub(crate) struct AdminClient {
    /// The appliance's admin listener
    #[arg(long, value_name = "ADDR", value_parser = address, env = "SLUICEGATE_ADMIN", default_value = "127.0.0.1:9090")]
    admin: SocketAddr,
}

impl AdminClient {
    pub(super) fn address(&self) -> SocketAddr {
        self.admin
    }

    pub(super) fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.admin)
    }

    /// The JSON at a path.
    pub(super) fn get(&self, path: &str, query: &[(&str, Option<&str>)]) -> Result<Value> {
        let given = query.iter().filter_map(|(name, value)| Some((*name, (*value)?)));
        let answer = agent().get(self.url(path)).query_pairs(given).call();
        let mut answer = answer.with_context(|| self.unreachable())?;
        if answer.status() != 200 {
            return Err(self.refusal(&mut answer));
        }
        let text = answer.body_mut().with_config().limit(u64::MAX).read_to_string()?;
        serde_json::from_str(&text).with_context(|| format!("{} does not answer JSON", self.url(path)))
    }

    /// The error of the admin listener. Another listener also returns an error, and does not know these paths.
    pub(super) fn refusal(&self, answer: &mut Response<Body>) -> anyhow::Error {
        let said = answer.body_mut().read_to_string().unwrap_or_default();
        let said = said.trim();
        match answer.status().as_u16() {
            404 if !said.starts_with("there is no Trigger") => {
                anyhow!(
                    "{} is not an admin listener: give --admin the address of the ready line; it answers 404: {said}",
                    self.admin
                )
            }
            _ => anyhow!("{said}"),
        }
    }

    pub(super) fn unreachable(&self) -> String {
        format!("no appliance responds at {}: give --admin the address of its ready line", self.admin)
    }
}

pub(super) fn agent() -> ureq::Agent {
    ureq::Agent::config_builder().http_status_as_error(false).build().into()
}
