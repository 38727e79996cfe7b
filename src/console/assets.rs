//! The page: files that are part of the binary.

use axum::extract::Path;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse as _, Response};

/// A file, and what it is.
struct Asset {
    name: &'static str,
    content_type: &'static str,
    bytes: &'static [u8],
}

const SCRIPT: &str = "text/javascript; charset=utf-8";
const STYLE: &str = "text/css; charset=utf-8";
const PAGE: &str = "text/html; charset=utf-8";
const PICTURE: &str = "image/svg+xml";

macro_rules! asset {
    ($name:literal, $content_type:expr) => {
        Asset { name: $name, content_type: $content_type, bytes: include_bytes!(concat!("assets/", $name)) }
    };
}

const INDEX: Asset = asset!("index.html", PAGE);

/// Those that the page names.
const ASSETS: [Asset; 19] = [
    asset!("console.css", STYLE),
    asset!("icon.svg", PICTURE),
    asset!("app.js", SCRIPT),
    asset!("api.js", SCRIPT),
    asset!("dom.js", SCRIPT),
    asset!("figures.js", SCRIPT),
    asset!("format.js", SCRIPT),
    asset!("plot.js", SCRIPT),
    asset!("overview.js", SCRIPT),
    asset!("traffic.js", SCRIPT),
    asset!("events.js", SCRIPT),
    asset!("topology.js", SCRIPT),
    asset!("trace.js", SCRIPT),
    asset!("dead-letters.js", SCRIPT),
    asset!("objects.js", SCRIPT),
    asset!("object.js", SCRIPT),
    asset!("table.js", SCRIPT),
    asset!("yaml.js", SCRIPT),
    asset!("health.js", SCRIPT),
];

pub(super) async fn index() -> Response {
    INDEX.response()
}

pub(super) async fn asset(Path(name): Path<String>) -> Response {
    match ASSETS.iter().find(|asset| asset.name == name) {
        Some(asset) => asset.response(),
        None => (StatusCode::NOT_FOUND, "the console has no such file\n").into_response(),
    }
}

impl Asset {
    /// Not cached: another version of the program may answer next time.
    fn response(&self) -> Response {
        ([(header::CONTENT_TYPE, self.content_type), (header::CACHE_CONTROL, "no-cache")], self.bytes).into_response()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All that a browser loads.
    const BYTES_MAX: usize = 150_000;

    #[test]
    fn page_is_small_and_names_only_files_that_it_has() {
        let all: Vec<&Asset> = ASSETS.iter().chain([&INDEX]).collect();
        let bytes: usize = all.iter().map(|asset| asset.bytes.len()).sum();
        assert!(bytes <= BYTES_MAX, "{bytes} bytes");
        for asset in all {
            let text = std::str::from_utf8(asset.bytes).unwrap();
            let named =
                text.split(['"', '\'']).filter_map(|part| part.strip_prefix("./").or(part.strip_prefix("/assets/")));
            for name in named.filter(|name| name.contains('.') && !name.contains(' ')) {
                assert!(ASSETS.iter().any(|other| other.name == name), "{} names {name}", asset.name);
            }
        }
    }

    #[test]
    fn page_has_no_inline_script_or_style() {
        let html = std::str::from_utf8(INDEX.bytes).unwrap();
        assert!(!html.contains("style=") && !html.contains("<style") && !html.contains(" on"), "{html}");
        assert_eq!(html.matches("<script").count(), html.matches("<script type=\"module\" src=").count());
    }
}
