//! The scale settings of a Revision: its annotations over the operator's ConfigMap.

use std::time::Duration;

use autoscaler::ScalingMetric;
use types::duration;
use types::serving::annotations::autoscaling;
use types::serving::revision::Revision;
use types::settings::AutoscalerSettings;

#[derive(Debug, Clone, PartialEq)]
pub struct ScalingConfig {
    pub min: u32,
    pub max: u32,
    pub initial: u32,
    /// The scaled object, by upstream's name.
    pub class: String,
    pub metric: ScalingMetric,
    pub target: f64,
    /// The maximum, of which `target` is a share.
    pub total: f64,
    /// `None`: requests are always held by the proxy.
    pub burst_capacity: Option<f64>,
    pub weighted: bool,
    /// The last instance stays this long after the decision to go to zero.
    pub scale_to_zero_retention: Duration,
    pub stable_window: Duration,
    pub panic_window: Duration,
    pub panic_threshold: f64,
    pub activation: u32,
    pub scale_down_delay: Duration,
}

#[must_use]
pub fn scale(revision: &Revision, config: &AutoscalerSettings) -> ScalingConfig {
    let meta = &revision.metadata;
    let count = |key: &str| autoscaling(meta, key).and_then(|text| text.parse::<u32>().ok());
    let number = |key: &str| number(revision, key);
    let span = |key: &str| autoscaling(meta, key).and_then(duration::parse_go);
    let metric = match autoscaling(meta, "metric") {
        Some("rps") => ScalingMetric::RequestsPerSecond,
        _ => ScalingMetric::Concurrency,
    };
    let window = span("window").unwrap_or(config.stable_window);
    let retention = span("scale-to-zero-pod-retention-period").unwrap_or(config.scale_to_zero_retention);
    let panic_percent = number("panic-window-percentage").unwrap_or(config.panic_window_percent);
    let total = total(revision, metric, config);
    let initial = count("initial-scale").unwrap_or(config.initial_scale);
    ScalingConfig {
        min: count("min-scale").unwrap_or(config.min_scale),
        max: limited(count("max-scale").unwrap_or(config.max_scale), config.max_scale_limit),
        initial: if config.zero_initial_scale { initial } else { initial.max(1) },
        class: autoscaling(meta, "class").unwrap_or(&config.class).to_owned(),
        metric,
        target: total * target_share(revision, config),
        total,
        burst_capacity: Some(number("target-burst-capacity").unwrap_or(config.target_burst_capacity))
            .filter(|burst| *burst >= 0.0),
        weighted: autoscaling(meta, "metric-aggregation-algorithm") == Some("weighted-exponential"),
        scale_to_zero_retention: retention,
        stable_window: window,
        // X-AS: metrics come in buckets of a second, and so does the smallest window.
        panic_window: window.mul_f64((panic_percent / 100.0).clamp(0.01, 1.0)).max(Duration::from_secs(1)),
        panic_threshold: number("panic-threshold-percentage").unwrap_or(config.panic_threshold_percent) / 100.0,
        activation: count("activation-scale").unwrap_or(0),
        scale_down_delay: span("scale-down-delay").unwrap_or(config.scale_down_delay),
    }
}

/// The operator's limit also applies to older Revisions.
fn limited(max: u32, limit: u32) -> u32 {
    match (max, limit) {
        (max, 0) => max,
        (0, limit) => limit,
        (max, limit) => max.min(limit),
    }
}

/// X-AS-01: the whole target, of which a share is aimed at.
fn total(revision: &Revision, metric: ScalingMetric, config: &AutoscalerSettings) -> f64 {
    let annotated = number(revision, "target");
    match metric {
        ScalingMetric::RequestsPerSecond => annotated.unwrap_or(config.rps_target),
        ScalingMetric::Concurrency => match concurrency_max(revision) {
            0 => annotated.unwrap_or(config.concurrency_target),
            // A soft target above the hard limit can never be reached.
            hard => annotated.map_or(f64::from(hard), |target| target.min(f64::from(hard))),
        },
    }
}

fn target_share(revision: &Revision, config: &AutoscalerSettings) -> f64 {
    number(revision, "target-utilization-percentage").map_or(config.target_utilization, |percent| percent / 100.0)
}

fn number(revision: &Revision, key: &str) -> Option<f64> {
    autoscaling(&revision.metadata, key).and_then(|text| text.parse().ok())
}

