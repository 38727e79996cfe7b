//! Classes that this program implements, and the annotations that select a class.

/// The ingress class that is ours. Ingresses of another, or of none, are left alone (X-KI-01).
pub const INGRESS: &str = "sluicegate.ingress.networking.knative.dev";
/// Its annotation: the present name and the former one.
pub const INGRESS_ANNOTATIONS: [&str; 2] =
    ["networking.knative.dev/ingress-class", "networking.knative.dev/ingress.class"];

/// We issue the Certificates of this class.
pub const CERTIFICATE: &str = "sluicegate.certificate.networking.knative.dev";
/// Its annotation. The first is the one that Certificates have.
pub const CERTIFICATE_ANNOTATIONS: [&str; 2] =
    ["networking.knative.dev/certificate.class", "networking.knative.dev/certificate-class"];

/// The class of autoscaler that is ours.
pub const KPA: &str = "kpa.autoscaling.knative.dev";
