//! `networking.internal.knative.dev`: the kinds by which the parts of Knative exchange network configuration.

pub mod certificate;
pub mod ingress;
pub mod serverless_service;

pub const GROUP: &str = "networking.internal.knative.dev";
pub const VERSION: &str = "v1alpha1";