/// Requests in one instance at a time; 0 = no limit.
pub(crate) fn concurrency_max(revision: &Revision) -> u32 {
    revision.spec.container_concurrency.and_then(|c| u32::try_from(c).ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn revision(annotations: Value, concurrency: i64) -> Revision {
        serde_json::from_value(json!({
            "metadata": {"name": "a-1", "namespace": "ns", "annotations": annotations},
            "spec": {"containers": [{"image": "a"}], "containerConcurrency": concurrency}
        }))
        .unwrap()
    }

    /// X-AS-01: upstream's documented cases, as (annotations, containerConcurrency, target).
    #[test]
    fn the_target_comes_from_annotation_limit_or_default_times_its_share() {
        let key = |name: &str| format!("autoscaling.knative.dev/{name}");
        for (annotations, concurrency, wanted) in [
            (json!({}), 0, 70.0),
            (json!({}), 10, 7.0),
            (json!({key("target"): "50"}), 0, 35.0),
            (json!({key("target"): "50"}), 10, 7.0),
            (json!({key("target"): "5"}), 10, 3.5),
            (json!({key("target"): "100", key("targetUtilizationPercentage"): "100"}), 0, 100.0),
            (json!({key("metric"): "rps"}), 10, 140.0),
            (json!({key("metric"): "rps", key("target"): "150", key("target-utilization-percentage"): "80"}), 0, 120.0),
        ] {
            let found = scale(&revision(annotations.clone(), concurrency), &AutoscalerSettings::default()).target;
            assert!((found - wanted).abs() < 1e-9, "{annotations} {concurrency}: {found}");
        }
    }

    #[test]
    fn annotations_win_over_the_operators_values() {
        let config = AutoscalerSettings {
            min_scale: 2,
            stable_window: Duration::from_secs(30),
            ..AutoscalerSettings::default()
        };
        let silent = scale(&revision(json!({}), 0), &config);
        assert_eq!((silent.min, silent.stable_window.as_secs(), silent.panic_window.as_secs()), (2, 30, 3));
        let with_annotations = json!({
            "autoscaling.knative.dev/min-scale": "1", "autoscaling.knative.dev/window": "100s",
            "autoscaling.knative.dev/panic-window-percentage": "20", "autoscaling.knative.dev/activation-scale": "4",
            "autoscaling.knative.dev/panic-threshold-percentage": "150",
            "autoscaling.knative.dev/scale-down-delay": "15m",
            "autoscaling.knative.dev/scale-to-zero-pod-retention-period": "10m"
        });
        let with_annotations = scale(&revision(with_annotations, 0), &config);
        assert_eq!(
            (with_annotations.min, with_annotations.activation, with_annotations.panic_window.as_secs()),
            (1, 4, 20)
        );
        assert_eq!(
            (with_annotations.scale_down_delay.as_secs(), with_annotations.scale_to_zero_retention.as_secs()),
            (900, 600)
        );
        assert!((with_annotations.panic_threshold - 1.5).abs() < 1e-9);
    }

    /// The operator's maximum, limit and leave to begin with nobody, as (annotations, limit, allowed) and the
    /// wanted (max, initial).
    #[test]
    fn the_operator_bounds_what_a_revision_asks_for() {
        let key = |name: &str| format!("autoscaling.knative.dev/{name}");
        for (annotations, limit, allowed, wanted) in [
            (json!({}), 0, false, (3, 1)),
            (json!({}), 2, false, (2, 1)),
            (json!({key("max-scale"): "0"}), 2, false, (2, 1)),
            (json!({key("max-scale"): "9"}), 0, false, (9, 1)),
            (json!({key("max-scale"): "9"}), 5, false, (5, 1)),
            (json!({key("initial-scale"): "0"}), 0, false, (3, 1)),
            (json!({key("initial-scale"): "0"}), 0, true, (3, 0)),
            (json!({key("initial-scale"): "4"}), 0, true, (3, 4)),
        ] {
            let config = AutoscalerSettings {
                max_scale: 3,
                max_scale_limit: limit,
                zero_initial_scale: allowed,
                ..AutoscalerSettings::default()
            };
            let found = scale(&revision(annotations.clone(), 0), &config);
            assert_eq!((found.max, found.initial), wanted, "{annotations} {limit} {allowed}");
        }
    }

    #[test]
    fn class_and_algorithm_are_the_revisions_or_the_operators() {
        let silent = scale(&revision(json!({}), 0), &AutoscalerSettings::default());
        assert_eq!((silent.class.as_str(), silent.weighted), ("kpa.autoscaling.knative.dev", false));
        let with_annotations = json!({"autoscaling.knative.dev/class": "other.example.com",
            "autoscaling.knative.dev/metric-aggregation-algorithm": "weighted-exponential"});
        let with_annotations = scale(&revision(with_annotations, 0), &AutoscalerSettings::default());
        assert_eq!((with_annotations.class.as_str(), with_annotations.weighted), ("other.example.com", true));
    }
}
