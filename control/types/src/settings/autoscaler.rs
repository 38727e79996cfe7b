//! ConfigMap `config-autoscaler`: the scaling of Revisions without annotations of their own.

use std::time::Duration;

use crate::classes::KPA;
use crate::field_errors::FieldErrors;
use crate::settings::{ConfigMapData, ConfigMapReader, ConfigMapSetting, SERVING};

/// A target below this asks for absurd numbers of instances (X-AS-01).
pub const TARGET_MIN: f64 = 0.01;
pub const WINDOW_MIN: Duration = Duration::from_secs(6);
pub const WINDOW_MAX: Duration = Duration::from_secs(3_600);

const EXAMPLE: &str = "\
container-concurrency-target-percentage: \"70\"
container-concurrency-target-default: \"100\"
requests-per-second-target-default: \"200\"
stable-window: \"60s\"
panic-window-percentage: \"10.0\"
panic-threshold-percentage: \"200.0\"
max-scale-up-rate: \"1000.0\"
max-scale-down-rate: \"2.0\"
enable-scale-to-zero: \"true\"
scale-to-zero-pod-retention-period: \"0s\"
scale-down-delay: \"0s\"
initial-scale: \"1\"
allow-zero-initial-scale: \"false\"
min-scale: \"0\"
max-scale: \"0\"
max-scale-limit: \"0\"
target-burst-capacity: \"211\"
scale-to-zero-grace-period: \"30s\"
activator-capacity: \"100.0\"
pod-autoscaler-class: \"kpa.autoscaling.knative.dev\"
";

/// All keys with upstream's defaults.
#[derive(Debug, Clone, PartialEq)]
pub struct AutoscalerSettings {
    /// Target utilization, so that a burst finds free capacity; 0 to 1.
    pub target_utilization: f64,
    /// Requests in one instance.
    pub concurrency_target: f64,
    /// Requests per second and instance.
    pub rps_target: f64,
    pub stable_window: Duration,
    /// The panic window as a percentage of the stable window.
    pub panic_window_percent: f64,
    pub panic_threshold_percent: f64,
    pub scale_up_rate: f64,
    pub scale_down_rate: f64,
    /// Target burst capacity; below 0: never enough. Requests always wait in the core that accepted them, so this
    /// only affects the reported mode.
    pub target_burst_capacity: f64,
    pub scale_to_zero_enabled: bool,
    pub scale_to_zero_retention: Duration,
    pub scale_down_delay: Duration,
    pub initial_scale: u32,
    pub min_scale: u32,
    /// 0 = no limit.
    pub max_scale: u32,
    /// The maximum for users; 0 = unlimited.
    pub max_scale_limit: u32,
    /// Whether a Revision may start with zero instances.
    pub zero_initial_scale: bool,
    /// The scaler class of Revisions without an annotation.
    pub class: String,
}

impl Default for AutoscalerSettings {
    fn default() -> Self {
        Self {
            target_utilization: 0.7,
            concurrency_target: 100.0,
            rps_target: 200.0,
            stable_window: Duration::from_secs(60),
            panic_window_percent: 10.0,
            panic_threshold_percent: 200.0,
            scale_up_rate: 1_000.0,
            scale_down_rate: 2.0,
            target_burst_capacity: 211.0,
            scale_to_zero_enabled: true,
            scale_to_zero_retention: Duration::ZERO,
            scale_down_delay: Duration::ZERO,
            initial_scale: 1,
            min_scale: 0,
            max_scale: 0,
            max_scale_limit: 0,
            zero_initial_scale: false,
            class: KPA.to_owned(),
        }
    }
}

impl ConfigMapSetting for AutoscalerSettings {
    const NAMESPACE: &'static str = SERVING;
    const NAME: &'static str = "config-autoscaler";
    const EXAMPLE: &'static str = EXAMPLE;

