//! A subscriber: prints each CloudEvent it receives, and answers with the configured status.

use super::server::{ExampleRequest, ExampleResponse};

pub(super) fn answer(request: &ExampleRequest, status: u16) -> ExampleResponse {
    let attribute = |name: &str| request.header(name).unwrap_or("-").to_owned();
    println!(
        "event type={} source={} id={} bytes={} dead-letter-of={}",
        attribute("ce-type"),
        attribute("ce-source"),
        attribute("ce-id"),
        request.body.len(),
        attribute("ce-knativeerrordest"),
    );
    ExampleResponse { status, content_type: "text/plain", body: String::new() }
}
