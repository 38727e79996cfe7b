//! `networking.internal.knative.dev`: what one part of Knative tells another about the network.

pub mod certificate;
pub mod ingress;
pub mod serverless_service;

pub const GROUP: &str = "networking.internal.knative.dev";
pub const VERSION: &str = "v1alpha1";