    fn parse(data: &ConfigMapData, problems: &mut FieldErrors) -> Self {
        let mut read = ConfigMapReader::of(data, problems);
        let mut config = Self::default();
        read.number("container-concurrency-target-percentage", 0.0..=100.0, &mut config.target_utilization);
        // X-AS: a value up to 1 is a share already.
        if config.target_utilization > 1.0 {
            config.target_utilization /= 100.0;
        }
        if config.target_utilization <= 0.0 {
            read.error("container-concurrency-target-percentage", "must be above 0");
            config.target_utilization = Self::default().target_utilization;
        }
        let any = TARGET_MIN..=f64::MAX;
        read.number("container-concurrency-target-default", any.clone(), &mut config.concurrency_target);
        read.number("requests-per-second-target-default", any, &mut config.rps_target);
        read.number("panic-window-percentage", 1.0..=100.0, &mut config.panic_window_percent);
        read.number("panic-threshold-percentage", 110.0..=1_000.0, &mut config.panic_threshold_percent);
        read.number_above("max-scale-up-rate", 1.0, &mut config.scale_up_rate);
        read.number_above("max-scale-down-rate", 1.0, &mut config.scale_down_rate);
        read.number("target-burst-capacity", -1.0..=f64::MAX, &mut config.target_burst_capacity);
        if config.target_burst_capacity < 0.0 && (config.target_burst_capacity + 1.0).abs() > f64::EPSILON {
            read.error("target-burst-capacity", "must be -1 or at least 0");
            config.target_burst_capacity = Self::default().target_burst_capacity;
        }

        read.duration("stable-window", WINDOW_MIN..=WINDOW_MAX, &mut config.stable_window);
        let up_to_an_hour = Duration::ZERO..=WINDOW_MAX;
        read.duration("scale-to-zero-pod-retention-period", up_to_an_hour.clone(), &mut config.scale_to_zero_retention);
        read.duration("scale-down-delay", up_to_an_hour, &mut config.scale_down_delay);
        let usual = Self::default();
        for (key, span, usual) in [
            ("stable-window", &mut config.stable_window, usual.stable_window),
            ("scale-down-delay", &mut config.scale_down_delay, usual.scale_down_delay),
        ] {
            if span.subsec_nanos() != 0 {
                read.error(key, "whole seconds are needed");
                *span = usual;
            }
        }
        // Upstream waits this long for its proxies to learn of the change; our cores know at once.
        let mut grace = Duration::from_secs(30);
        read.duration("scale-to-zero-grace-period", Duration::from_nanos(1)..=Duration::MAX, &mut grace);

        let mut capacity = 100.0;
        read.number("activator-capacity", 1.0..=f64::MAX, &mut capacity);

        read.flag("enable-scale-to-zero", &mut config.scale_to_zero_enabled);
        read.flag("allow-zero-initial-scale", &mut config.zero_initial_scale);
        read.count("initial-scale", &mut config.initial_scale);
        if config.initial_scale == 0 && !config.zero_initial_scale {
            read.error("initial-scale", "must be at least 1 unless allow-zero-initial-scale is true");
            config.initial_scale = 1;
        }
        read.count("min-scale", &mut config.min_scale);
        read.count("max-scale", &mut config.max_scale);
        if config.max_scale != 0 && config.max_scale < config.min_scale {
            read.error("max-scale", "is less than min-scale");
            config.max_scale = config.min_scale;
        }
        read.count("max-scale-limit", &mut config.max_scale_limit);
        let limit = config.max_scale_limit;
        if limit != 0 && !(1..=limit).contains(&config.max_scale) {
            read.error("max-scale", &format!("must be from 1 to max-scale-limit, which is {limit}"));
            config.max_scale = limit;
        }
        read.text("pod-autoscaler-class", |class| !class.is_empty(), "a class", &mut config.class);
        config
    }
}

#[cfg(test)]
mod tests {
    use crate::settings::autoscaler::*;

    fn parse(pairs: &[(&str, &str)]) -> (AutoscalerSettings, Vec<String>) {
        let data = pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        let mut problems = FieldErrors::default();
        let config = AutoscalerSettings::parse(&data, &mut problems);
        (config, problems.list.into_iter().map(|p| p.field).collect())
    }

