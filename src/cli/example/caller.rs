//! A program that calls others, by the names that its developer configured.

use std::time::Duration;

use super::server::ExampleResponse;

/// Of one call.
const CALL_TIMEOUT: Duration = Duration::from_secs(20);

/// One line for each URL in `$CALLS`: the URL, the status and the body, or the error.
pub(super) fn answer() -> ExampleResponse {
    let agent: ureq::Agent =
        ureq::Agent::config_builder().timeout_global(Some(CALL_TIMEOUT)).http_status_as_error(false).build().into();
    let calls = std::env::var("CALLS").unwrap_or_default();
    let said = |url: &str| match agent.get(url).call() {
        Ok(mut answer) => {
            let text = answer.body_mut().read_to_string().unwrap_or_else(|why| why.to_string());
            format!("{url} {} {}\n", answer.status().as_u16(), text.trim().replace('\n', " "))
        }
        Err(why) => format!("{url} {why}\n"),
    };
    let body = calls.split_whitespace().map(said).collect();
    ExampleResponse { status: 200, content_type: "text/plain", body }
}
