//! ConfigMap `config-defaults`: defaults for fields that a template leaves out.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use super::{ConfigMapData, ConfigMapReader, ConfigMapSetting, SERVING};
use crate::field_errors::FieldErrors;
use support::names::is_dns1123_label;

/// Upper bound of times and counts in the map; they are added and multiplied later.
const INTEGER_MAX: i64 = i32::MAX as i64;
const RESOURCES: [&str; 3] = ["cpu", "memory", "ephemeral-storage"];

/// All keys with upstream's defaults.
#[derive(Debug, Clone, PartialEq)]
pub struct RevisionDefaults {
    pub timeout_seconds: i64,
    /// The maximum timeout.
    pub timeout_seconds_max: i64,
    /// Applied when it is shorter than the timeout; 0 = never.
    pub response_start_timeout_seconds: i64,
    /// The same.
    pub idle_timeout_seconds: i64,
    /// `cpu`, `memory` and `ephemeral-storage` that containers ask for.
    pub requests: BTreeMap<String, Quantity>,
    pub limits: BTreeMap<String, Quantity>,
    pub container_name: String,
    pub init_container_name: String,
    /// 0 = as many as come.
    pub container_concurrency: i64,
    pub container_concurrency_max: i64,
    pub allow_container_concurrency_zero: bool,
    /// `None`: left as it is (`default` in the map).
    pub enable_service_links: Option<bool>,
}

impl Default for RevisionDefaults {
    fn default() -> Self {
        Self {
            timeout_seconds: 300,
            timeout_seconds_max: 600,
            response_start_timeout_seconds: 300,
            idle_timeout_seconds: 0,
            requests: BTreeMap::new(),
            limits: BTreeMap::new(),
            container_name: "user-container".into(),
            init_container_name: "init-container".into(),
            container_concurrency: 0,
            container_concurrency_max: 1_000,
            allow_container_concurrency_zero: true,
            enable_service_links: Some(false),
        }
    }
}

impl ConfigMapSetting for RevisionDefaults {
    const NAMESPACE: &'static str = SERVING;
    const NAME: &'static str = "config-defaults";
    const EXAMPLE: &'static str = "\
revision-timeout-seconds: \"300\"
max-revision-timeout-seconds: \"600\"
revision-response-start-timeout-seconds: \"300\"
revision-idle-timeout-seconds: \"0\"
# Without a value containers ask for nothing: revision-cpu-request, revision-memory-request,
# revision-ephemeral-storage-request, and the same with -limit.
container-name-template: \"user-container\"
init-container-name-template: \"init-container\"
container-concurrency: \"0\"
container-concurrency-max-limit: \"1000\"
allow-container-concurrency-zero: \"true\"
enable-service-links: \"false\"
";

    fn further_keys() -> Vec<String> {
        ["cpu", "memory", "ephemeral-storage"].map(|what| format!("revision-{what}-limit")).into()
    }

    fn parse(data: &ConfigMapData, problems: &mut FieldErrors) -> Self {
        let mut config = Self::default();
        let mut read = ConfigMapReader::of(data, problems);
        let some = 1..=INTEGER_MAX;
        read.integer("max-revision-timeout-seconds", some.clone(), &mut config.timeout_seconds_max);
        read.integer("revision-timeout-seconds", some.clone(), &mut config.timeout_seconds);
        if config.timeout_seconds > config.timeout_seconds_max {
            read.error("revision-timeout-seconds", "it is above max-revision-timeout-seconds");
            config.timeout_seconds = config.timeout_seconds_max;
        }
        let short = 0..=config.timeout_seconds;
        if config.response_start_timeout_seconds > config.timeout_seconds {
            config.response_start_timeout_seconds = config.timeout_seconds;
        }
        read.integer(
            "revision-response-start-timeout-seconds",
            short.clone(),
            &mut config.response_start_timeout_seconds,
        );
        read.integer("revision-idle-timeout-seconds", short, &mut config.idle_timeout_seconds);
        for resource in RESOURCES {
            quantity(&mut read, &format!("revision-{resource}-request"), resource, &mut config.requests);
            quantity(&mut read, &format!("revision-{resource}-limit"), resource, &mut config.limits);
        }
        let label = "a DNS label (templates have no fields here)";
        read.text("container-name-template", is_dns1123_label, label, &mut config.container_name);
        read.text("init-container-name-template", is_dns1123_label, label, &mut config.init_container_name);
        read.integer("container-concurrency-max-limit", some, &mut config.container_concurrency_max);
        let up_to_the_limit = 0..=config.container_concurrency_max;
        read.integer("container-concurrency", up_to_the_limit, &mut config.container_concurrency);
        read.flag("allow-container-concurrency-zero", &mut config.allow_container_concurrency_zero);
        if !config.allow_container_concurrency_zero && config.container_concurrency == 0 {
            read.error("container-concurrency", "0 is ruled out by allow-container-concurrency-zero");
            config.container_concurrency = config.container_concurrency_max;
        }
        let links = [("true", Some(true)), ("false", Some(false)), ("default", None)];
        read.one_of("enable-service-links", &links, &mut config.enable_service_links);
        config
    }
}