    #[test]
    fn nothing_said_means_upstreams_defaults_and_the_example_says_nothing() {
        let (config, problems) = parse(&[("_example", "stable-window: \"never\"")]);
        assert_eq!((config, problems.len()), (AutoscalerSettings::default(), 0));
    }

    #[test]
    fn keys_are_read() {
        let (config, problems) = parse(&[
            ("container-concurrency-target-percentage", "50"),
            ("stable-window", "2m"),
            ("enable-scale-to-zero", "false"),
            ("initial-scale", "0"),
            ("allow-zero-initial-scale", "true"),
            ("max-scale-down-rate", "1.5"),
            ("max-scale-limit", "20"),
            ("max-scale", "10"),
            ("pod-autoscaler-class", "hpa.autoscaling.knative.dev"),
        ]);
        assert_eq!((config.max_scale, config.max_scale_limit, config.zero_initial_scale), (10, 20, true));
        assert_eq!(config.class, "hpa.autoscaling.knative.dev");
        assert_eq!(problems, [] as [&str; 0]);
        assert!((config.target_utilization - 0.5).abs() < 1e-9);
        assert_eq!(
            (config.stable_window.as_secs(), config.scale_to_zero_enabled, config.initial_scale),
            (120, false, 0)
        );
        assert!((parse(&[("container-concurrency-target-percentage", "0.6")]).0.target_utilization - 0.6).abs() < 1e-9);
    }

    /// With a limit, no limit at all is above it.
    #[test]
    fn the_default_maximum_keeps_within_the_limit() {
        for (max, fine) in [("0", false), ("5", true), ("6", false)] {
            let (config, problems) = parse(&[("max-scale-limit", "5"), ("max-scale", max)]);
            assert_eq!((config.max_scale, problems.is_empty()), (5, fine), "max-scale {max}");
        }
    }

    #[test]
    fn bound_is_formatted_for_readers() {
        for (key, value, why) in [
            ("max-scale-up-rate", "1", "a number above 1 is needed"),
            ("max-scale-down-rate", "inf", "a number above 1 is needed"),
            ("requests-per-second-target-default", "0", "a number of at least 0.01 is needed"),
            ("panic-window-percentage", "0", "a number from 1 to 100 is needed"),
            ("scale-to-zero-grace-period", "0s", "a duration of at least 1ns is needed"),
        ] {
            let mut problems = FieldErrors::default();
            AutoscalerSettings::parse(&ConfigMapData::from([(key.to_owned(), value.to_owned())]), &mut problems);
            assert_eq!(problems.list[0].message, format!("invalid value: {value}: {why}"), "{key}");
        }
    }

    #[test]
    fn a_value_out_of_bounds_is_named_by_its_key_and_changes_nothing() {
        for (key, value) in [
            ("container-concurrency-target-percentage", "0"),
            ("container-concurrency-target-percentage", "101"),
            ("requests-per-second-target-default", "0.001"),
            ("target-burst-capacity", "-0.5"),
            ("stable-window", "5s"),
            ("stable-window", "soon"),
            ("stable-window", "6500ms"),
            ("scale-down-delay", "1.5s"),
            ("panic-window-percentage", "0.5"),
            ("panic-threshold-percentage", "109"),
            ("max-scale-up-rate", "1"),
            ("max-scale-down-rate", "NaN"),
            ("scale-to-zero-grace-period", "0s"),
            ("scale-down-delay", "-1s"),
            ("initial-scale", "0"),
            ("min-scale", "-1"),
            ("enable-scale-to-zero", "perhaps"),
            ("activator-capacity", "0.5"),
            ("pod-autoscaler-class", " "),
        ] {
            let (config, problems) = parse(&[(key, value)]);
            assert_eq!(problems, [format!("data[{key}]")], "{key}={value}");
            assert_eq!(config, AutoscalerSettings::default(), "{key}={value}");
        }
    }
}
