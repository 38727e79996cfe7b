//! ConfigMap `config-gc`: the retention of Revisions without a Route.

use std::time::Duration;

use crate::duration;
use crate::field_errors::FieldErrors;
use crate::settings::{ConfigMapData, ConfigMapSetting, SERVING};

const EXAMPLE: &str = "\
retain-since-create-time: \"48h\"
retain-since-last-active-time: \"15h\"
min-non-active-revisions: \"20\"
max-non-active-revisions: \"1000\"
";

/// All keys with upstream's defaults. `None` = disabled.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RevisionGcSettings {
    pub since_created: Option<Duration>,
    pub since_active: Option<Duration>,
    pub retained_min: usize,
    pub retained_max: Option<usize>,
}

impl Default for RevisionGcSettings {
    fn default() -> Self {
        Self {
            since_created: Some(Duration::from_secs(48 * 3_600)),
            since_active: Some(Duration::from_secs(15 * 3_600)),
            retained_min: 20,
            retained_max: Some(1_000),
        }
    }
}

const DISABLED: &str = "disabled";

impl ConfigMapSetting for RevisionGcSettings {
    const NAMESPACE: &'static str = SERVING;
    const NAME: &'static str = "config-gc";
    const EXAMPLE: &'static str = EXAMPLE;

    fn parse(data: &ConfigMapData, problems: &mut FieldErrors) -> Self {
        let mut config = Self::default();
        let mut wrong = |key: &str, text: &str, why: &str| {
            problems.add(format!("data[{key}]"), format!("invalid value: {text}: {why}"));
        };
        for (key, into) in [
            ("retain-since-create-time", &mut config.since_created),
            ("retain-since-last-active-time", &mut config.since_active),
        ] {
            let Some(text) = data.get(key) else { continue };
            match (text.as_str(), duration::parse_go(text)) {
                (DISABLED, _) => *into = None,
                (_, Some(span)) => *into = Some(span),
                _ => wrong(key, text, "a duration or \"disabled\" is needed"),
            }
        }
        if let Some(text) = data.get("min-non-active-revisions") {
            match text.parse() {
                Ok(count) => config.retained_min = count,
                Err(_) => wrong("min-non-active-revisions", text, "a whole number is needed"),
            }
        }
        if let Some(text) = data.get("max-non-active-revisions") {
            match (text.as_str(), text.parse()) {
                (DISABLED, _) => config.retained_max = None,
                (_, Ok(count)) if count >= config.retained_min => config.retained_max = Some(count),
                _ => wrong(
                    "max-non-active-revisions",
                    text,
                    "at least min-non-active-revisions or \"disabled\" is needed",
                ),
            }
        }
        config
    }
}

#[cfg(test)]
mod tests {
    use crate::settings::gc::*;

    #[test]
    fn each_key_is_read_and_each_wrong_one_named() {
        let parse = |key: &str, value: &str| {
            let mut problems = FieldErrors::default();
            let config =
                RevisionGcSettings::parse(&ConfigMapData::from([(key.to_owned(), value.to_owned())]), &mut problems);
            (config, problems.list.into_iter().map(|p| p.field).collect::<Vec<_>>())
        };
        assert_eq!(parse("retain-since-create-time", "disabled").0.since_created, None);
        assert_eq!(parse("retain-since-last-active-time", "1h").0.since_active, Some(Duration::from_secs(3_600)));
        assert_eq!(parse("min-non-active-revisions", "0").0.retained_min, 0);
        assert_eq!(parse("max-non-active-revisions", "disabled").0.retained_max, None);
        for (key, value) in [
            ("retain-since-create-time", "long"),
            ("min-non-active-revisions", "-1"),
            ("max-non-active-revisions", "19"),
        ] {
            assert_eq!(parse(key, value), (RevisionGcSettings::default(), vec![format!("data[{key}]")]));
        }
    }
}
