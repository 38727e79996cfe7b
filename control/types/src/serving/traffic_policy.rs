//! Traffic features of a Route beyond Knative's: annotations of Services and Routes, all of them off by default.
//!
//! `sluicegate.dev/sticky: cookie` (or `cookie=NAME`, `header=NAME`) keeps a client on one Revision,
//! `sluicegate.dev/header-routes: "NAME: VALUE => TAG; …"` sends requests with a header to a tag, and
//! `sluicegate.dev/mirror: TAG=PERCENT` sends copies of requests to a tag and compares the responses.

use std::collections::HashSet;

use contract::table::{SessionKey, names_clients};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::traffic::TrafficTarget;
use crate::field_errors::FieldErrors;
use crate::shared::annotation;

pub const STICKY: &str = "sluicegate.dev/sticky";
pub const HEADER_ROUTES: &str = "sluicegate.dev/header-routes";
pub const MIRROR: &str = "sluicegate.dev/mirror";

/// Rules of one Route: each of its requests is compared with them, one after the other.
const HEADER_ROUTES_MAX: usize = 16;
/// Length of a header's value in a rule, in bytes.
const VALUE_BYTES_MAX: usize = 256;

/// Requests with this header and value go to the tag.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeaderRoute {
    pub header: String,
    pub value: String,
    pub tag: String,
}

/// The percentage of the Route's requests that are copied to the tag.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MirrorTarget {
    pub tag: String,
    pub percent: u8,
}

/// The policy in the annotations; invalid ones are ignored, because admission has rejected them.
#[must_use]
pub fn session_affinity(meta: &ObjectMeta) -> Option<SessionKey> {
    parse_sticky(annotation(meta, STICKY)?).ok()
}

#[must_use]
pub fn header_routes(meta: &ObjectMeta) -> Vec<HeaderRoute> {
    annotation(meta, HEADER_ROUTES).and_then(|text| parse_header_routes(text).ok()).unwrap_or_default()
}

#[must_use]
pub fn mirror(meta: &ObjectMeta) -> Option<MirrorTarget> {
    parse_mirror(annotation(meta, MIRROR)?).ok()
}

/// Validates the values, and that tags are among those of `traffic`.
pub fn validate(meta: &ObjectMeta, traffic: &[TrafficTarget], problems: &mut FieldErrors) {
    let mut wrong = |key: &str, why: String| problems.add(format!("metadata.annotations[{key}]"), why);
    let tags: HashSet<&str> = traffic.iter().filter_map(TrafficTarget::tag).collect();
    let untagged = |tag: &str| (!tags.contains(tag)).then(|| format!("tag \"{tag}\" is not in spec.traffic"));
    if let Some(Err(why)) = annotation(meta, STICKY).map(parse_sticky) {
        wrong(STICKY, why);
    }
    match annotation(meta, HEADER_ROUTES).map(parse_header_routes) {
        Some(Err(why)) => wrong(HEADER_ROUTES, why),
        Some(Ok(rules)) => {
            rules.iter().filter_map(|rule| untagged(&rule.tag)).for_each(|why| wrong(HEADER_ROUTES, why));
        }
        None => {}
    }
    match annotation(meta, MIRROR).map(parse_mirror) {
        Some(Err(why)) => wrong(MIRROR, why),
        Some(Ok(mirror)) => untagged(&mirror.tag).into_iter().for_each(|why| wrong(MIRROR, why)),
        None => {}
    }
}

fn parse_sticky(text: &str) -> Result<SessionKey, String> {
    let is_token =
        |name: &str| !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b));
    match text.split_once('=').unwrap_or((text, "")) {
        ("cookie", "") if text == "cookie" => Ok(SessionKey::Issued),
        ("cookie", name) if is_token(name) => Ok(SessionKey::Cookie(name.into())),
        ("header", name) if names_clients(name) => Ok(SessionKey::Header(name.into())),
        ("header", name) if !name.is_empty() => {
            Err(format!("invalid value: {text}: the proxy writes {name} itself, or it is not a valid header name"))
        }
        _ => Err(format!("invalid value: {text}: expected cookie, cookie=NAME or header=NAME")),
    }
}

fn parse_header_routes(text: &str) -> Result<Vec<HeaderRoute>, String> {
    let rules = text.split([';', '\n']).map(str::trim).filter(|rule| !rule.is_empty());
    let rules: Vec<_> = rules.map(parse_header_route).collect::<Result<_, _>>()?;
    match rules.len() {
        0 => Err("expected NAME: VALUE => TAG; …".to_owned()),
        count if count > HEADER_ROUTES_MAX => Err(format!("{count} rules, and there may be {HEADER_ROUTES_MAX}")),
        _ => Ok(rules),
    }
}

