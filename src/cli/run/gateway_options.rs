//! Settings of the listeners for requests, with the files that they name.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context as _, Result, anyhow};
use control::bounded_file;
use dataplane::table::{ErrorPage, ErrorPages, GatewayOptions};

use crate::config::RunConfig;

/// An error page is sent whole and stays in memory; larger ones are pages with pictures, which belong to a server.
const PAGE_BYTES_MAX: u64 = 64 << 10;

/// # Errors A page cannot be read; its flag and file are named.
pub(super) fn read(config: &RunConfig) -> Result<GatewayOptions> {
    let mut error_pages = ErrorPages::default();
    for rule in &config.gateway.error_pages {
        let named = || format!("error-page: {}: {}", rule.statuses, rule.file.display());
        let body = bounded_file::read(&rule.file, PAGE_BYTES_MAX).with_context(named)?;
        let body = body.ok_or_else(|| anyhow!("it has more than {PAGE_BYTES_MAX} bytes")).with_context(named)?;
        let page = ErrorPage { content_type: content_type(&rule.file), body: body.into() };
        error_pages.add(&rule.statuses, page).map_err(|why| anyhow!(why)).with_context(named)?;
    }
    Ok(GatewayOptions {
        trusted_proxies: Arc::new(config.gateway.trusted_proxies.clone()),
        error_pages,
        sends_proxy_protocol: config.routes.iter().any(|rule| rule.proxy_protocol.is_some()),
    })
}

/// By the extension of the file.
fn content_type(file: &Path) -> &'static str {
    match file.extension().and_then(|end| end.to_str()) {
        Some("html" | "htm") => "text/html; charset=utf-8",
        Some("json") => "application/json",
        Some("xml") => "application/xml",
        _ => "text/plain; charset=utf-8",
    }
}
