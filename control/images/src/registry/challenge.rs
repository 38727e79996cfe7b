//! Challenges in `WWW-Authenticate`.

/// A challenge that this client can answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Challenge {
    Basic,
    Bearer { realm: String, service: Option<String>, scope: Option<String> },
}

/// The best challenge of a header's values: a token is preferred to a password.
pub(super) fn parse<'h>(values: impl Iterator<Item = &'h str>) -> Option<Challenge> {
    let mut best = None;
    for value in values {
        for (scheme, parameters) in challenges(value) {
            match scheme.to_ascii_lowercase().as_str() {
                "bearer" => {
                    let get = |name: &str| {
                        let found = parameters.iter().find(|(key, _)| key.eq_ignore_ascii_case(name));
                        found.map(|(_, value)| value.clone()).filter(|value| !value.is_empty())
                    };
                    if let Some(realm) = get("realm") {
                        return Some(Challenge::Bearer { realm, service: get("service"), scope: get("scope") });
                    }
                }
                "basic" => best = Some(Challenge::Basic),
                _ => {}
            }
        }
    }
    best
}

type Parameters = Vec<(String, String)>;

/// RFC 9110: `scheme param="value", param=token, scheme …`. What does not fit is skipped.
fn challenges(value: &str) -> Vec<(String, Parameters)> {
    let mut found: Vec<(String, Parameters)> = Vec::new();
    let mut rest = value;
    loop {
        rest = rest.trim_start_matches([' ', '\t', ',']);
        let end = rest.find([' ', '\t', ',', '=']).unwrap_or(rest.len());
        let (word, after) = rest.split_at(end);
        if word.is_empty() && after.is_empty() {
            return found;
        }
        let padded = after.trim_start_matches([' ', '\t']);
        match padded.strip_prefix('=') {
            Some(text) => {
                let (value, remaining) = parameter_value(text.trim_start_matches([' ', '\t']));
                if let Some((_, parameters)) = found.last_mut() {
                    parameters.push((word.to_owned(), value));
                }
                rest = remaining;
            }
            None => {
                found.push((word.to_owned(), Vec::new()));
                rest = after;
            }
        }
    }
}

/// A token, or a quoted string with escapes.
fn parameter_value(text: &str) -> (String, &str) {
    let Some(quoted) = text.strip_prefix('"') else {
        let end = text.find([',', ' ', '\t']).unwrap_or(text.len());
        return (text[..end].to_owned(), &text[end..]);
    };
    let (mut value, mut chars) = (String::new(), quoted.char_indices());
    while let Some((at, char)) = chars.next() {
        match char {
            '"' => return (value, &quoted[at + 1..]),
            '\\' => value.extend(chars.next().map(|(_, escaped)| escaped)),
            _ => value.push(char),
        }
    }
    (value, "")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn bearer(realm: &str, service: Option<&str>, scope: Option<&str>) -> Option<Challenge> {
        let own = |text: Option<&str>| text.map(str::to_owned);
        Some(Challenge::Bearer { realm: realm.into(), service: own(service), scope: own(scope) })
    }

    #[test]
    fn challenges_of_real_registries_are_read() {
        let docker =
            r#"Bearer realm="https://auth.docker.io/token",service="registry.docker.io",scope="repository:a/b:pull""#;
        let expected = bearer("https://auth.docker.io/token", Some("registry.docker.io"), Some("repository:a/b:pull"));
        assert_eq!(parse([docker].into_iter()), expected);
        assert_eq!(parse([r#"Basic realm="Registry Realm""#].into_iter()), Some(Challenge::Basic));
        let both = r#"Basic realm="x, y=z", bearer Realm=https://t/ , service = "a \"b\"""#;
        assert_eq!(parse([both].into_iter()), bearer("https://t/", Some("a \"b\""), None));
        assert_eq!(parse(["Basic", "Bearer realm=\"r\""].into_iter()), bearer("r", None, None));
        assert_eq!(parse(["Negotiate", "Bearer", ""].into_iter()), None);
    }

    proptest! {
        #[test]
        fn any_header_ends(value in "[ -~]{0,60}") {
            let _ = parse([value.as_str()].into_iter());
        }
    }
}