fn quantity(read: &mut ConfigMapReader<'_>, key: &str, resource: &str, into: &mut BTreeMap<String, Quantity>) {
    let mut text = String::new();
    read.text(key, is_quantity, "a quantity such as 100m or 128Mi", &mut text);
    if !text.is_empty() {
        into.insert(resource.into(), Quantity(text));
    }
}

/// A number, and how many of them: `400m`, `1.5`, `100Mi`, `1e3`.
fn is_quantity(text: &str) -> bool {
    const SUFFIXES: [&str; 15] = ["", "n", "u", "m", "k", "M", "G", "T", "P", "E", "Ki", "Mi", "Gi", "Ti", "Pi"];
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, suffix) = text.split_at(end);
    let exponent = suffix.strip_prefix(['e', 'E']).is_some_and(|power| power.parse::<i8>().is_ok());
    number.parse::<f64>().is_ok_and(f64::is_finite) && (exponent || suffix == "Ei" || SUFFIXES.contains(&suffix))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(pairs: &[(&str, &str)]) -> (RevisionDefaults, Vec<String>) {
        let data = pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        let mut problems = FieldErrors::default();
        let config = RevisionDefaults::parse(&data, &mut problems);
        (config, problems.list.into_iter().map(|p| p.field).collect())
    }

    #[test]
    fn each_key_is_read() {
        let (config, problems) = parse(&[
            ("revision-timeout-seconds", "900"),
            ("max-revision-timeout-seconds", "1200"),
            ("revision-idle-timeout-seconds", "30"),
            ("revision-cpu-request", "400m"),
            ("revision-memory-limit", "100Mi"),
            ("container-concurrency", "5"),
            ("allow-container-concurrency-zero", "False"),
            ("enable-service-links", "default"),
        ]);
        assert_eq!(problems, [] as [&str; 0]);
        assert_eq!((config.timeout_seconds, config.timeout_seconds_max), (900, 1_200));
        assert_eq!((config.idle_timeout_seconds, config.container_concurrency), (30, 5));
        assert_eq!(config.requests["cpu"].0, "400m");
        assert_eq!(config.limits["memory"].0, "100Mi");
        assert_eq!(config.enable_service_links, None);
    }

    #[test]
    fn a_value_that_makes_no_sense_is_named_by_its_key() {
        for (key, value) in [
            ("revision-timeout-seconds", "601"),
            ("revision-timeout-seconds", "soon"),
            ("max-revision-timeout-seconds", "0"),
            ("revision-response-start-timeout-seconds", "301"),
            ("revision-idle-timeout-seconds", "-1"),
            ("revision-cpu-request", "lots"),
            ("container-name-template", "{{.Name}}"),
            ("container-concurrency", "1001"),
            ("container-concurrency-max-limit", "0"),
            ("allow-container-concurrency-zero", "perhaps"),
            ("enable-service-links", "maybe"),
        ] {
            assert_eq!(parse(&[(key, value)]).1, [format!("data[{key}]")], "{key}={value}");
        }
        let (_, problems) = parse(&[("allow-container-concurrency-zero", "false")]);
        assert_eq!(problems, ["data[container-concurrency]"]);
    }

    #[test]
    fn quantities_are_numbers_with_the_suffixes_of_kubernetes() {
        for good in ["1", "0.5", "400m", "100Mi", "1e3", "2E", "5Ei"] {
            assert!(is_quantity(good), "{good}");
        }
        for bad in ["", "m", "1x", "1.2.3", "-1", "1 Mi", "NaN"] {
            assert!(!is_quantity(bad), "{bad}");
        }
    }
}