fn parse_header_route(text: &str) -> Result<HeaderRoute, String> {
    let parts = || {
        let (field, tag) = text.rsplit_once("=>")?;
        let (header, value) = field.split_once(':')?;
        Some((header.trim(), value.trim(), tag.trim()))
    };
    let (header, value, tag) = parts().ok_or_else(|| format!("invalid value: {text}: expected NAME: VALUE => TAG"))?;
    let is_text = |byte: u8| (b' '..0x7f).contains(&byte);
    if !names_clients(header) {
        return Err(format!(
            "invalid value: {text}: the proxy writes {header} itself, or it is not a valid header name"
        ));
    }
    if value.is_empty() || value.len() > VALUE_BYTES_MAX || !value.bytes().all(is_text) {
        return Err(format!("invalid value: {text}: expected 1 to {VALUE_BYTES_MAX} printable bytes after {header}:"));
    }
    Ok(HeaderRoute { header: header.to_owned(), value: value.to_owned(), tag: tag.to_owned() })
}

fn parse_mirror(text: &str) -> Result<MirrorTarget, String> {
    let (tag, percent) = text.split_once('=').unwrap_or((text, "100"));
    let percent = percent.parse::<u8>().ok().filter(|percent| (1..=100).contains(percent));
    match percent {
        Some(percent) if !tag.is_empty() => Ok(MirrorTarget { tag: tag.to_owned(), percent }),
        _ => Err(format!("invalid value: {text}: expected TAG or TAG=PERCENT, from 1 to 100")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn meta(pairs: &[(&str, &str)]) -> ObjectMeta {
        let pairs = pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
        ObjectMeta { annotations: Some(pairs.collect()), ..ObjectMeta::default() }
    }

    fn found(key: &str, value: &str) -> Vec<String> {
        let tagged = TrafficTarget { tag: Some("next".into()), ..TrafficTarget::default() };
        let mut problems = FieldErrors::default();
        validate(&meta(&[(key, value)]), &[tagged], &mut problems);
        assert!(problems.list.iter().all(|p| p.field == format!("metadata.annotations[{key}]")));
        problems.list.into_iter().map(|p| p.message).collect()
    }

    #[test]
    fn what_can_be_said_is_taken() {
        for (key, value) in [
            (STICKY, "cookie"),
            (STICKY, "cookie=session_id"),
            (STICKY, "header=X-User"),
            (HEADER_ROUTES, "X-Beta: yes => next"),
            (HEADER_ROUTES, "X-Beta: yes => next;\n X-Team: a => b => next ; "),
            (MIRROR, "next"),
            (MIRROR, "next=1"),
        ] {
            assert_eq!(found(key, value), [] as [&str; 0], "{key}: {value}");
        }
        let rules = header_routes(&meta(&[(HEADER_ROUTES, "X-Beta: yes => next; x: a => b => c")]));
        let shown: Vec<_> = rules.iter().map(|r| (&*r.header, &*r.value, &*r.tag)).collect();
        assert_eq!(shown, [("X-Beta", "yes", "next"), ("x", "a => b", "c")]);
        let to = mirror(&meta(&[(MIRROR, "next=7")])).unwrap();
        assert_eq!((&*to.tag, to.percent), ("next", 7));
    }

    #[test]
    fn what_cannot_be_understood_is_refused_with_what_is_expected() {
        let many = "X: a => next;".repeat(17);
        for (key, value, word) in [
            (STICKY, "", "expected cookie"),
            (STICKY, "cookie=", "expected cookie"),
            (STICKY, "cookie=a b", "expected cookie"),
            (STICKY, "header=Host", "writes Host itself"),
            (STICKY, "ip", "expected cookie"),
            (HEADER_ROUTES, " ; ", "expected NAME"),
            (HEADER_ROUTES, "X-Beta => next", "expected NAME"),
            (HEADER_ROUTES, "X-Beta: yes", "expected NAME"),
            (HEADER_ROUTES, "X-Beta: => next", "printable"),
            (HEADER_ROUTES, "Content-Length: 1 => next", "itself"),
            (HEADER_ROUTES, "X-Beta: yes => gone", "tag \"gone\" is not in spec.traffic"),
            (HEADER_ROUTES, &many, "17 rules"),
            (MIRROR, "gone", "tag \"gone\" is not in spec.traffic"),
            (MIRROR, "next=0", "from 1 to 100"),
            (MIRROR, "next=101", "from 1 to 100"),
            (MIRROR, "=5", "from 1 to 100"),
        ] {
            let problems = found(key, value);
            assert!(problems.len() == 1 && problems[0].contains(word), "{key}: {value}: {problems:?}");
        }
    }
}
