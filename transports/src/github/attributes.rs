//! Subject and extensions of GitHub's events, as upstream's source sets them.

use adapter::Value as Attribute;
use serde_json::Value;

/// How an event's subject is made of its payload.
enum Subject {
    /// The value at a path.
    At(&'static str),
    /// What follows the last slash of the URL at a path.
    LastPart(&'static str),
}

/// The subject of an event.
pub(super) fn subject(name: &str, payload: &Value) -> Option<String> {
    use Subject::{At, LastPart};
    let subject = match name {
        "check_run" => At("/check_run/id"),
        "check_suite" => At("/check_suite/id"),
        "commit_comment" | "issue_comment" => LastPart("/comment/html_url"),
        "create" | "delete" => At("/ref_type"),
        "deployment" | "deployment_status" => At("/deployment/id"),
        "fork" => At("/forkee/id"),
        "gollum" => return pages(payload),
        "installation" | "integration_installation" | "installation_repositories" => At("/installation/id"),
        "issues" => At("/issue/number"),
        "label" => At("/label/name"),
        "member" | "membership" => At("/member/id"),
        "milestone" => At("/milestone/number"),
        "organization" | "org_block" | "project_card" | "project_column" | "project" => At("/action"),
        "page_build" => At("/id"),
        "ping" => At("/hook_id"),
        "public" | "repository" | "team_add" | "watch" => At("/repository/id"),
        "pull_request" => At("/pull_request/number"),
        "pull_request_review_comment" => At("/comment/id"),
        "pull_request_review" => At("/review/id"),
        "push" => LastPart("/compare"),
        "release" => At("/release/tag_name"),
        "status" => At("/sha"),
        "team" => At("/team/id"),
        _ => return None,
    };
    match subject {
        At(path) => text(payload.pointer(path)?),
        LastPart(path) => Some(payload.pointer(path)?.as_str()?.rsplit('/').next()?.to_owned()),
    }
    .filter(|subject| !subject.is_empty())
}

/// The names of the pages that were changed.
fn pages(payload: &Value) -> Option<String> {
    let names = payload["pages"].as_array()?.iter().filter_map(|page| page["page_name"].as_str());
    Some(names.collect::<Vec<_>>().join(",")).filter(|names| !names.is_empty())
}

/// The extensions of an event: those of all events, then those of its kind.
pub(super) fn extensions(name: &str, payload: &Value) -> Vec<(&'static str, Attribute)> {
    let owner = if payload.pointer("/repository/owner/login").is_some() {
        "/repository/owner/login"
    } else {
        "/organization/login"
    };
    let common = [
        ("owner", owner),
        ("repository", "/repository/name"),
        ("sender", "/sender/login"),
        ("action", "/action"),
        ("installation", "/installation/id"),
    ];
    let own: &[(&str, &str)] = match name {
        "create" | "delete" => &[("ref", "/ref")],
        "issues" => &[("label", "/label/name"), ("assignee", "/assignee/login")],
        "label" => &[("label", "/label/name")],
        "membership" => &[("scope", "/scope")],
        "pull_request" => &[("number", "/number"), ("label", "/label/name"), ("assignee", "/assignee/login")],
        "pull_request_review" => &[("review", "/review/state")],
        "push" => &[
            ("pusher", "/pusher/name"),
            ("ref", "/ref"),
            ("created", "/created"),
            ("deleted", "/deleted"),
            ("forced", "/forced"),
        ],
        "release" => &[("release", "/release/name")],
        _ => &[],
    };
    let found = common.iter().chain(own).filter_map(|(name, path)| Some((*name, attribute(payload.pointer(path)?)?)));
    found.collect()
}

fn attribute(value: &Value) -> Option<Attribute> {
    match value {
        Value::Bool(truth) => Some(Attribute::Boolean(*truth)),
        // An attribute holds 32 bits; a larger number is text.
        Value::Number(number) => match number.as_i64().map(i32::try_from) {
            Some(Ok(small)) => Some(Attribute::Integer(small)),
            _ => Some(Attribute::Text(number.to_string())),
        },
        Value::String(text) if !text.is_empty() => Some(Attribute::Text(text.clone())),
        _ => None,
    }
}

fn text(value: &Value) -> Option<String> {
    attribute(value).map(|value| value.to_string())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn subject_is_of_the_kind_of_event() {
        for (name, payload, wanted) in [
            ("push", json!({ "compare": "https://github.com/o/r/compare/a1...b2" }), Some("a1...b2")),
            ("issues", json!({ "issue": { "number": 7 } }), Some("7")),
            ("issue_comment", json!({ "comment": { "html_url": "https://h/issues/2#c-3" } }), Some("2#c-3")),
            ("gollum", json!({ "pages": [{ "page_name": "Home" }, { "page_name": "Main" }] }), Some("Home,Main")),
            ("check_run", json!({ "check_run": { "id": 9_000_000_000_i64 } }), Some("9000000000")),
            ("push", json!({}), None),
            ("unknown", json!({ "id": 1 }), None),
        ] {
            assert_eq!(subject(name, &payload).as_deref(), wanted, "{name} {payload}");
        }
    }

    #[test]
    fn extensions_are_those_of_the_payload() {
        let payload = json!({
            "repository": { "name": "r", "owner": { "login": "o" } }, "ref": "refs/heads/main",
            "forced": false, "pusher": { "name": "" }, "organization": { "login": "other" },
        });
        let found = extensions("push", &payload);
        let text = |name: &str| found.iter().find(|(known, _)| *known == name).map(|(_, value)| value.to_string());
        assert_eq!((text("owner").as_deref(), text("repository").as_deref()), (Some("o"), Some("r")));
        assert_eq!((text("forced").as_deref(), text("pusher")), (Some("false"), None));
    }
}
